"""An agent for the tiny task without agentloop: the official clients, and tools of its own."""

import ast
import json
import math
import operator
from functools import cache

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "code_interpreter",
            "description": "Run Python code in a fresh process and return what it prints; the value of a last line "
            "that is an expression is\nprinted too. Nothing is kept between calls.",
            "parameters": {
                "properties": {"code": {"description": "Python code to run", "type": "string"}},
                "additionalProperties": False,
                "required": ["code"],
                "type": "object",
            },
        },
    }
]
"""As the warm-up of the model showed them."""
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@cache
def openai_client():
    """Making one takes tens of milliseconds of the event loop."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url="http://of-the-episode", api_key="of-the-episode")


@cache
def anthropic_client():
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(base_url="http://of-the-episode", api_key="of-the-episode")


async def solve(task, model):
    """Play over OpenAI's chat completions."""
    client = openai_client().with_options(base_url=model.base_url, api_key=model.api_key)
    messages = list(task["messages"])
    while True:
        answer = await client.chat.completions.create(model="gpt-5", messages=messages, tools=TOOLS, seed=0)
        said = answer.choices[0].message
        if not said.tool_calls:
            return said.content
        messages.append(said)
        for call in said.tool_calls:
            messages.append({"role": "tool", "tool_call_id": call.id, "content": run(call.function.arguments)})


async def solve_over_messages(task, model):
    """Play over Anthropic's Messages, with streams."""
    client = anthropic_client().with_options(base_url=model.root_url, api_key=model.api_key)
    messages = list(task["messages"])
    tools = [
        {"name": tool["name"], "description": tool["description"], "input_schema": tool["parameters"]}
        for tool in (each["function"] for each in TOOLS)
    ]
    while True:
        asked = {"model": "claude", "max_tokens": 64, "messages": messages, "tools": tools}
        async with client.messages.stream(**asked) as stream:
            said = await stream.get_final_message()
        calls = [block for block in said.content if block.type == "tool_use"]
        if not calls:
            return "".join(block.text for block in said.content if block.type == "text")
        messages.append({"role": "assistant", "content": said.content})
        results = [(call.id, run(json.dumps(call.input))) for call in calls]
        blocks = [{"type": "tool_result", "tool_use_id": name, "content": content} for name, content in results]
        messages.append({"role": "user", "content": blocks})


def run(arguments: str) -> str:
    """What `print(a + b)` and the like would print; the arguments of the call are JSON."""
    try:
        code = json.loads(arguments)["code"]
        call = ast.parse(code).body[-1].value
        assert call.func.id == "print"
        return str(_value(call.args[0]))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _value(node):
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left), _value(right))
        case ast.Call(func=ast.Attribute(value=ast.Name(id="math"), attr="gcd"), args=arguments):
            return math.gcd(*map(_value, arguments))
    raise ValueError(f"{ast.unparse(node)} is not arithmetic")
