"""An agent of the OpenAI Agents SDK with a shell. It reads its task from stdin and prints its answer."""

import os
import subprocess
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled


@function_tool
def shell(command: str) -> str:
    """Run a shell command in the working directory, for at most two minutes. Returns what it prints and its status."""
    try:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, errors="replace", timeout=120)
    except subprocess.TimeoutExpired:
        return "The command was killed after two minutes."
    return f"{done.stdout}{done.stderr}\nexit status {done.returncode}"


async def main() -> None:
    """Run the agent, with streams."""
    set_tracing_disabled(True)
    agent = Agent(
        name="agent",
        instructions="You solve a task in the working directory with the shell. Say what you did when it is done.",
        model=os.environ["OPENAI_MODEL"],
        tools=[shell],
    )
    run = Runner.run_streamed(agent, sys.stdin.read(), max_turns=None)
    async for _ in run.stream_events():
        pass
    print(run.final_output)


if __name__ == "__main__":
    import asyncio

    asyncio.run(main())
