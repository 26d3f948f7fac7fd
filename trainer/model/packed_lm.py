"""A causal language model as the learner needs it: packed rows in, log-probabilities of the trained tokens out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoConfig

from agentloop.config.learner import CheckpointingName
from agentloop.errors import UserError
from agentloop.trainer.model import layers
from agentloop.trainer.model.attention import packed as attention
from agentloop.trainer.model.attention import tower as tower_attention
from agentloop.trainer.model.attention.packed import PackedRow
from agentloop.trainer.model.attention.sequence_parallel import SequenceGroup
from agentloop.trainer.model.experts.routing import Routing
from agentloop.trainer.model.head.fused_head import ChunkLoss, head_loss
from agentloop.trainer.model.head.logprobs import token_logprobs
from agentloop.trainer.model.image_rows import RowPictures
from agentloop.trainer.model.kernels import softmax
from agentloop.trainer.model.kernels.allowed_tokens import AllowedTokens
from agentloop.trainer.model.kernels.softmax import Softcapped, Vocabulary
from agentloop.trainer.model.recurrent import layers as recurrent_layers
from agentloop.vision.loading import load_language_model, tower_of

_RANDOM = ("drop", "jitter", "noise")
"""Parts of the names of settings that make a model random in training mode."""


class PackedCausalLM(nn.Module):
    """Wraps a transformers model so that its LM head runs only on the positions that predict trained tokens.

    FSDP shards this wrapper, because head and backbone must run inside one forward of the root module.
    """

    def __init__(self, model: nn.Module, *, kernels: bool = False) -> None:
        super().__init__()
        self.model = model
        self.recurrent = recurrent_layers.prepare(model, kernels=kernels)
        self.routing = Routing(model)
        text: Any = model.config.get_text_config()  # type: ignore[union-attr,operator]
        self._logit_scale = _logit_scale(text)
        cap = getattr(text, "final_logit_softcapping", None)
        self._vocabulary: Vocabulary = softmax if cap is None else Softcapped(float(cap))

    def forward(
        self,
        input_ids: Tensor,
        row: PackedRow,
        positions: Tensor,
        targets: Tensor,
        temperature: float,
        chunk_loss: ChunkLoss | None = None,
        pictures: RowPictures | None = None,
        units: NDArray[np.int64] | None = None,
        allowed: AllowedTokens | None = None,
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return the loss, and log-probability and entropy, float32 [num_trained] each.

        `input_ids` [1, num_tokens]; `positions` [num_trained] of the tokens that predict `targets` [num_trained]. With
        `chunk_loss` only the loss is differentiable (`fused_head` explains it and `units`). Without `chunk_loss` the
        loss is None, and the others are differentiable. `allowed` has the masks of constrained tokens.
        """
        self.routing.begin(input_ids.device, row.num_own)
        hidden = hidden_states(self.backbone, input_ids, row, pictures).index_select(0, positions)
        head: Any = self.model.get_output_embeddings()  # type: ignore[operator]
        if self._logit_scale != 1.0:
            hidden = hidden * self._logit_scale
        options: dict[str, Any] = {"temperature": temperature, "vocabulary": self._vocabulary, "allowed": allowed}
        if chunk_loss is None:
            return None, *token_logprobs(hidden, head.weight, targets, **options)
        return head_loss(hidden, head.weight, targets, chunk_loss, units=units, **options)

    @property
    def backbone(self) -> Any:
        """The model without its LM head."""
        found = self.model.base_model
        return found if found is not self.model else self.model.model  # the prefix of Llama 4 names no module

    @property
    def has_sliding_window(self) -> bool:
        """Whether some layer attends only to the nearest tokens, or to those of its chunk."""
        model: Any = self.model
        config = model.config.get_text_config()
        kinds = getattr(config, "layer_types", None) or ()
        is_local = any("sliding" in kind or "chunked" in kind for kind in kinds)
        return is_local or bool(not kinds and getattr(config, "sliding_window", None))

    @property
    def repeats_layers(self) -> bool:
        """Whether one pass runs the same layers several times, as in HRM."""
        model: Any = self.model
        return getattr(model.config.get_text_config(), "num_layers_per_stack", None) is not None

    def layers(self) -> list[nn.Module]:
        """Return the layers of vision tower and decoder in order; each is a unit of sharding."""
        return self._layers_of(self.model)

    def tower_layers(self) -> list[nn.Module]:
        """Return the layers of the vision tower."""
        tower = tower_of(self.model)
        return [] if tower is None else self._layers_of(tower)

    def freeze_vision(self) -> None:
        """Freeze the vision tower. Raises `UserError` if there is none."""
        tower = tower_of(self.model)
        if tower is None:
            raise UserError("learner.freeze_vision is set, but the model has no vision tower. Remove the setting.")
        tower.requires_grad_(False)

    def _layers_of(self, part: nn.Module) -> list[nn.Module]:
        names = set(self.model._no_split_modules or ())  # type: ignore[arg-type]
        return [module for module in part.modules() if type(module).__name__ in names]


def hidden_states(backbone: Any, input_ids: Tensor, row: PackedRow, pictures: RowPictures | None) -> Tensor:
    """Return the hidden states of the last layer, [num_tokens, hidden], for `input_ids` [1, num_tokens]."""
    if pictures is None:
        hidden: Tensor = backbone(input_ids=input_ids, **row.kwargs()).last_hidden_state
    else:
        inputs = row.kwargs() | pictures.inputs(backbone, input_ids)
        hidden = backbone.language_model(**inputs).last_hidden_state
    return hidden[0]


def _logit_scale(config: Any) -> float:
    """Return the factor between the output of the LM head and the logits of a model."""
    divisor = getattr(config, "logits_scaling", None)  # Granite
    factors = (getattr(config, name, None) for name in ("logit_scale", "lm_head_multiplier"))  # Cohere; Falcon-H1
    scale = 1.0 if divisor is None else 1.0 / divisor
    for factor in factors:
        scale *= 1.0 if factor is None else float(factor)
    return scale


def _without_randomness(model: nn.Module) -> None:
    """Set all probabilities of dropout and sizes of noise to 0, including those in attributes of layers."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and any(part in name for part in _RANDOM):
                setattr(module, name, 0.0)


def load_packed_lm(
    folder: Path,
    dtype: torch.dtype,
    *,
    kernel: str = "sdpa",
    checkpointing: CheckpointingName = "off",
    compiled: bool = False,
    sequence: SequenceGroup | None = None,
    adapt: Callable[[PackedCausalLM], None] | None = None,
    key: str = "model",
) -> PackedCausalLM:
    """Load a causal language model from a Hugging Face folder, in training mode and without dropout.

    `kernel` is the result of `choice.choose`. The ranks of `sequence` share each row. `adapt` changes the modules
    before layers are prepared. The other options are those of `layers.prepare`. Raises `UserError` if the folder cannot
    be loaded, or if it cannot be divided over the ranks of `sequence`; `key` is the setting that names the folder.
    """
    if not (folder / "config.json").is_file():
        raise UserError(
            f"{folder} is not a model folder: it has no config.json. Set {key} to a folder in Hugging Face "
            "format (config.json, *.safetensors, tokenizer files)."
        )
    name, tower_name = attention.register(kernel, sequence), tower_attention.register(kernel)
    try:
        if sequence is not None:
            sequence.check(AutoConfig.from_pretrained(folder))
        model = load_language_model(folder, dtype=dtype, attention=name, tower_attention=tower_name)
    except (OSError, ValueError, KeyError) as error:
        if error.args == (name,) or "support an attention implementation" in str(error):
            raise UserError(
                f"The model in {folder} cannot be trained: its attention cannot be replaced by that of the learner, "
                "which needs several sequences packed into one row. Train another model."
            ) from error
        raise UserError(f"The model in {folder} cannot be loaded: {error}") from error
    _without_randomness(model)
    attention.mark_chunked_layers(model)
    model.config.use_cache = False
    policy = PackedCausalLM(model.train(), kernels=kernel != "sdpa")
    if sequence is not None and policy.recurrent.any:
        raise UserError(
            "learner.sequence_parallel is set, but this model has recurrent layers, which need all tokens of a "
            "sequence on one rank. Leave the setting out."
        )
    if adapt is not None:
        adapt(policy)
    tower = policy.tower_layers()
    decoder = [layer for layer in policy.layers() if layer not in tower]
    layers.prepare(decoder, checkpointing, compiled=compiled, padded_batches=policy.recurrent.padded)
    policy.routing.prepare(decoder)
    # Images and windows differ in number and size from row to row, and sdpa computes them one by one.
    layers.prepare(tower, "off" if checkpointing == "off" else "full", compiled=False)
    return policy
