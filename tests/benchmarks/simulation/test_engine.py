import asyncio

import pytest

from agentloop.engines.base import FinishReason, SamplingParams
from agentloop.weights.tensors import TensorWeights
from benchmarks.simulation.engine import SimulatedEngine
from benchmarks.simulation.virtual_clock import VirtualClockLoop

STOP = 9


def run(main):
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        return runner.run(main)


def now():
    return asyncio.get_running_loop().time()


def engine(**options):
    """Says as many tokens as the first id of the prompt; a step takes 1 s, and 1 s more for each request."""

    def script(trajectory_id, turn, prompt, params):
        return [1] * (prompt[0] - 1) + [STOP]

    return SimulatedEngine(script, step_seconds=1.0, request_seconds=1.0, **options)


async def say(engine, num_tokens, name=""):
    params = SamplingParams(max_tokens=1000, stop_token_ids=(STOP,))
    generation = await engine.generate([num_tokens], params, trajectory_id=f"{name}{num_tokens}")
    return now(), list(generation.versions), generation.finish_reason


def test_a_step_takes_longer_the_more_requests_it_has():
    async def main():
        return await asyncio.gather(say(engine_ := engine(), 2), say(engine_, 4))

    # Two steps of 3 s for both, then two of 2 s for the longer one.
    assert run(main()) == [(6.0, [0, 0], FinishReason.STOP), (10.0, [0] * 4, FinishReason.STOP)]


def test_requests_beyond_the_batch_wait_for_their_turn():
    async def main():
        one = engine(max_running=1)
        return [ended for ended, *_ in await asyncio.gather(say(one, 2), say(one, 4), say(one, 1))], one.history

    assert run(main()) == ([4.0, 12.0, 14.0], [(0.0, 1), (14.0, 0)])


def test_new_weights_stop_sampling_and_later_tokens_carry_their_version():
    async def main():
        sampling = engine(update_seconds=7.0)
        turn = asyncio.create_task(say(sampling, 4))
        await asyncio.sleep(5)  # two tokens, and half of the third
        await sampling.update_weights(TensorWeights([]), 3)
        assert now() == 12.0
        return await turn

    assert run(main()) == (15.0, [0, 0, 3, 3], FinishReason.STOP)


def test_a_paused_engine_keeps_its_requests():
    async def main():
        paused = engine()
        turn = asyncio.create_task(say(paused, 2))
        await asyncio.sleep(1)
        await paused.pause()
        late = asyncio.create_task(say(paused, 1))
        await asyncio.sleep(100)
        assert not turn.done()
        await paused.resume()
        return (await turn)[0], (await late)[0]

    # At 101 s three quarters of the first one's work are left, and shared with the second one from then on.
    first, second = run(main())
    assert (first, second) == (pytest.approx(105.0), pytest.approx(104.0))


def test_a_cancelled_request_leaves_the_batch():
    async def main():
        sampling = engine()
        cancelled, other = asyncio.create_task(say(sampling, 50, "x")), asyncio.create_task(say(sampling, 2))
        await asyncio.sleep(3)
        cancelled.cancel()
        ended = (await other)[0]
        assert sampling.history[-1] == (ended, 0)
        return ended

    assert run(main()) == 5.0


def test_closing_ends_what_runs_as_aborted():
    async def main():
        sampling = engine()
        turn = asyncio.create_task(say(sampling, 50))
        await asyncio.sleep(3)
        await sampling.close()
        return (await turn)[2]

    assert run(main()) is FinishReason.ABORT
