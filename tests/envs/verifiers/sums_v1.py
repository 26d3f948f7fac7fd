"""An environment of verifiers' v1 API, which the package loads: the model adds numbers, and may be asked again."""

import verifiers.v1 as vf


class Sum(vf.TaskData):
    answer: int
    """The sum."""


class SumTask(vf.Task[Sum, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def is_right(self, trace: vf.Trace) -> float:
        said = trace.assistant_messages[-1].content or ""
        if self.data.answer == 10**9:
            raise ValueError("this answer cannot be judged")
        return 1.0 if str(self.data.answer) in said.split() else 0.25 * ("sum" in said)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.assistant_messages[-1].content or ""))


class SumsConfig(vf.TasksetConfig):
    terms: int = 2


class Sums(vf.Taskset[SumTask, SumsConfig]):
    def load(self):
        for number in range(4):
            terms = [number + place for place in range(self.config.terms)]
            yield SumTask(
                Sum(name=f"sum-{number}", prompt=" + ".join(map(str, terms)) + "?", answer=sum(terms)),
                self.config.task,
            )


__all__ = ["Sums"]
