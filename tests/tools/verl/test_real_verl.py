"""With the package verl itself: a tool that is based on its class, and its own reward functions."""

import os
import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import asyncio, sys, time

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse

class Echo(BaseTool):
    async def execute(self, instance_id, parameters, **kwargs):
        assert isinstance(self.tool_schema, OpenAIFunctionToolSchema)
        return ToolResponse(text=parameters["words"][0] + self.config["suffix"]), 0.25, {}

async def main(config):
    from agentloop.envs.rewards import load_reward
    from agentloop.types.messages import ToolCall
    from agentloop.tools import registry
    from agentloop.tools.toolset import Toolset
    from agentloop.types.trajectory import Trajectory

    toolset = Toolset(registry.load_all("agentloop.tools.verl.config:VerlTools", config=config))
    (schema,) = toolset.schemas
    assert schema["function"]["parameters"]["properties"]["words"]["items"] == {"type": "string"}
    sessions = toolset.sessions("one", {}, 0, [], None)
    result = await sessions.call(ToolCall("echo", {"words": ["hello"]}, "call_0"), time.monotonic() + 60)
    assert (result.content, result.reward) == ("hello!", 0.25), result
    assert await sessions.close() == []

    reward = load_reward("verl", {"function": "verl.utils.reward_score:default_compute_score"})
    said = [{"role": "user", "content": "6 * 7?"}, {"role": "assistant", "content": "It is #### 42"}]
    row = {"data_source": "openai/gsm8k", "answer": "42"}
    assert await reward(Trajectory(messages=said), row) == 1.0
    assert await reward(Trajectory(messages=said), {**row, "answer": "41"}) == 0.0

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
"""

_CONFIG = """
tools:
  - class_name: echo_tool.Echo
    config: {type: native, suffix: "!"}
    tool_schema:
      type: function
      function:
        name: echo
        description: Say it again.
        parameters:
          type: object
          properties: {words: {type: array, items: {type: string}, description: What to say.}}
          required: [words]
"""


def test_tools_and_rewards_of_the_verl_package_work(verl_package: Path, tmp_path: Path):
    (tmp_path / "echo_tool.py").write_text(_SCRIPT)
    (tmp_path / "tools.yaml").write_text(_CONFIG)
    done = subprocess.run(
        [sys.executable, "echo_tool.py", "tools.yaml"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{verl_package}:{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
