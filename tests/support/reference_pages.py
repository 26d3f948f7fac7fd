"""The pages of docs that are generated from the code."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from agentloop.cli import app
from agentloop.cli.config import Key, keys
from agentloop.config.fine_tuning import FineTuningConfig
from agentloop.envs.agent.harnesses.running import HARNESSES
from agentloop.trainer.run.metrics.names import METRICS

_MADE = "`scripts/reference` writes this page from the code."


def pages() -> dict[str, str]:
    """Return the content of each generated page, by its name in docs/reference/."""
    made = {"config.md": _config(), "fine_tuning.md": _fine_tuning(), "commands.md": _commands()}
    made["metrics.md"] = _metrics()
    made["harnesses.md"] = _harnesses()
    return {name: "\n".join(lines) + "\n" for name, lines in made.items()}


def _harnesses() -> Iterator[str]:
    yield "# Harnesses"
    yield ""
    yield f"Programs that `env.options.harness` starts ([guide](../guides/harnesses.md)). {_MADE}"
    yield "`tests/envs/agent/test_harnesses.py` runs each of them: it edits a file, and its tokens are those sampled."
    yield "For programs that know `compact_at`, `test_compaction.py` beside it forces a compaction."
    yield ""
    yield "| harness | versions | calls | `compact_at` | tested version |"
    yield "|---|---|---|---|---|"
    for name, harness in sorted(HARNESSES.items()):
        row = [f"`{name}`", f"`{harness.versions}`", f"`{harness.speaks}`", "yes" if harness.compacts else "no"]
        yield f"| {' | '.join([*row, f'`{harness.install}`'])} |"


def _config() -> Iterator[str]:
    yield "# Configuration"
    yield ""
    yield f"Every key of a run. `agentloop config KEY` prints one of them. {_MADE}"
    yield ""
    yield "`[]` stands for an item of a list. Relative paths start at the folder of the config file."
    yield from _tables(keys())


def _fine_tuning() -> Iterator[str]:
    yield "# Configuration of sft and dpo"
    yield ""
    yield "Every key of a run of `agentloop sft` or `agentloop dpo` that is not the same in [a run](config.md) of"
    yield f"`agentloop train`; sections that are the same are left out. {_MADE}"
    known = set(keys())
    yield from _tables(key for key in keys(FineTuningConfig) if key not in known)


def _tables(found: Iterable[Key]) -> Iterator[str]:
    is_in_table = False
    for key in found:
        if key.is_section:
            yield ""
            yield f"## {key.name}"
            yield ""
            yield key.help
            is_in_table = False
            continue
        if not is_in_table:
            yield ""
            yield "| key | type | default | meaning |"
            yield "|---|---|---|---|"
            is_in_table = True
        default = f"`{_cell(key.default)}`" if key.default else "must be set"
        yield f"| `{key.name}` | {_cell(key.type)} | {default} | {_cell(key.help)} |"


def _metrics() -> Iterator[str]:
    yield "# Metrics"
    yield ""
    yield "Every metric of metrics.jsonl, in which each step is a line. `agentloop view RUN` draws them, and loggers"
    yield f"get them too. `*` stands for any text; the first line that matches a name explains it. {_MADE}"
    yield ""
    yield "The bounds in the last column are rules of thumb."
    yield ""
    yield "| metric | unit | meaning | when to worry |"
    yield "|---|---|---|---|"
    for metric in METRICS:
        yield f"| `{metric.name}` | {_cell(metric.unit)} | {_cell(metric.meaning)} | {_cell(metric.worry)} |"


def _commands() -> Iterator[str]:
    yield "# Commands"
    yield ""
    yield f"Every command with its arguments and options. {_MADE}"
    yield ""
    yield "A command exits with 0 if it succeeded, with 1 if it ran but its result is a failure, with 2 and one"
    yield "paragraph on stderr if it cannot be carried out, with 130 after Ctrl-C and with 143 after SIGTERM."
    for name, command in commands():
        yield ""
        yield f"## agentloop {name}"
        yield ""
        yield inspect.cleandoc(command.help or "")
        rows = [_parameter(each) for each in command.params if each.name != "help"]
        if rows:
            yield ""
            yield "| argument or option | default | meaning |"
            yield "|---|---|---|"
            yield from rows


def commands() -> Iterator[tuple[str, TyperCommand]]:
    """Yield the full name and the object of every command, those of groups included."""
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    context: Any = None  # the lists of our groups do not depend on it
    for name in root.list_commands(context):
        lazy = root.get_command(context, name)
        target = lazy.load() if lazy is not None else None
        if isinstance(target, TyperGroup):
            for inner, command in target.commands.items():
                yield f"{name} {inner}", command
        elif target is not None:
            yield name, target


def _parameter(parameter: Any) -> str:
    if isinstance(parameter, TyperOption):
        name = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
    else:
        name = f"`{(parameter.metavar or parameter.name or '').upper()}`"
    help_text = getattr(parameter, "help", "") or ""
    is_flag = getattr(parameter, "is_flag", False)
    shown = "" if parameter.default is None or is_flag or callable(parameter.default) else f"`{parameter.default}`"
    if parameter.required:
        shown = "must be given"
    annotation = parameter.type_descriptor.annotation
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    listed = f" One of {', '.join(map(str, choices))}." if choices else ""
    return f"| {name} | {_cell(shown)} | {_cell(' '.join(help_text.split()) + listed)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
