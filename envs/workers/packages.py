"""The packages of environments, in the tested versions."""

from __future__ import annotations

from dataclasses import dataclass

from agentloop.errors import UserError, nearest


@dataclass(slots=True, frozen=True)
class Package:
    """A package and the requirements of its virtual environment."""

    requirements: tuple[str, ...]
    """Requirements that pip installs."""
    imports: str
    """Module to import in order to check whether an interpreter has the package."""
    oldest: tuple[int, int]
    """Oldest supported version of Python."""
    newest: tuple[int, int] = (3, 13)
    """Newest tested version of Python."""
    alone: tuple[str, ...] = ()
    """Requirements that pip installs without their dependencies, which are not needed here."""

    @property
    def everything(self) -> tuple[str, ...]:
        return (*self.requirements, *self.alone)


PACKAGES: dict[str, Package] = {
    "reasoning_gym": Package(("reasoning-gym==0.1.25",), "reasoning_gym", (3, 11)),
    "nemo_gym": Package(("nemo-gym==0.4.0",), "nemo_gym", (3, 12)),
    "verifiers": Package(("verifiers==0.4.0", "uv==0.13.9"), "verifiers", (3, 11)),
    "verifiers_v0": Package(("verifiers==0.1.14",), "verifiers", (3, 11)),
    # The rest of its requirements are for its own models and its other tasks.
    "bfcl": Package(("mpmath==1.3.0",), "bfcl_eval", (3, 11), alone=("bfcl-eval==2026.3.23",)),
    # Some games use numpy and chess, which TextArena does not require, and syntax of Python 3.12.
    "textarena": Package(("textarena==0.7.4", "numpy==2.3.5", "chess==1.11.2"), "textarena", (3, 12)),
    # Its mathematics and its crosswords use more than it requires. It refuses Python 3.12.1 and later.
    "gem": Package(
        ("gem-llm==0.1.0", "datasets==5.2.0", "pandas==3.1.1", "pylatexenc==2.10"), "gem", (3, 11), newest=(3, 11)
    ),
    "skyrl_gym": Package(("skyrl-gym==0.4.0",), "skyrl_gym", (3, 11)),
}
"""Name of an environment -> its package."""


def package_named(name: str) -> tuple[str, Package]:
    """Return the name and the package of an environment. The name may have hyphens. Raises `UserError`."""
    found = name.replace("-", "_").lower()
    if found not in PACKAGES:
        raise UserError(
            f"There is no package {name!r} to install.{nearest(found, PACKAGES)} Known: {', '.join(PACKAGES)}."
        )
    return found, PACKAGES[found]
