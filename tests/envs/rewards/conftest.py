import pytest

from agentloop.types.trajectory import Trajectory


def _turn(said) -> dict:
    """A turn as a test says it: its text, or (thinking, text)."""
    if isinstance(said, str):
        return {"role": "assistant", "content": said}
    reasoning, content = said
    return {"role": "assistant", "content": content, "reasoning_content": reasoning}


@pytest.fixture
def episode():
    """An episode with these turns; a tool answers each but the last. `succeeded`: tool -> successful calls."""

    def make(*turns, succeeded=None, question="What is it?"):
        messages = [{"role": "user", "content": question}]
        for said in turns:
            if len(messages) > 1:
                messages[-1]["tool_calls"] = [{"id": "1", "type": "function", "function": {"name": "t"}}]
                messages.append({"role": "tool", "content": "done", "tool_call_id": "1"})
            messages.append(_turn(said))
        metrics = {f"succeeded/{tool}": float(n) for tool, n in (succeeded or {}).items()}
        return Trajectory(messages=messages, turn_rewards=[0.0] * len(turns), metrics=metrics)

    return make
