"""Guess a number, and below /tools an environment of MCP tools, served by the real openenv package: `server.py PORT`,
run in a virtual environment of its own."""

import base64
import random
import sys
import time

import uvicorn
from fastapi import FastAPI
from fastmcp import FastMCP
from fastmcp.utilities.types import Image
from openenv.core.env_server.http_server import HTTPEnvServer
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, Observation, State
from pydantic import field_validator

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Guess(Action):
    number: int
    note: str = ""

    @field_validator("number")
    @classmethod
    def _lucky(cls, number: int) -> int:
        from pydantic_core import PydanticCustomError

        if number == 13:
            raise PydanticCustomError("unlucky", "13 is unlucky")
        return number


class Hint(Observation):
    hint: str
    guesses: int


class Guessing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed=None, episode_id=None, highest: int = 9, **_):
        self._number = random.Random(seed).randrange(highest + 1)
        self._guesses = 0
        return Hint(hint=f"Guess a number from 0 to {highest}.", guesses=0)

    def step(self, action: Guess, timeout_s=None, **_):
        self._guesses += 1
        if action.note == "raise":
            raise RuntimeError("boom")
        if action.note == "sleep":
            time.sleep(5)
        is_right = action.number == self._number
        reward = None if action.note == "unscored" else 1.0 if is_right else -0.1
        hint = "right" if is_right else "higher" if action.number < self._number else "lower"
        return Hint(hint=hint, guesses=self._guesses, reward=reward, done=is_right)

    @property
    def state(self) -> State:
        return self._state


class Notebook(MCPEnvironment):
    """Tools around a list of numbers that each session has for itself."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        mcp = FastMCP("notebook")
        self._numbers: list[int] = []
        self._state = State()

        @mcp.tool
        def note(number: int) -> str:
            """Write a number down.

            Args:
                number: What to write.
            """
            if number < 0:
                raise ValueError("no negative numbers")
            self._numbers.append(number)
            return f"{len(self._numbers)} noted"

        @mcp.tool
        def total() -> int:
            """Add up what was written down."""
            return sum(self._numbers)

        @mcp.tool
        def picture() -> Image:
            """A pixel."""
            return Image(data=PIXEL, format="png")

        super().__init__(mcp)

    def reset(self, seed=None, episode_id=None, start: int = 0, **_):
        self._numbers[:] = [start]
        return Observation(done=False)

    def _step_impl(self, action, timeout_s=None, **_):
        raise RuntimeError("no such action")

    @property
    def state(self) -> State:
        return self._state


tools = FastAPI()
HTTPEnvServer(Notebook, CallToolAction, CallToolObservation, max_concurrent_envs=4).register_routes(tools)
app = FastAPI()
app.mount("/tools", tools)
HTTPEnvServer(Guessing, Guess, Hint, max_concurrent_envs=2).register_routes(app)

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
