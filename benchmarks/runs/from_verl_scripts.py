"""Count verl's launch scripts that `agentloop from-verl` converts, and why the others fail.

    git clone --recurse-submodules https://github.com/verl-project/verl
    python -m benchmarks.runs.from_verl_scripts verl [--show OUTCOME]

Every shell script of the checkout that starts a trainer of verl is converted. The result passes through the checks of
`agentloop train --dry-run` with a small model instead of the script's (64 heads, 96 layers, and 128 experts if experts
are divided), and without datasets, tools and reward. Variables that a script requires get a placeholder. Writes
results/from_verl_scripts.json.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from contextlib import chdir
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agentloop.config.loading import load_config
from agentloop.config.run import RunConfig
from agentloop.errors import UserError
from agentloop.trainer.from_verl import convert
from agentloop.trainer.from_verl.config import visible
from agentloop.trainer.from_verl.launch import read_script
from agentloop.trainer.from_verl.sources import VERSION
from agentloop.trainer.run.checks import check_trainable
from agentloop.trainer.sizing.place import place
from benchmarks import results_file

_SHAPE = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 96, "num_attention_heads": 64,
    "num_key_value_heads": 64, "head_dim": 16, "vocab_size": 1024, "max_position_embeddings": 1 << 20,
}  # fmt: skip
_EXPERTS = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 64}

FOLDERS = ("examples", "recipe", "tests", "verl")
OUTCOMES = {
    "whole": "becomes a config that passes the checks, and nothing that changes results is left out",
    "lacking": "becomes one that passes, and says at its top what is left out",
    "refused": "becomes one that the checks refuse, with a sentence on why",
    "no_rewards": "is no training with rewards: supervised, generation, distillation servers",
    "unread": "starts nothing that could be seen, or names a config that is not there",
}


@dataclass(slots=True)
class Outcome:
    """Outcome of one script."""

    script: str
    outcome: str
    said: list[str] = field(default_factory=list)
    notes: int = 0


def outcome_of(script: Path, root: Path, models: dict[str, Path]) -> Outcome:
    name = str(script.relative_to(root))
    try:
        converted = convert(script, variables=_placeholders(script))
    except UserError as error:
        kind = "no_rewards" if "does not train with rewards" in str(error) else "unread"
        return Outcome(name, kind, _plain([str(error)], root))
    experts = converted.config["learner"].get("expert_parallel", 1) > 1
    try:
        _check(converted.config, models["experts" if experts else "dense"])
    except UserError as error:
        return Outcome(name, "refused", _plain([*converted.lacks, str(error)], root), len(converted.notes))
    kind = "lacking" if converted.lacks else "whole"
    return Outcome(name, kind, _plain(converted.lacks, root), len(converted.notes))


def _plain(said: list[str], root: Path) -> list[str]:
    """Remove the folders of this machine from a message."""
    texts = [text.replace(f"{root}/", "").replace(str(Path.home()), "~") for text in said]
    return [re.sub(r"/\S*/(tmp\w+\.yaml)", "run.yaml", text) for text in texts]


def _check(settings: dict[str, Any], model: Path) -> None:
    """Run the checks that a dry run makes before it loads data."""
    from transformers import AutoConfig

    settings = settings | {"model": str(model), "placement": settings["placement"] | {"gpu": "H100"}}
    if "reference" in settings["learner"]:
        settings["learner"] = settings["learner"] | {"reference": str(model)}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(settings, file)
        file.flush()
        config = load_config(RunConfig, Path(file.name))
    config, _ = place(config, AutoConfig.from_pretrained(model))
    check_trainable(config)


def stand_ins(folder: Path) -> dict[str, Path]:
    """Write folders with the config.json of a model and no weights."""
    from transformers import Qwen3Config, Qwen3MoeConfig

    made = {"dense": Qwen3Config(**_SHAPE), "experts": Qwen3MoeConfig(**_SHAPE, **_EXPERTS)}
    for name, config in made.items():
        config.save_pretrained(folder / name)
    return {name: folder / name for name in made}


def scripts(root: Path) -> list[Path]:
    """Return the scripts that start verl."""
    found = (path for folder in FOLDERS for path in sorted((root / folder).rglob("*.sh")))
    return [path for path in found if _starts_verl(path)]


def _starts_verl(path: Path) -> bool:
    text = path.read_text(errors="replace")
    return bool(re.search(r"verl[./]|recipe[./]|main_ppo", text)) and "actor_rollout_ref" in text


def _placeholders(path: Path) -> dict[str, str]:
    """Return a placeholder for each variable without which a script starts nothing."""
    named: dict[str, str] = {}
    for _ in range(10):
        script = read_script(path, (), visible(named))
        needed = re.match(r"line \d+: (\w+): ", script.complaint)
        if script.launches or needed is None:
            break
        named[needed[1]] = "/placeholder"
    return named


def table(outcomes: list[Outcome]) -> dict[str, dict[str, int]]:
    """Count outcomes by folder."""
    counts: dict[str, Counter[str]] = {}
    for each in outcomes:
        folder = each.script.split("/")[0]
        counts.setdefault(folder, Counter())[each.outcome] += 1
    counts["all"] = sum(counts.values(), Counter())
    return {folder: {name: found[name] for name in OUTCOMES} for folder, found in counts.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--show", choices=OUTCOMES, help="print the messages of scripts with this outcome")
    arguments = parser.parse_args()
    root = arguments.checkout.resolve()
    with tempfile.TemporaryDirectory() as folder, chdir(root):
        models = stand_ins(Path(folder))
        outcomes = [outcome_of(path, root, models) for path in scripts(root)]
    for each in outcomes:
        if each.outcome == arguments.show:
            print(each.script, *each.said, sep="\n    ")
    counts = table(outcomes)
    print(f"{'':10}", *(f"{name:>10}" for name in OUTCOMES))
    for name, found in counts.items():
        print(f"{name:10}", *(f"{found[outcome]:10}" for outcome in OUTCOMES))
    reasons = Counter(re.sub(r"[=:].*", "", said) for each in outcomes for said in set(each.said))
    result = {
        "checkout": _commit(root),
        "defaults_of_verl": VERSION,
        "outcomes": OUTCOMES,
        "counts": counts,
        "said_most_often": dict(reasons.most_common(25)),
        "scripts": [asdict(each) for each in outcomes],
    }
    path = results_file.write("from_verl_scripts", result)
    print(f"wrote {path}")


def _commit(root: Path) -> str:
    run = subprocess.run(["git", "-C", str(root), "log", "-1", "--format=%H %cs"], capture_output=True, text=True)
    return run.stdout.strip() or "no repository"


if __name__ == "__main__":
    main()
