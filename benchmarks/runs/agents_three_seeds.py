"""Measure what agents with the official clients learn: held-out reward of the tiny recipe before and after, by seed.

    python -m benchmarks.runs.agents_three_seeds [AGENT ...] [--seeds 3] [--jobs 1] [--threads 1] [--set KEY=VALUE]

An agent of the official clients (tests/agentloop/gateway/agents/calculator_agent.py) plays the tasks with tools of its
own: `messages` with Anthropic's client and streams, `chat` with OpenAI's. All else is as in `agentloop train tiny`.
Prints a table and writes results/agents_three_seeds_AGENT.json.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.runs.recipes_three_seeds import measure, parser_of

_FILE = Path(__file__).parents[2] / "tests" / "agentloop" / "gateway" / "agents" / "calculator_agent.py"
AGENTS = {"messages": "solve_over_messages", "chat": "solve"}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("agents", nargs="*", default=list(AGENTS))
    given = parser.parse_args()
    configs = {
        name: ("tiny", ["env.factory=agent", "env.tools=[]", f"env.options={{agent: '{_FILE}:{AGENTS[name]}'}}"])
        for name in given.agents
    }
    measure("agents_three_seeds", configs, given)


if __name__ == "__main__":
    main()
