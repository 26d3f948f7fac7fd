"""`swe_tasks`: make Harbor tasks from the source of a package, each checked with its solution and with nothing."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from agentloop.boxes.interface.box import BoxProvider
from agentloop.boxes.interface.spec import Image
from agentloop.envs.harbor.check import check_task
from agentloop.envs.harbor.making.folder import make_folder, unwritable
from agentloop.envs.harbor.making.swe.bugs import Bug, Candidate, bug_of, candidates
from agentloop.envs.harbor.making.swe.modifiers.registry import MODIFIERS
from agentloop.envs.harbor.making.swe.packages.fetching import Package, fetch
from agentloop.envs.harbor.making.swe.packages.requirements import pinned, requirements_of
from agentloop.envs.harbor.making.swe.suite import Machine, Runner, Suite
from agentloop.envs.harbor.making.swe.task import write_swe_task
from agentloop.errors import UserError, nearest
from agentloop.process import owned_folders
from agentloop.process.atomic import atomic_folder
from agentloop.process.file_lock import locked

_LEAST_SECONDS = 10.0


def own_python() -> str:
    """Return the version of the Python that runs agentloop."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(slots=True, frozen=True, kw_only=True)
class SweOptions:
    """Options for making tasks from a package."""

    seed: int = 0
    """Seed; equal seeds make equal tasks from equal files, packages and Pythons."""
    python: str = field(default_factory=own_python)
    """Version of Python in the boxes, which this machine must have."""
    runner: Runner = "pytest"
    requires: Sequence[str] = ()
    """Requirements of the tests, beyond those that the package declares."""
    without: Sequence[str] = ()
    """Requirements, by name, that are not installed."""
    modifiers: Sequence[str] = ()
    """Kinds of bugs; empty means all."""
    seconds: float = 120.0
    """Seconds of one run of the tests."""
    agent_seconds: float = 1800.0
    memory_mb: int = 2048
    max_failing: float = 0.5
    """Largest share of the tests that may fail because of a bug."""
    max_tries: int = 40
    """Changes to try for each requested task."""
    concurrent: int = 2
    """Changes to try at once."""


async def swe_tasks(
    package: str,
    folder: Path,
    count: int,
    provider: BoxProvider,
    options: SweOptions | None = None,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> AsyncGenerator[Path, None]:
    """Make `count` tasks of a package below `folder`, and yield the folder of each; fewer if no more bugs are found.

    `package` is NAME==VERSION of the package index, an archive, or a folder. `tell` receives progress messages.
    Raises `UserError` if the package is unavailable or cannot be tested, no bug is found, or the folder cannot be
    written to or has tasks of this package.
    """
    options = options or SweOptions()
    for name in options.modifiers:
        if name not in MODIFIERS:
            raise UserError(f"There is no modifier {name!r}.{nearest(name, MODIFIERS)} There are {sorted(MODIFIERS)}.")
    with _new_or_empty(folder), owned_folders.temporary("agentloop-swe-") as made, contextlib.ExitStack() as claims:
        source: Package = await _in_thread(fetch, package, made / "source")
        prefix = f"{source.name}-{source.version}-"
        claims.enter_context(_claimed(folder, prefix))
        suite = await _suite(source, provider, options)
        stable, took = await _stable_tests(suite, options)
        tell(f"{source.name} {source.version}: {len(stable)} tests pass each time, in {took:.1f} s")
        seconds = min(options.seconds, 3 * took + _LEAST_SECONDS)
        number = 0
        async with aclosing(_bugs(suite, stable, seconds, count, options)) as bugs:
            async for bug in bugs:
                name = f"{prefix}{number:03}-{bug.candidate.modifier.replace('_', '-')}"
                with tempfile.TemporaryDirectory(dir=made) as scratch:
                    if await _write_checked(Path(scratch, name), suite, bug, options, tell):
                        await _in_thread(_keep, Path(scratch, name), folder / name)
                        yield folder / name
                        number += 1
                if number == count:
                    break
        if not number:
            raise UserError(
                f"No bug was found in {source.name} {source.version}: of the changes tried, none made between one test "
                f"and {options.max_failing:.0%} of {len(stable)} tests fail. Its tests may not reach its code: choose "
                "another package, or allow more --modifier."
            )


async def _in_thread(work: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Run blocking work. If the caller is cancelled, wait for its end: it uses a folder that is then removed."""
    running = asyncio.create_task(asyncio.to_thread(work, *arguments, **options))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def _keep(made: Path, folder: Path) -> None:
    with atomic_folder(folder) as new:
        shutil.copytree(made, new, dirs_exist_ok=True)


@contextmanager
def _new_or_empty(folder: Path) -> Iterator[None]:
    """Create a folder before the work begins; afterwards remove it if it was new and got no tasks."""
    is_new = not folder.exists()
    make_folder(folder, may_exist=True)
    try:
        yield
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # it has tasks
                folder.rmdir()


@contextmanager
def _claimed(folder: Path, prefix: str) -> Iterator[None]:
    """Hold the names with a prefix in a folder: two makers at once would mix their tasks.

    Raises `UserError` if another process holds them, tasks have such names, or the folder cannot be written to.
    """
    path = folder / f".{prefix}lock"

    def in_use(who: str, advice: str) -> UserError:
        return UserError(
            f"Another process is making tasks named {prefix}… in {folder} ({who}): choose another folder, or wait for "
            f"its end{advice}."
        )

    with contextlib.ExitStack() as claim:
        try:
            claim.enter_context(locked(path, in_use))
        except OSError as error:
            raise unwritable(folder, error) from error
        try:
            if any(each.name.startswith(prefix) for each in folder.iterdir()):
                raise UserError(f"{folder} has tasks named {prefix}… already: choose another folder, or remove them.")
            yield
        finally:
            path.unlink(missing_ok=True)


async def _suite(source: Package, provider: BoxProvider, options: SweOptions) -> Suite:
    declared = requirements_of(source, options.python)
    names, left_out = set(map(_name, declared)), set(map(canonicalize_name, options.without))
    if unknown := sorted(left_out - names):
        raise UserError(
            f"The tests of {source.name} have no requirement {unknown[0]!r} to leave out: correct --without, or remove "
            f"it.{nearest(unknown[0], names)} Their requirements: {', '.join(sorted(names)) or 'none'}."
        )
    wanted = [each for each in declared if _name(each) not in left_out]
    wanted += [*options.requires, *(["pytest"] if options.runner == "pytest" else [])]
    pins = await asyncio.to_thread(pinned, wanted, options.python, without=source.name)
    image = f"builtin:python{options.python}" + (f"[{','.join(pins)}]" if pins else "")
    machine = Machine(image=image, memory_mb=options.memory_mb)
    await provider.prepare(Image(reference=image))
    return Suite(source, machine, provider, options.runner)


def _name(requirement: str) -> str:
    return canonicalize_name(Requirement(requirement).name)


async def _stable_tests(suite: Suite, options: SweOptions) -> tuple[frozenset[str], float]:
    """Return the tests that pass in two runs with different hashes, alone, and the seconds of a run.

    A test with parameters from a set may have names that contain their positions. Hashes change these, some of them in
    spite of a seed, so no name of such a test is kept.
    """
    name = suite.package.name
    first = await suite.run(suite.plan(seconds=options.seconds))
    if first.timed_out:
        raise UserError(f"The tests of {name} take longer than {options.seconds:g} s: raise --seconds.")
    if not first.passed:
        raise UserError(
            f"No test of {name} passes in a box without a network. Add missing packages with --requires. The output of "
            f"the tests ends with:\n{first.output}"
        )
    begin = time.monotonic()
    second = await suite.run(suite.plan(seconds=options.seconds, chosen=sorted(first.passed), hash_seed=1))
    missing = first.passed - second.passed - second.failed.keys()
    changing = {_without_parameters(test) for test in missing}
    stable = frozenset(test for test in first.passed & second.passed if _without_parameters(test) not in changing)
    if not stable:
        raise UserError(f"No test of {name} passes twice: choose another package.")
    return stable, time.monotonic() - begin


def _without_parameters(test: str) -> str:
    return test.partition("[")[0]


async def _bugs(
    suite: Suite, stable: frozenset[str], seconds: float, count: int, options: SweOptions
) -> AsyncGenerator[Bug, None]:
    """Yield bugs in the order of their candidates, independent of the number that is tried at once."""
    package = suite.package
    sources = package.layout.sources(package.folder)
    copies = await suite.sound_copies()
    modifiers = options.modifiers or list(MODIFIERS)
    # The name is part of the seed: packages of one folder get different kinds of bugs.
    drawn = candidates(package.folder, sources, modifiers, f"{options.seed}/{package.name}", copies)
    tried = itertools.islice(drawn, count * options.max_tries)

    async def found(candidate: Candidate) -> Bug | None:
        return await bug_of(candidate, suite, stable, seconds=seconds, max_failing=options.max_failing)

    for batch in iter(lambda: list(itertools.islice(tried, options.concurrent)), []):
        for bug in await asyncio.gather(*map(found, batch)):
            if bug is not None:
                yield bug


async def _write_checked(
    folder: Path, suite: Suite, bug: Bug, options: SweOptions, tell: Callable[[str], None]
) -> bool:
    """Write a task, run it with its solution and with nothing, and return whether the rewards are 1 and 0."""
    await _in_thread(
        write_swe_task,
        folder,
        suite,
        bug,
        seed=options.seed,
        seconds=options.seconds,
        agent_seconds=options.agent_seconds,
    )
    finding = await check_task(folder, suite.provider)
    if finding.problems:
        tell(f"left out {folder.name}: {' '.join(finding.problems)}")
    return not finding.problems
