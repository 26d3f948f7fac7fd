"""Seeded turns with chunked prompts on CPUs: vLLM rewinds the generator of a turn, which only those of CUDA can do.

vLLM samples a token for each unfinished chunk of a prompt, discards it, and rewinds the generator by one draw.
"""

from __future__ import annotations

from typing import Any

import torch


class _Rewinding(torch.Generator):
    """A generator of the CPU that can return to its state before the last draw."""

    def mark(self) -> None:
        self._before = self.get_state()

    def get_offset(self) -> int:
        return 4  # vLLM sets the offset to this minus 4, the size of one draw on CUDA

    def set_offset(self, offset: int) -> torch.Generator:
        assert offset == 0
        return self.set_state(self._before)


def let_generators_rewind(runner: Any) -> None:
    """Replace the generators of vLLM's model runner, those of requests with a seed, before they are used."""

    def prepare(*_: Any) -> None:
        batch = runner.input_batch
        for index, generator in list(batch.generators.items()):
            if not isinstance(generator, _Rewinding):
                new = _Rewinding()
                new.set_state(generator.get_state())
                batch.generators[index] = runner.requests[batch.req_ids[index]].generator = generator = new
            generator.mark()

    runner.sampler.register_forward_pre_hook(prepare)
