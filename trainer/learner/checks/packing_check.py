"""The check `packed_equals_alone`: packed rows have the log-probabilities that transformers computes for each sequence.

A learner packs several sequences into one row. Attention knows where each begins. Recurrent and convolution layers do
not: they would silently train on wrong log-probabilities. So the learner probes each model when it loads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from agentloop.errors import UserError, raised
from agentloop.trainer.batch.train_batch import Sample
from agentloop.trainer.learner.checks.first_difference import first_difference, record
from agentloop.trainer.learner.checks.probe_conditions import attention_of, probing
from agentloop.trainer.learner.micro_batch import MicroBatch
from agentloop.trainer.model.attention import packed as attention
from agentloop.trainer.model.attention.sequence_parallel import SequenceGroup
from agentloop.trainer.model.packed_lm import PackedCausalLM
from agentloop.trainer.model.row_layout import Unit

NAME = "packed_equals_alone"
TOLERANCE = 2e-3
"""Largest difference in nats, in float32. Rounding was 4e-5 with 28 layers; the smallest leak found was 0.02."""

_LENGTHS = (5, 23, 9)
"""Tokens of each sequence. Their sum is a prime, so that no other dimension of a tensor equals that of tokens."""
_PREFIX = 4
"""Tokens of the prefix that the second and third sequence share."""
_ERRORS = (AttributeError, TypeError, NotImplementedError, RuntimeError, ValueError, LookupError)
"""Exceptions that models raise for calls that they do not support."""


@contextmanager
def refusing(model_type: str) -> Iterator[None]:
    """Turn exceptions from an untested model into a `UserError` that it cannot be trained."""
    try:
        yield
    except (UserError, torch.OutOfMemoryError):
        raise
    except _ERRORS as error:
        raise UserError(
            f"The model {model_type} cannot be trained: a forward on its packed rows raised "
            f"{raised(error)}. Train another model."
        ) from error


def check(policy: PackedCausalLM, *, shares_prefixes: bool = False, sequence: SequenceGroup | None = None) -> None:
    """Compare rows as the learner packs them, in training mode, with plain transformers on each sequence.

    Every rank calls it with an unsharded model; the ranks of `sequence` share rows. Raises `UserError` with the type of
    the layer at which the two diverge.
    """
    model: Any = policy.model
    device = next(model.parameters()).device
    probe = _Probe(policy, device)
    with probing(model, policy.layers(), device), refusing(model.config.model_type):
        model.eval()
        want = probe.plain()
        model.train()
        found = [probe.row()]
        if shares_prefixes:
            found.append(probe.row(share=True))
        if sequence is not None:
            found.append(probe.row(sequence=sequence))
        if not all(_distance(got, want) <= TOLERANCE for got in found):
            _Diagnosis(probe, want).explain(found)


class _Probe:
    """Three short sequences, and each way to compute their log-probabilities."""

    def __init__(self, policy: PackedCausalLM, device: torch.device) -> None:
        self.policy, self.device = policy, device
        self.model: Any = policy.model
        self._name = attention.register("sdpa")  # other kernels do not support float32
        words = _ordinary_words(self.model.config)
        ids = np.random.default_rng(0).choice(words, sum(_LENGTHS)).astype(np.int32)
        first, second, third = np.split(ids, np.cumsum(_LENGTHS)[:-1])
        third[:_PREFIX] = second[:_PREFIX]
        self.samples = [_sample(first), _sample(second, _PREFIX), _sample(third, _PREFIX)]

    def plain(self, samples: Sequence[Sample] | None = None) -> Tensor:
        """Return the log-probabilities that plain transformers computes, one sequence at a time."""
        found = []
        with attention_of(self.model, "eager"):
            for sample in self.samples if samples is None else samples:
                ids = torch.from_numpy(sample.token_ids).long().to(self.device)
                logits = self.model(input_ids=ids[None], use_cache=False).logits[0].float()
                chosen = logits.log_softmax(-1)[:-1].gather(1, ids[1:, None])[:, 0]
                found.append(chosen[torch.from_numpy(sample.loss_mask[1:]).to(self.device)])
        return torch.cat(found)

    def alone(self) -> Tensor:
        """Return the log-probabilities that the learner computes with each sequence in a row of its own."""
        return torch.cat([self.row([sample]) for sample in self.samples])

    def row(
        self,
        samples: Sequence[Sample] | None = None,
        *,
        share: bool = False,
        sequence: SequenceGroup | None = None,
    ) -> Tensor:
        """Return the log-probabilities of one row; with `share` it has the prefix of the last two sequences once."""
        samples = self.samples if samples is None else samples
        units = None
        if share:
            first, second, third = map(len, samples)
            units = [Unit([0], 0, first), Unit([1, 2], _PREFIX, second + third - _PREFIX)]
        micro = MicroBatch.of(samples, [0.0] * len(samples), self.device, units=units)
        if sequence is not None:
            micro = micro.own_part(sequence)
        name = self._name if sequence is None else attention.register("sdpa", sequence)
        with attention_of(self.model, name):
            _, logprobs, _ = self.policy(micro.input_ids, micro.row, micro.positions, micro.targets, 1.0)
        if sequence is None or micro.part is None:
            return logprobs.detach().float()
        return sequence.assemble(logprobs.detach().float(), micro.part.places, len(micro.part.tokens))


class _Diagnosis:
    """Finds why a row differs from plain transformers, and at which layer."""

    def __init__(self, probe: _Probe, want: Tensor) -> None:
        self._probe, self._want = probe, want
        self._model: Any = probe.model

    def explain(self, found: Sequence[Tensor]) -> NoReturn:
        """Raise a `UserError` with the first cause; `found` are the log-probabilities of rows in training mode."""
        probe, want, second = self._probe, self._want, self._probe.samples[1]
        start, total = _LENGTHS[0], sum(_LENGTHS)
        self._model.eval()
        alone = partial(probe.row, [second])
        if (off := _distance(probe.alone(), want)) > TOLERANCE:
            layer = self._first(alone, partial(probe.plain, [second]), 0, len(second))
            self._refuse("differs between the learner and plain transformers", layer, off)
        if (off := _distance(probe.row(), want)) > TOLERANCE:
            layer = self._first(probe.row, alone, start, total)
            self._refuse("computes the sequences of a packed row differently from each alone", layer, off)
        self._model.train()
        if (off := _distance(probe.alone(), want)) > TOLERANCE:
            training = record(self._model, alone)
            self._model.eval()
            layer = first_difference(self._model, training, record(self._model, alone), 0, len(second))
            self._refuse_randomness(layer, off)
        off = max(_distance(got, want) for got in found)
        option = "share_prefixes" if len(found) > 1 and _distance(found[1], want) > TOLERANCE else "sequence_parallel"
        fix = f"Leave learner.{option} out" + ("" if option == "sequence_parallel" else " or set it to false")
        self._fail(f"its log-probabilities change with learner.{option}", off, fix)

    def _first(self, row: Any, alone: Any, start: int, total: int) -> str | None:
        return first_difference(self._model, record(self._model, row), record(self._model, alone), start, total)

    def _refuse(self, what: str, layer: str | None, off: float) -> NoReturn:
        if layer is None:
            what, layer = "changes logits in a way that the learner does not support", type(self._model).__name__
        self._fail(f"its layer {layer} {what}", off, "Train a model without such layers")

    def _refuse_randomness(self, layer: str | None, off: float) -> NoReturn:
        settings = self._model.config.get_text_config().to_dict()
        kinds = ("drop", "jitter", "noise")
        nonzero = [name for name, value in settings.items() if any(k in name for k in kinds) and _is_positive(value)]
        fix = f"Set {' and '.join(nonzero)} to 0 in its config.json" if nonzero else "Train another model"
        self._fail(
            f"its layer {layer or type(self._model).__name__} computes different values in training mode", off, fix
        )

    def _fail(self, what: str, off: float, fix: str) -> NoReturn:
        model_type = self._model.config.model_type
        raise UserError(
            f"The model {model_type} cannot be trained: {what}, so that log-probabilities would be off by {off:.2g}. "
            f"{fix}. To train it in spite of that error, set learner.skip_checks=[{NAME}]."
        )


def _distance(got: Tensor, want: Tensor) -> float:
    """Return the largest difference; it is infinite if a value is NaN."""
    off = float((got - want).abs().max())
    return off if off == off else float("inf")


def _sample(ids: np.ndarray, prompt: int = 1) -> Sample:
    mask = np.arange(len(ids)) >= prompt
    return Sample(ids, mask, np.zeros(len(ids), np.float32), np.zeros(len(ids), np.int32))


def _ordinary_words(config: Any) -> np.ndarray:
    """Return ids that are not special: those of images stand for data that a probe does not have."""
    special: set[int] = set()
    text = config.get_text_config()
    for settings in (config.to_dict(), text.to_dict()):
        for name, value in settings.items():
            if name.endswith(("token_id", "token_ids", "token_index")):
                special |= {item for item in (value if isinstance(value, list) else [value]) if isinstance(item, int)}
    words = np.setdiff1d(np.arange(min(text.vocab_size, 1000)), sorted(special))
    return words if len(words) else np.arange(text.vocab_size)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
