"""Making a sandbox by the name of its level, and the choice that `auto` makes."""

import asyncio
import logging

import pytest

from agentloop import sandboxes
from agentloop.errors import UserError
from agentloop.sandboxes import Execution, Load
from agentloop.sandboxes.levels import registry as levels
from agentloop.sandboxes.levels.auto import Auto
from agentloop.sandboxes.levels.registry import AUTOMATIC, LEVELS


class Fake:
    """A level that works or fails."""

    def __init__(self, name: str, works: bool, **options) -> None:
        self.level, self.works, self.options = name, works, options
        self.closed = False

    async def start(self) -> None:
        await asyncio.sleep(0)
        if not self.works:
            raise UserError(f"{self.level} is missing something.")

    async def run(self, execution, *, max_queue_seconds=float("inf")):
        return f"{self.level} ran {execution.code}"

    def load(self) -> Load:
        return Load(slots=7, busy=0, waiting=0, sessions=0)

    async def close(self) -> None:
        self.closed = True


@pytest.fixture
def machine(monkeypatch):
    """Return a function that sets which levels work and returns the sandboxes that are made."""
    made: list[Fake] = []

    def with_levels(*working: str) -> list[Fake]:
        def create(level, options):
            made.append(Fake(level.name, level.name in working, **options))
            return made[-1]

        monkeypatch.setattr(levels.Level, "create", create)
        return made

    return with_levels


@pytest.mark.parametrize(
    ("working", "chosen"),
    [
        (["slots", "bubblewrap", "docker", "landlock"], "slots"),
        (["bubblewrap", "docker", "landlock"], "bubblewrap"),
        (["docker", "landlock"], "docker"),
        (["landlock"], "landlock"),
    ],
)
async def test_auto_selects_the_first_working_level(machine, working, chosen):
    machine(*working)
    sandbox = sandboxes.create("auto")
    assert sandbox.level == "auto"
    assert await sandbox.run(Execution(code="x")) == f"{chosen} ran x"
    assert sandbox.level == chosen
    assert sandbox.load().slots == 7


async def test_auto_raises_if_no_level_works_and_never_selects_none(machine):
    made = machine("none")
    with pytest.raises(UserError) as caught:
        await sandboxes.create("auto").start()
    for level in AUTOMATIC:
        assert f"{level.name} is missing something." in str(caught.value)
    assert "none" not in [sandbox.level for sandbox in made]


async def test_auto_reports_its_choice_and_warns_of_a_weaker_level(machine, caplog):
    caplog.set_level(logging.INFO, "agentloop.sandboxes.levels.auto")  # a daemon of another test may have left its own
    machine("slots")
    await sandboxes.create("auto").start()
    machine("landlock")
    await sandboxes.create("auto").start()
    strong, weak = caplog.records
    assert (strong.levelname, weak.levelname) == ("INFO", "WARNING")
    assert "Sandbox level: slots" in strong.getMessage()
    assert "Sandbox level: landlock" in weak.getMessage()
    assert "slots is missing something." in weak.getMessage()


async def test_auto_selects_once_and_closes_its_choice(machine):
    made = machine("slots")
    sandbox = sandboxes.create("auto")
    await asyncio.gather(*[sandbox.run(Execution(code="x")) for _ in range(5)])
    await sandbox.close()
    await sandbox.close()
    assert [fake.closed for fake in made] == [False, True], "the first was made to look at the options"


@pytest.mark.slow
async def test_auto_tries_only_levels_that_take_every_option(machine):
    made = machine("landlock")
    await sandboxes.create("auto", slots=3, packages=["pydantic"]).start()
    assert {sandbox.level for sandbox in made} == {"slots", "bubblewrap", "landlock"}
    assert all(sandbox.options == {"slots": 3, "packages": ["pydantic"]} for sandbox in made)
    with pytest.raises(UserError, match=r"slots is missing something.*bubblewrap, docker, landlock lack .* preload"):
        await sandboxes.create("auto", preload=["numpy"]).start()
    with pytest.raises(UserError, match="No sandbox level takes the options preload, image together"):
        sandboxes.create("auto", preload=["numpy"], image="x")


@pytest.mark.slow
@pytest.mark.parametrize("level", ["auto", "slots"])
async def test_a_misspelt_module_ends_the_start(level):
    with pytest.raises(
        UserError, match=r"'nump' of preload cannot be imported .* No module named 'nump'.*Correct"
    ) as caught:
        await sandboxes.create(level, preload=["nump"]).start()
    assert "Linux" not in str(caught.value)


def test_unknown_option_raises():
    with pytest.raises(UserError, match=r"no option 'memroy_mb'.*Did you mean 'memory_mb'"):
        sandboxes.create("auto", memroy_mb=1)
    with pytest.raises(UserError, match=r"'slots' has no option 'image'.*Options it takes: binds"):
        sandboxes.create("slots", image="x")


def test_invalid_value_raises_before_any_level_is_tried():
    with pytest.raises(UserError, match=r"'nunpy'.*not installed"):
        sandboxes.create("auto", packages=["nunpy"])
    with pytest.raises(UserError, match="slots must be at least 1"):
        sandboxes.create("auto", slots=0)


def test_unknown_level_raises_with_a_list_of_levels():
    with pytest.raises(UserError, match=r"'slot'.*Did you mean 'slots'.*auto, slots, bubblewrap, docker, landlock"):
        sandboxes.create("slot")


def test_every_level_can_be_created_and_describes_its_use():
    for name in LEVELS:
        level = LEVELS.get(name)
        assert sandboxes.create(name, slots=1).level == name
        assert level.protects
        assert level.needs


@pytest.mark.slow
async def test_default_level_runs_code():
    sandbox = sandboxes.create()
    assert (await sandbox.run(Execution(code="print(6 * 7)"))).stdout == "42\n"
    assert sandbox.level in LEVELS
    assert Auto().load() == Load(slots=0, busy=0, waiting=0, sessions=0)
    await sandbox.close()
