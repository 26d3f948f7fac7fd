"""An agent that is a LangGraph graph with a shell. It reads its task from stdin and prints its answer."""

import os
import subprocess
import sys

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

_SYSTEM = "You solve a task in the working directory with the shell. Say what you did when it is done."
_MAX_STEPS = 10_000
"""The gateway limits the turns."""


@tool
def shell(command: str) -> str:
    """Run a shell command in the working directory, for at most two minutes. Returns what it prints and its status."""
    try:
        done = subprocess.run(command, shell=True, capture_output=True, text=True, errors="replace", timeout=120)
    except subprocess.TimeoutExpired:
        return "The command was killed after two minutes."
    return f"{done.stdout}{done.stderr}\nexit status {done.returncode}"


def main() -> None:
    """Run the graph, with streams."""
    model = ChatOpenAI(model=os.environ["OPENAI_MODEL"], streaming=True).bind_tools([shell])

    def think(state: MessagesState) -> dict:
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", ToolNode([shell]))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    messages = [SystemMessage(_SYSTEM), HumanMessage(sys.stdin.read())]
    found = graph.compile().invoke({"messages": messages}, {"recursion_limit": _MAX_STEPS})
    print(found["messages"][-1].text)


if __name__ == "__main__":
    main()
