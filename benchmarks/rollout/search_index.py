"""Compare the two local indexes of the tool `search`: time to build, size, and time of a query.

    python -m benchmarks.rollout.search_index [--passages 50000] [--queries 300]

Passages have 60 words from a vocabulary of 50,000 with Zipf frequencies, and queries 6 words of the same distribution.
Both indexes answer the same queries in one run, alternately. Times are processor time of this process, so other work on
the machine does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from agentloop.tools.search import index, tantivy_index
from agentloop.tools.search.passages import Passage, Retriever
from benchmarks import results_file

WORDS, WORDS_OF_PASSAGE, WORDS_OF_QUERY = 50_000, 60, 6
TOPK = 3


def corpus(count: int, rng: np.random.Generator) -> list[Passage]:
    frequencies = 1 / np.arange(1, WORDS + 1)
    drawn = rng.choice(WORDS, (count, WORDS_OF_PASSAGE), p=frequencies / frequencies.sum())
    return [Passage(str(i), f"passage {i}", " ".join(f"w{word}" for word in row)) for i, row in enumerate(drawn)]


async def milliseconds(retriever: Retriever, query: str) -> float:
    started = time.process_time()
    await retriever.retrieve([query], TOPK)
    return 1000 * (time.process_time() - started)


async def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    passages = corpus(args.passages, rng)
    kinds: dict[str, tuple[Any, Retriever]] = {
        "sqlite": (index.build, index.LocalIndex(folder / "sqlite")),
        "tantivy": (tantivy_index.build, tantivy_index.TantivyIndex(folder / "tantivy")),
    }
    result: dict[str, Any] = {}
    for name, (build, retriever) in kinds.items():
        started = time.process_time()
        build(passages, folder / name)
        seconds = time.process_time() - started
        await retriever.start()
        place = folder / name
        files = list(place.iterdir()) if place.is_dir() else [place]
        result[name] = {"build_cpu_seconds": seconds, "megabytes": sum(file.stat().st_size for file in files) / 1e6}
    words = rng.zipf(1.3, (args.queries, WORDS_OF_QUERY)).clip(max=WORDS) - 1
    queries = [" ".join(f"w{word}" for word in row) for row in words]
    times: dict[str, list[float]] = {name: [] for name in kinds}
    for query in queries:
        for name, (_, retriever) in kinds.items():
            times[name].append(await milliseconds(retriever, query))
    for name, found in times.items():
        result[name] |= {
            "query_cpu_ms_median": float(np.median(found)),
            "query_cpu_ms_p95": float(np.percentile(found, 95)),
        }
    sqlite, tantivy = result["sqlite"], result["tantivy"]
    result["sqlite_over_tantivy"] = {key: sqlite[key] / tantivy[key] for key in sqlite}
    return {
        "passages": args.passages,
        "queries": args.queries,
        "tantivy_version": metadata.version("tantivy"),
        **result,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--passages", type=int, default=50_000)
    parser.add_argument("--queries", type=int, default=300)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(measure(args, Path(folder)))
    print(results_file.write("search_index", result).read_text())


if __name__ == "__main__":
    main()
