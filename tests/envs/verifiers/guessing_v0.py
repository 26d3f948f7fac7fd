"""An environment of verifiers' older API, which the package loads: the model guesses a number in several turns."""

import verifiers as vf
from datasets import Dataset


class Guessing(vf.MultiTurnEnv):
    @vf.stop
    async def is_found(self, state):
        return bool(state["trajectory"]) and self.guess(state) == state["answer"]

    async def env_response(self, messages, state, **_):
        return [{"role": "user", "content": "higher" if int(self.guess(state)) < int(state["answer"]) else "lower"}]

    def guess(self, state):
        return state["trajectory"][-1]["completion"][-1].content.strip()


def found(completion, answer, **_):
    return float(completion[-1].content.strip() == answer)


def num_guesses(completion, **_):
    return sum(message.role == "assistant" for message in completion)


def is_a_number(completion, **_):
    if "oops" in completion[-1].content:
        raise ValueError("the judge is broken")
    return 0.5


def load_environment(most=10, max_turns=4, judge=False, group=False):
    rows = [
        {"prompt": [{"role": "user", "content": f"Guess my number below {most}."}], "answer": str(number)}
        for number in range(most)
    ]
    rubric = vf.Rubric(funcs=[found, num_guesses, is_a_number], weights=[1.0, -0.1, 1.0 if judge else 0.0])
    if group:
        rubric.add_reward_func(lambda completions: [0.0 for _ in completions])
    return Guessing(dataset=Dataset.from_list(rows), rubric=rubric, max_turns=max_turns)
