"""Small terminal tasks: a family draws files, an instruction, a solution and the conditions to check.

They need only the usual shell commands, so the tasks run in any image.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from agentloop.envs.harbor.making.folder import DEFAULT_IMAGE, Step, make_folder, write_task
from agentloop.errors import UserError

_TEXT = (
    "amber anchor apple arrow autumn badge basil beacon birch bronze cabin camel candle canyon cedar cherry "
    "clover cobalt comet copper coral cotton crater desert dragon eagle ember falcon feather fern flint forest "
    "garnet ginger glacier granite harbor hazel heron island ivory jasmine jungle kettle lantern laurel lemon "
    "lilac linen magnet maple marble meadow meteor mirror nectar nickel oasis olive onyx orchid otter panda "
    "pebble pepper plum prism quartz raven reef river rocket saddle scarlet shadow silver spruce summit thistle "
    "timber topaz tulip valley velvet violet walnut willow winter zephyr"
)
WORDS = _TEXT.split()


class Draw(random.Random):
    """Random numbers of one task, and words without repetition: steps must not touch each other's files."""

    def __init__(self, seed: str) -> None:
        super().__init__(seed)
        self._left = self.sample(WORDS, len(WORDS))

    def words(self, count: int) -> list[str]:
        """Return words that were not drawn before."""
        drawn, self._left = self._left[:count], self._left[count:]
        return drawn


Family = Callable[[Draw], Step]


def _lines(items: Sequence[object]) -> str:
    return "".join(f"{item}\n" for item in items)


def _write_line(rng: Draw) -> Step:
    name, word = rng.words(2)
    return Step(
        instruction=f"Write the line {word} to the file {name}.",
        solution=f"echo {word} > {name}",
        expected={name: f"{word}\n"},
    )


def _append_line(rng: Draw) -> Step:
    name, word, *others = rng.words(5)
    return Step(
        instruction=f"Append the line {word} to the file {name}.",
        files={name: _lines(others)},
        solution=f"echo {word} >> {name}",
        expected={name: _lines([*others, word])},
    )


def _copy(rng: Draw) -> Step:
    name, target, *others = rng.words(4)
    text = _lines(others)
    return Step(
        instruction=f"Copy the file {name} to {target}.",
        files={name: text},
        solution=f"cp {name} {target}",
        expected={name: text, target: text},
    )


def _move(rng: Draw) -> Step:
    name, target, *others = rng.words(4)
    return Step(
        instruction=f"Rename the file {name} to {target}.",
        files={name: _lines(others)},
        solution=f"mv {name} {target}",
        expected={target: _lines(others)},
        conditions=[f"[ ! -e {name} ]"],
    )


def _remove(rng: Draw) -> Step:
    name, kept, word = rng.words(3)
    return Step(
        instruction=f"Delete the file {name}. Keep all others.",
        files={name: f"{word}\n", kept: f"{word}\n"},
        solution=f"rm {name}",
        expected={kept: f"{word}\n"},
        conditions=[f"[ ! -e {name} ]"],
    )


def _make_folders(rng: Draw) -> Step:
    outer, inner, name = rng.words(3)
    return Step(
        instruction=f"Make the directory {outer}/{inner} with an empty file {name} in it.",
        solution=f"mkdir -p {outer}/{inner} && touch {outer}/{inner}/{name}",
        expected={f"{outer}/{inner}/{name}": ""},
    )


def _allow_running(rng: Draw) -> Step:
    name, word = rng.words(2)
    text = f"#!/bin/sh\necho {word}\n"
    return Step(
        instruction=f"Make the script {name} executable.",
        files={name: text},
        solution=f"chmod +x {name}",
        expected={name: text},
        conditions=[f"[ -x {name} ]"],
    )


def _link(rng: Draw) -> Step:
    name, target, word = rng.words(3)
    return Step(
        instruction=f"Make {name} a symbolic link to {target}.",
        files={target: f"{word}\n"},
        solution=f"ln -s {target} {name}",
        expected={target: f"{word}\n"},
        conditions=[f'[ "$(readlink {name})" = {target} ]'],
    )


def _sort(rng: Draw) -> Step:
    name, target, *others = rng.words(10)
    return Step(
        instruction=f"Sort the lines of {name} and write them to {target}.",
        files={name: _lines(others)},
        solution=f"sort {name} > {target}",
        expected={name: _lines(others), target: _lines(sorted(others))},
    )


def _count_lines(rng: Draw) -> Step:
    name, target = rng.words(2)
    items = [rng.choice(WORDS) for _ in range(rng.randrange(3, 30))]
    return Step(
        instruction=f"Count the lines of {name} and write the number to {target}.",
        files={name: _lines(items)},
        solution=f"grep -c '' {name} > {target}",
        conditions=[f'[ "$(cat {target} | tr -d " ")" = {len(items)} ]', f"[ ! -L {target} ]"],
    )


def _select(rng: Draw) -> Step:
    name, target, first, second, third = rng.words(5)
    items = [f"{rng.choice((first, second, third))} {rng.randrange(100)}" for _ in range(12)]
    items.append(f"{first} 100")
    return Step(
        instruction=f"Write the lines of {name} that contain {first} to {target}.",
        files={name: _lines(items)},
        solution=f"grep {first} {name} > {target}",
        expected={target: _lines([item for item in items if first in item])},
    )


def _replace(rng: Draw) -> Step:
    name, old, new, other = rng.words(4)
    items = [rng.choice((old, other)) for _ in range(8)] + [old]
    return Step(
        instruction=f"Replace every {old} in the file {name} by {new}.",
        files={name: _lines(items)},
        solution=f"sed s/{old}/{new}/ {name} > {name}.new && mv {name}.new {name}",
        expected={name: _lines([new if item == old else item for item in items])},
        conditions=[f"[ ! -e {name}.new ]"],
    )


def _column(rng: Draw) -> Step:
    name, target, *columns = rng.words(5)
    rows = [[*(rng.choice(WORDS) for _ in range(2)), str(rng.randrange(1000))] for _ in range(8)]
    which = rng.randrange(3)
    table = [columns, *rows]
    return Step(
        instruction=f"{name}.csv is a table. Write its column {columns[which]}, with its name, to {target}.",
        files={f"{name}.csv": _lines([",".join(row) for row in table])},
        solution=f"cut -d , -f {which + 1} {name}.csv > {target}",
        expected={target: _lines([row[which] for row in table])},
    )


def _sum(rng: Draw) -> Step:
    name, target = rng.words(2)
    numbers = [rng.randrange(100) for _ in range(10)]
    return Step(
        instruction=f"Write the sum of the numbers in {name} to {target}.",
        files={name: _lines(numbers)},
        solution=f"awk '{{ total += $1 }} END {{ print total }}' {name} > {target}",
        expected={target: f"{sum(numbers)}\n"},
    )


def _join(rng: Draw) -> Step:
    first, second, target, *others = rng.words(7)
    return Step(
        instruction=f"Write the content of {first}, then that of {second}, to {target}.",
        files={first: _lines(others[:2]), second: _lines(others[2:])},
        solution=f"cat {first} {second} > {target}",
        expected={target: _lines(others)},
    )


def _count_words(rng: Draw) -> Step:
    name, target, *others = rng.words(6)
    items = [rng.choice(others) for _ in range(20)]
    counts = sorted({item: items.count(item) for item in items}.items())
    return Step(
        instruction=f"Count how often each line of {name} occurs. Write 'line count', sorted by line, to {target}.",
        files={name: _lines(items)},
        solution=f"sort {name} | uniq -c | awk '{{ print $2, $1 }}' > {target}",
        expected={target: _lines([f"{word} {count}" for word, count in counts])},
    )


def _archive(rng: Draw) -> Step:
    folder, name, target, word = rng.words(4)
    return Step(
        instruction=f"Pack the directory {folder} as the archive {target}.tar.gz.",
        files={f"{folder}/{name}": f"{word}\n"},
        solution=f"tar -czf {target}.tar.gz {folder}",
        conditions=[f'[ "$(gzip -dc {target}.tar.gz | tar -xOf - {folder}/{name})" = {word} ]'],
    )


def _find(rng: Draw) -> Step:
    target, *others = rng.words(7)
    files = {
        f"{others[number % 2]}/{others[2 + number % 4]}.{rng.choice(('log', 'txt'))}": "x\n" for number in range(7)
    }
    files[f"{others[0]}/{others[1]}.log"] = "x\n"
    found = sorted(path for path in files if path.endswith(".log"))
    return Step(
        instruction=f"Write the paths of all files below here that end in .log, sorted, without ./, to {target}.",
        files=files,
        solution=f"find . -name '*.log' | sed 's#^./##' | LC_ALL=C sort > {target}",
        expected={target: _lines(found)},
    )


def _script(rng: Draw) -> Step:
    name, word = rng.words(2)
    conditions = [f'[ "$(sh {name} {each})" = "{word} {each}" ]' for each in rng.sample(WORDS, 3)]
    return Step(
        instruction=f"Write a shell script {name} that prints {word}, a space and its first argument.",
        solution=f"echo 'echo {word} $1' > {name}",
        conditions=[*conditions, f"[ ! -L {name} ]"],
    )


FAMILIES: dict[int, dict[str, Family]] = {
    1: {
        "allow_running": _allow_running,
        "append_line": _append_line,
        "copy": _copy,
        "link": _link,
        "make_folders": _make_folders,
        "move": _move,
        "remove": _remove,
        "write_line": _write_line,
    },
    2: {
        "column": _column,
        "count_lines": _count_lines,
        "join": _join,
        "replace": _replace,
        "select": _select,
        "sort": _sort,
        "sum": _sum,
    },
    3: {"archive": _archive, "count_words": _count_words, "find": _find, "script": _script},
}
"""Level -> name -> family. Level 1 takes one short command, level 2 one with files to read, level 3 a pipeline."""


def terminal_tasks(
    folder: Path,
    count: int,
    *,
    seed: int = 0,
    levels: Sequence[int] = (1, 2, 3),
    families: Sequence[str] | None = None,
    image: str = DEFAULT_IMAGE,
    max_steps: int = 3,
    separate: float = 0.2,
) -> Iterator[Path]:
    """Write tasks below `folder` and yield their folders; equal arguments give equal tasks.

    One in three has several steps, at most `max_steps`; the share `separate` of those without links has a separate
    verifier box. `families` selects some by name. Raises `UserError` for unknown levels and families, or a folder that
    exists or cannot be created.
    """
    known = {name: family for level in levels for name, family in _level(level).items()}
    if unknown := sorted(set(families or ()) - set(known)):
        raise UserError(f"Unknown families {unknown} for the levels {list(levels)}. Known: {sorted(known)}.")
    make_folder(folder)  # must be new: other tasks in it would be mixed with these
    names = sorted(families or known)
    for number in range(count):
        rng = Draw(f"{seed}/{number}")
        num_steps = rng.randrange(2, max_steps + 1) if max_steps > 1 and rng.random() < 1 / 3 else 1
        chosen = [rng.choice(names) for _ in range(num_steps)]
        steps = [known[name](rng) for name in chosen]
        place = folder / f"{number:05}-{'-'.join(chosen)}".replace("_", "-")
        is_separate = rng.random() < separate and "link" not in chosen  # links of a box are not copied
        yield write_task(place, steps, image=image, separate=is_separate, metadata={"seed": seed})


def _level(level: int) -> dict[str, Family]:
    if level not in FAMILIES:
        raise UserError(
            f"Terminal tasks have no level {level}. Choose from the levels {', '.join(map(str, sorted(FAMILIES)))}."
        )
    return FAMILIES[level]
