"""A tool for agentloop, as a package of its own."""

from typing import Annotated, Literal

from agentloop import Tool, ToolContext


class Weather(Tool):
    """Current weather of a city."""

    timeout = 5.0

    def __init__(self, celsius: float = 21.0) -> None:
        self.celsius = celsius

    async def call(self, ctx: ToolContext, city: Annotated[str, "City name"], unit: Literal["C", "F"] = "C") -> str:
        degrees = self.celsius if unit == "C" else self.celsius * 9 / 5 + 32
        return f"{city}: {degrees:g} {unit}, sunny"
