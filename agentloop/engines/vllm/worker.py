"""Code in vLLM's worker processes: load new weights, and exit with the process that owns the engine."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentloop.engines.vllm import adapters, cpu
from agentloop.engines.vllm.head import keep_logits_float32
from agentloop.engines.vllm.loading.direct_copies import seen_by_reload
from agentloop.engines.vllm.loading.rounding import rounded_copies
from agentloop.weights.checkpoint_names import CheckpointNames
from agentloop.weights.copies import copies_of, is_as_loaded
from agentloop.weights.shelf import CannotMap, MappedWeights, Overwritten
from agentloop.weights.wire import from_json

if TYPE_CHECKING:
    import torch


class WeightReceiver:
    """Mixin of vLLM's worker class (`worker_extension_cls`), called through `collective_rpc`."""

    reload_weights: Any
    get_model: Any
    model_runner: Any
    device: Any
    _agentloop_converter: CheckpointNames
    _agentloop_mapped: MappedWeights | None
    _agentloop_copies: Callable[[], None] | None

    def agentloop_open(self, described: str) -> str:
        """Map the weights described by `to_json` for the next `agentloop_load`; return why this fails, or ''."""
        shared = from_json(described)
        mapped: MappedWeights | None = getattr(self, "_agentloop_mapped", None)
        if mapped is not None and mapped.again(shared):
            return ""
        self._agentloop_mapped, self._agentloop_copies = None, None
        try:
            self._agentloop_mapped = shared.open(self.device)
        except CannotMap as error:
            return str(error)
        return ""

    def agentloop_load(self) -> str:
        """Load the weights opened last; return how: `adapters`, `copies`, `loader`, `reload` or `overwritten`.

        `copies` repeats recorded copies and rounds layers in FP8, `loader` uses the loader of the model, `reload` that
        of vLLM. After `overwritten` the model has weights of mixed versions.
        """
        import torch

        mapped, model = self._agentloop_mapped, self.get_model()
        assert mapped is not None, "opened"
        with torch.inference_mode():
            if self.model_runner.lora_config:
                adapters.load(self.model_runner, mapped)
                way = "adapters"
            elif self._agentloop_copies is not None:
                self._agentloop_copies()
                way = "copies"
            elif self.device.type == "cuda" and is_as_loaded(model):
                self._agentloop_copies = copies_of(model, mapped, self._agentloop_names().converted(mapped))
                way = "loader"
            elif self.device.type == "cuda" and (load := self._agentloop_rounded(mapped)) is not None:
                self._agentloop_copies = load
                load()
                way = "loader"
            else:
                self._agentloop_reload(mapped)
                way = "reload"
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # the shelf may be refilled as soon as this returns
        try:
            mapped.check()
        except Overwritten:
            return "overwritten"  # vLLM passes on only the text of an exception
        return way

    def _agentloop_reload(self, mapped: MappedWeights) -> None:
        """Use vLLM's own reload, but keep the features of images.

        The reload repeats vLLM's processing after loading, such as packing matrices for CPU kernels, and keeps the
        storage that CUDA graphs captured. It also discards image features without informing vLLM's scheduler, so a turn
        in flight would crash the engine core. Keep them, like keys and values; later turns do not use them.
        """
        features = self.model_runner.encoder_cache
        kept = dict(features) if isinstance(features, dict) else {}
        if self.device.type == "cpu":
            cpu.pack_experts_again(self.get_model())
        with seen_by_reload(self.get_model()):
            self.reload_weights(weights_iterator=self._agentloop_names().converted(mapped), is_checkpoint_format=True)
        if kept:
            features.update(kept)
        _pack_tied_heads(self.get_model())

    def _agentloop_rounded(self, mapped: MappedWeights) -> Callable[[], None] | None:
        """Return what loads weights into layers in FP8; None if vLLM's reload has to do it."""
        return rounded_copies(self.get_model(), mapped, self._agentloop_names().converted(mapped))

    def _agentloop_names(self) -> CheckpointNames:
        names: CheckpointNames | None = getattr(self, "_agentloop_converter", None)
        if names is None:
            from vllm.config import set_current_vllm_config

            # vLLM runs some families with classes of transformers, which then need its configuration.
            with set_current_vllm_config(self.model_runner.vllm_config):
                names = self._agentloop_converter = CheckpointNames(self.model_runner.model_config.model)
        return names

    def agentloop_prepare(self, rank: int | None) -> None:
        """Keep logits in float32 from now on, and correct what vLLM computes differently on CPUs.

        `rank` is that of the policy's adapter, if updates bring adapters.
        """
        if rank is not None:
            adapters.install(self.model_runner, rank)
        keep_logits_float32(self.get_model())
        if self.device.type == "cpu":
            cpu.let_generators_rewind(self.model_runner)
            cpu.count_ranks_without_compiling()
            cpu.correct_rotary_embeddings(self.get_model())
            cpu.correct_routers(self.get_model())

    def agentloop_watch(self, owner: int) -> None:
        """Exit when process `owner` exits, and end the engine core in between, because vLLM outlives a killed owner."""
        rendezvous = str(getattr(self, "distributed_init_method", ""))
        file = rendezvous.removeprefix("file://") if rendezvous.startswith("file://") else None
        threading.Thread(target=_end_with, args=(owner, file), name="agentloop-watch", daemon=True).start()


def _pack_tied_heads(model: torch.nn.Module) -> None:
    """Pack LM heads that share the matrix of the embedding again.

    The reload skips such a head, because no weight has its name. On CPUs it would keep the copy of old weights.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for layer in model.modules():
        if isinstance(layer, ParallelLMHead) and hasattr(layer, "cpu_linear"):
            layer.quant_method.process_weights_after_loading(layer)


def _end_with(owner: int, file: str | None) -> None:
    """Exit after `owner` exits. `file` is the rendezvous of the workers, which vLLM removes only on a normal exit."""
    between = os.getppid()  # the engine core, or the owner if the worker lives in the engine core
    try:
        handle = os.pidfd_open(owner)
    except ProcessLookupError:  # it has already exited
        pass
    else:
        select.select([handle], [], [])
    if file is not None:
        with suppress(FileNotFoundError):
            os.unlink(file)
    if between not in (1, owner) and os.getppid() == between:
        os.kill(between, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
