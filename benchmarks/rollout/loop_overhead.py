"""Measure the cost of the agent loop itself: turns per second with an engine and a tool that take no time, on one core.

    python -m benchmarks.rollout.loop_overhead [--episodes 1024] [--turns 64] [--profile]

Every turn samples a hermes call and observes one tool result, through a real 32k byte-level BPE tokenizer (trained
here on the standard library's sources). Each case has three figures: turns/s over all episodes; turns/s of a bare
asyncio loop that only encodes new text, in the same run; and the time of turn 63 over that of turn 2. All episodes
advance together (the engine yields once a turn, as a real one does), so the time between the first calls of two turns
is the time of one turn of every episode. Times are processor time of this process, which other work disturbs less.

--profile instead shows where the processor time of the first case goes: a timer interrupts the process at each tick of
the kernel's clock, and the part of the package that runs then gets the sample. Writes
results/loop_overhead_profile.json.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import statistics
import sys
import sysconfig
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

from agentloop import AgentLoop, Env, Limits, Observation, StopReason, tool
from agentloop.engines.testing.scripted import ScriptedEngine
from agentloop.episodes.worker import RolloutWorker
from agentloop.rendering import renderer_for
from agentloop.tools.toolset import Toolset
from agentloop.types.requests import RolloutRequest
from benchmarks import results_file

ROOT = Path(__file__).parents[2]
CACHE = ROOT / "build" / "benchmark_tokenizer"
CHAT_TEMPLATE = """\
{%- if tools %}<|im_start|>system
You may call these functions:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
Answer a call with JSON between <tool_call> and </tool_call>.<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}
{%- else %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CALL = '<tool_call>\n{"name": "lookup", "arguments": {"key": "result of line 7"}}\n</tool_call><|im_end|>'


def load_tokenizer(vocab_size: int = 32_000) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    if not CACHE.exists():
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
        tokenizer.train([str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py")], trainer)
        tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>")])
        tags = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
        tokenizer.add_tokens([AddedToken(t, special=False) for t in tags])
        fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>")
        fast.chat_template = CHAT_TEMPLATE
        fast.save_pretrained(CACHE)
    return AutoTokenizer.from_pretrained(CACHE)


class CountingEngine(ScriptedEngine):
    """Engine that yields once per turn and notes when the first episode asks for each turn."""

    def __init__(self, call: list[int]) -> None:
        super().__init__([call])
        self.turn_starts: list[float] = []

    async def generate(self, prompt: Any, params: Any, *, trajectory_id: str, images: Any = ()) -> Any:
        if self._turns.get(trajectory_id, 0) == len(self.turn_starts):
            self.turn_starts.append(time.process_time())
        await asyncio.sleep(0)
        return await super().generate(prompt, params, trajectory_id=trajectory_id, images=images)


class LookupEnv(Env):
    def __init__(self, toolset: Toolset) -> None:
        self.toolset = toolset

    async def reset(self) -> Observation:
        return Observation([{"role": "user", "content": "Look things up until you know enough."}])

    async def step(self, message: Any) -> tuple[Observation, float, bool, bool]:
        raise AssertionError("every turn calls the tool")


def result_text(tokenizer: Any, num_tokens: int) -> str:
    """Return a tool result with which the whole observation has `num_tokens` tokens."""
    renderer = renderer_for(tokenizer)
    words = ["value", "of", "the", "next", "line", "in", "file", "is", "not", "known", "to", "self", "and", "other"]
    text = ""
    for i in range(num_tokens):
        longer = f"{text} {words[i % len(words)]}".strip()
        message = {"role": "tool", "content": longer, "tool_call_id": "call_0"}
        if len(renderer.render_continuation(renderer.encode(CALL), [message]).observation) > num_tokens:
            return text
        text = longer
    return text


async def run_loop(tokenizer: Any, episodes: int, turns: int, text: str) -> tuple[float, float, int, int]:
    """Return (turns/s, time of turn 63 over turn 2, sampled tokens a turn, observed tokens a turn)"""

    @tool(inline=True)
    async def lookup(key: str) -> str:
        """Look a key up."""
        return text

    renderer = renderer_for(tokenizer)
    call = tokenizer(CALL, add_special_tokens=False).input_ids
    engine = CountingEngine(call)
    limits = Limits(max_turns=turns, max_tokens=1 << 20)
    loop = AgentLoop(engine, renderer, limits=limits)
    toolset = Toolset([lookup])
    started = time.process_time()
    worker = RolloutWorker(loop, lambda _: LookupEnv(toolset), max_concurrency=episodes)
    group = await worker.play(RolloutRequest(group_id="g", row=0, n=episodes, seed=0))
    seconds = time.process_time() - started
    for trajectory in group.trajectories:
        assert trajectory.stop_reason is StopReason.MAX_TURNS, trajectory.error
        assert trajectory.num_turns == turns
        assert not trajectory.failures
    starts = engine.turn_starts
    spans = [after - before for before, after in itertools.pairwise(starts)]
    early, late = statistics.median(spans[1:6]), statistics.median(spans[-6:-1])
    observed = group.trajectories[0].segments[3]
    return episodes * turns / seconds, late / early, len(call), observed.end - observed.start + 1


async def run_bare(tokenizer: Any, episodes: int, turns: int, text: str) -> float:
    """Return turns/s of the minimum that any loop must do: encode new text and extend a list."""
    backend = tokenizer.backend_tokenizer
    call = tokenizer(CALL, add_special_tokens=False).input_ids
    new = f"\n<|im_start|>user\n<tool_response>\n{text}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"

    async def episode() -> list[int]:
        ids: list[int] = []
        for _ in range(turns):
            await asyncio.sleep(0)
            ids.extend(call)
            ids.extend(backend.encode(new, add_special_tokens=False).ids)
        return ids

    started = time.process_time()
    await asyncio.gather(*(episode() for _ in range(episodes)))
    return episodes * turns / (time.process_time() - started)


PARTS = {
    "rendering/parsing": "parsing",
    "rendering/formats": "parsing",
    "rendering": "rendering and encoding",
    "tools": "tool calls",
    "episodes/tool_calls": "tool calls",
    "registry": "tool calls",
    "types": "trajectory",
    "episodes": "agent loop",
    "engines": "engine that answers at once",
    "process": "agent loop",
}
"""Start of a path below the package -> part of a turn. The longest start counts."""


def part_of(frame: FrameType | None) -> tuple[str, str]:
    """Return the part of a turn to which the innermost frame of the package belongs, and its function."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and not {"benchmarks", "site-packages"} & set(path.parts):
            below = path.relative_to(ROOT)
            below = below.relative_to("agentloop") if below.parts[0] == "agentloop" else below
            start = max((start for start in PARTS if str(below).startswith(start)), key=len, default=None)
            return (PARTS[start] if start else str(below.parent)), f"{below}:{frame.f_code.co_name}"
        if path == Path(__file__):
            return "benchmark", f"{path.name}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "asyncio", "asyncio"


def profile(tokenizer: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Return the share of processor time of each part of a turn, and of the functions that take most."""
    parts: Counter[str] = Counter()
    functions: Counter[str] = Counter()

    def sample(_: int, frame: FrameType | None) -> None:
        part, function = part_of(frame)
        parts[part] += 1
        functions[function] += 1

    text = result_text(tokenizer, 14)
    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
    rate = asyncio.run(run_loop(tokenizer, args.episodes, args.turns, text))[0]
    signal.setitimer(signal.ITIMER_PROF, 0)
    samples = parts.total()
    return {
        "turns_per_second_while_profiled": round(rate),
        "samples": samples,
        "parts": {name: round(count / samples, 3) for name, count in parts.most_common()},
        "functions": {name: round(count / samples, 3) for name, count in functions.most_common(25)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=1024)
    parser.add_argument("--turns", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    tokenizer = load_tokenizer()
    if args.profile:
        print(results_file.write("loop_overhead_profile", profile(tokenizer, args)).read_text())
        return
    cases = {}
    for name, observed in (("14 observed tokens", 14), ("420 observed tokens", 420)):
        text = result_text(tokenizer, observed)
        runs, bare = [], []
        for _ in range(args.repeats):
            bare.append(asyncio.run(run_bare(tokenizer, args.episodes, args.turns, text)))
            runs.append(asyncio.run(run_loop(tokenizer, args.episodes, args.turns, text)))
        best = max(runs)
        cases[name] = {
            "sampled_tokens_a_turn": best[2],
            "observed_tokens_a_turn": best[3],
            "turns_per_second": round(best[0]),
            "turns_per_second_all_runs": [round(run[0]) for run in runs],
            "bare_loop_turns_per_second": round(max(bare)),
            "share_of_bare_loop": round(best[0] / max(bare), 3),
            "last_turn_over_turn_2": round(statistics.median(run[1] for run in runs), 3),
        }
        print(name, cases[name])
    path = results_file.write("loop_overhead", {"episodes": args.episodes, "turns": args.turns, "cases": cases})
    print("written to", path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
    short = cases["14 observed tokens"]["turns_per_second"] < 10_000
    growing = any(case["last_turn_over_turn_2"] > 1.2 for case in cases.values())
    if short or growing:
        sys.exit("below the target: 10,000 turns/s with 14 observed tokens, last turn at most 1.2 times turn 2")


if __name__ == "__main__":
    main()
