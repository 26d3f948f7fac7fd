"""The same agent as a LangGraph graph, started as a command once an episode."""

import json
import sys

from calculator_agent import TOOLS, run
from langchain_core.messages import ToolMessage
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph

model = ChatOpenAI(model="policy", temperature=0.3, streaming="--stream" in sys.argv).bind_tools(TOOLS)


def think(state: MessagesState):
    return {"messages": [model.invoke(state["messages"])]}


def act(state: MessagesState):
    calls = state["messages"][-1].tool_calls
    return {"messages": [ToolMessage(run(json.dumps(call["args"])), tool_call_id=call["id"]) for call in calls]}


graph = StateGraph(MessagesState)
graph.add_node("think", think)
graph.add_node("act", act)
graph.add_edge(START, "think")
graph.add_conditional_edges("think", lambda state: "act" if state["messages"][-1].tool_calls else END)
graph.add_edge("act", "think")

task = json.load(sys.stdin)
print(graph.compile().invoke({"messages": task["messages"]})["messages"][-1].content)
