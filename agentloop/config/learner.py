"""`LearnerConfig`: how the policy is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from agentloop.config.records import RecordingConfig
from agentloop.registry.options import HAS_PATHS, Config, ConfigPath, named

_Decay = Annotated[float, Field(ge=0, lt=1)]
"""Share of a running average that an update keeps."""
_OFF = BeforeValidator(lambda value: "off" if value is False else value)
"""YAML reads off without quotes as False, and a shell removes the quotes."""


class KlEstimator(StrEnum):
    """Estimators of the KL, with d = log policy - log reference of a token that the policy sampled."""

    K1 = "k1"
    """d: unbiased; as a loss its gradient is 0 on average, so use it in rewards."""
    K2 = "k2"
    """d^2 / 2: as a loss on fresh samples it has the gradient of the KL."""
    K3 = "k3"
    """exp(-d) - 1 + d: unbiased, never negative, low variance; used by GRPO."""


class Aggregation(StrEnum):
    """Ways to average token losses over the whole mini-batch."""

    TOKEN_MEAN = "token_mean"
    """Mean over all tokens (DAPO, arXiv 2503.14476)."""
    SEQ_MEAN_TOKEN_SUM = "seq_mean_token_sum"
    """Sum within a trajectory, mean over trajectories."""
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"
    """Mean within a trajectory, mean over trajectories (GRPO, arXiv 2402.03300)."""
    SEQ_MEAN_TOKEN_SUM_NORM = "seq_mean_token_sum_norm"
    """Sum within a trajectory over a constant, mean over trajectories (Dr. GRPO, arXiv 2503.20783)."""


class CorrectionConfig(Config):
    """A correction that weights the losses of tokens sampled by another policy."""

    name: ConfigPath
    """`truncate`, `mask`, `icepop`, `reject`, `veto`, or 'file.py:name' for one that the file registers."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the correction; for truncate: level, cap."""


class LoraConfig(Config):
    """Train low-rank adapters instead of all weights (arXiv 2106.09685).

    Good learning rates are about ten times those of full fine-tuning, at every rank.
    """

    rank: int = Field(default=32, ge=1)
    """Rank r of an adapter, which adds alpha / r * B A to its weight matrix (B has r columns, A has r rows)."""
    alpha: float = Field(default=32.0, gt=0)
    """The output of an adapter is multiplied by alpha / rank."""
    publish: Literal["merged", "adapters"] = "merged"
    """Weights that engines get. merged: all weights, adapters included. adapters: the adapters alone, which the engine
    adds in each layer; only vllm takes them (docs/scaling/lora.md)."""
    targets: Literal["all"] | tuple[str, ...] = "all"
    """Linear layers of the decoder, such as q_proj, and weights of experts, such as gate_up_proj, that get an adapter.
    Embedding and LM head never do."""


AttentionName = Literal["auto", "fa4", "fa2", "sdpa"]
"""fa4: FlashAttention 4 (package flash-attn-4), Hopper and newer. fa2: FlashAttention 2, part of torch. sdpa: torch's
scaled_dot_product_attention over padded batches, for any device and precision."""


BackendName = Literal["fsdp", "megatron"]

CheckName = Literal["packed_equals_alone"]
"""packed_equals_alone: sequences packed in one row, in training mode, get the log-probabilities that transformers
computes for each alone (docs/concepts/models.md)."""


CheckpointingName = Literal["off", "selective", "full", "sparse"]
"""Activations that the backward pass recomputes. selective: all but attention and narrow matrix products. full: all but
the input of each layer. sparse: all but the input of every fourth layer (`SPARSE`); parameters are gathered once."""


SPARSE = 4
"""Number of layers that sparse checkpointing recomputes from one stored input."""


OffloadName = Literal["off", "optimizer", "all"]
"""optimizer: offload the optimizer state, which each step copies to the device in parts. all: offload parameters,
gradients and optimizer state; the optimizer runs on the CPU, and layers are copied to the device one at a time. Has no
effect without CUDA."""


Fp8Name = Literal["off", "tensor", "row"]
"""tensor: one scale for a matrix, which is the fastest. row: one for each row of a matrix, which rounds less if a few
values are large."""


@dataclass(slots=True, frozen=True)
class OnlyOf:
    """Marks a setting that only one backend supports; the other rejects it."""

    backend: BackendName
    values: tuple[str, ...] = ()
    """Values that only this backend supports; empty: every value but the default."""

    def is_used(self, value: object, default: object) -> bool:
        """Return whether `value` needs this backend."""
        return value in self.values if self.values else value != default


FSDP, MEGATRON = OnlyOf("fsdp"), OnlyOf("megatron")


class LearnerConfig(Config):
    """How the policy is trained. Only sampled tokens carry loss."""

    backend: BackendName = "fsdp"
    """megatron is for models that do not fit on one node (docs/scaling/megatron.md)."""
    tensor_parallel: Annotated[int, MEGATRON] = Field(default=1, ge=1)
    """Number of ranks that split each weight matrix. This and the next four settings need the backend megatron."""
    pipeline_parallel: Annotated[int, MEGATRON] = Field(default=1, ge=1)
    """Number of ranks that split the layers into pipeline stages."""
    virtual_pipeline: Annotated[int, MEGATRON] = Field(default=1, ge=1)
    """Number of pieces of the model on each pipeline rank (interleaved pipelines, arXiv 2104.04473). More pieces
    shorten the pipeline bubbles at both ends of a mini-batch."""
    context_parallel: Annotated[int, MEGATRON] = Field(default=1, ge=1)
    """Number of ranks that split each micro-batch of token_budget tokens."""
    expert_parallel: Annotated[int, MEGATRON] = Field(default=1, ge=1)
    """Number of ranks that split the experts; these are the same ranks, not additional ones."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto: cuda if this machine has it."""
    ranks: int = Field(default=1, ge=1)
    """Number of training processes, one per device. All but rank 0 are Ray actors."""
    in_process: bool = True
    """Whether rank 0 is in the process of the run. false: it is a Ray actor, too, so that the learner does not hold up
    the agent loops of this process (docs/concepts/async.md). Results are the same."""
    nodes: int | None = Field(default=None, ge=1)
    """Number of nodes of a Ray cluster, beginning with the node of the run; each gets the same number of ranks. None:
    the smallest number with enough devices."""
    shard: Annotated[Literal["all", "node"], FSDP] = "all"
    """Ranks that shard one copy of the parameters. all: all ranks. node: the ranks of each node, so that each node
    holds a whole copy and only gradients cross nodes (HSDP)."""
    param_dtype: Annotated[Literal["float32", "bfloat16"], OnlyOf("fsdp", ("bfloat16",))] = "float32"
    """Data type of trained parameters and of the optimizer state."""
    compute_dtype: Annotated[Literal["float32", "bfloat16", "float16"], OnlyOf("fsdp", ("float16",))] = "float32"
    """Data type of activations and of published weights. The softmax is always float32. float16 has eight times the
    precision of bfloat16, so engine and learner agree better (arXiv 2510.26788); activations above 65,504 overflow."""
    fp8: Annotated[Fp8Name, FSDP, _OFF] = "off"
    """Scales of matrices that the linear layers of the decoder multiply in FP8, forward and backward; the LM head and
    experts stay in bfloat16 (docs/scaling/fp8.md). It needs compute_dtype=bfloat16, and a GPU of Ada or later."""
    save_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of the trained model's files. auto: that of the model that training started from."""
    attention: AttentionName = "auto"
    """auto: the fastest implementation that this machine supports."""
    compile_layers: Annotated[bool | None, FSDP] = None
    """Compile the layers with torch.compile, which takes about a minute at the start. Layers with sdpa attention are
    never compiled. None: on CUDA."""
    checkpointing: Annotated[CheckpointingName, OnlyOf("fsdp", ("sparse",)), _OFF] = "off"
    """Activations that the backward pass recomputes instead of storing them."""
    offload: Annotated[OffloadName, FSDP, _OFF] = "off"
    """State that is kept in host memory while it is not needed."""
    sequence_parallel: Annotated[int, FSDP] = Field(default=1, ge=1)
    """Number of ranks that split each micro-batch of token_budget tokens, for episodes that are too long for one rank.
    Around attention they exchange tokens for heads (Ulysses, arXiv 2309.14509)."""
    refine_costs: Annotated[bool | None, FSDP] = None
    """Plan with measured times of micro-batches. Plans, and so the rounding of results, then differ between runs. None:
    only on several CUDA devices."""
    gather_once: Annotated[bool | None, FSDP] = None
    """Gather parameters and reduce gradients once per mini-batch, not for every micro-batch. Each device then holds all
    parameters in compute_dtype and all gradients in float32, and ranks may have different numbers of micro-batches. A
    single rank casts parameters once. None: on one rank, and on several CUDA devices if the copies fill at most a
    quarter of the memory of each."""
    freeze_vision: Annotated[bool, FSDP] = False
    """Train only the language model of a vision-language model."""
    lora: Annotated[LoraConfig | None, FSDP] = None
    """Train adapters of a frozen model, which is kept in compute_dtype; engines get merged weights. None: train all
    weights."""
    router_replay: Annotated[bool, FSDP] = False
    """Route each token to the experts that the engine chose (R3, docs/concepts/experts.md), weighted by the learner's
    own router."""
    share_prefixes: bool | None = None
    """Compute the prompt of a group once for all its trajectories. None: only with FlashAttention."""

    loss: ConfigPath = "ppo"
    """`ppo`, `gspo`, `cispo`, `sapo`, `gmpo`, `dppo_tv`, `dppo_kl`, `reinforce`, `sft`, or 'file.py:name' for one that
    the file registers."""
    loss_options: dict[str, Any] = Field(default_factory=dict)
    """Options of the loss; for ppo: clip_low, clip_high, dual_clip."""
    aggregation: Aggregation | None = None
    """Averaging of token losses; None: as in the paper of the loss."""
    aggregation_norm: float = Field(default=1024.0, gt=0)
    """Constant of `seq_mean_token_sum_norm`, in tokens."""
    entropy_bonus: float = Field(default=0.0, ge=0)
    """Factor of the entropy bonus: the entropy of each sampled token's distribution is subtracted from its loss."""
    old_logprobs: Literal["auto", "rollout", "learner", "interpolated"] = "auto"
    """Policy in the denominator of ratios. rollout: the sampling policy, as the engine computed it. learner: the
    weights before the first update on the batch; costs a forward pass if mini_batches is above 1. interpolated: an
    estimate of the learner's from the policy versions of the tokens, without a pass (AReaL). auto: learner if there are
    corrections, else rollout."""
    corrections: tuple[Annotated[CorrectionConfig, BeforeValidator(named), HAS_PATHS], ...] = ()
    """Importance-sampling corrections for the difference between old_logprobs and the sampling policy; their weights
    are multiplied. A plain string is a name."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Factor of the KL to the reference model in the loss of each token; with 0 no reference model is loaded."""
    kl_estimator: KlEstimator = KlEstimator.K3
    """Estimator of the KL from the log-probabilities of sampled tokens: k1, k2 or k3 (docs/concepts/algorithms.md)."""
    reference: ConfigPath | None = None
    """Folder of the reference model; None: the model that the run starts from."""
    reference_every: Annotated[int | None, FSDP] = Field(default=None, ge=1)
    """Number of steps after which the reference model becomes a copy of the policy, again and again; None: it never
    changes. The KL then bounds how far the policy moves in that many steps, not in the whole run."""

    lr: float = Field(default=1e-6, ge=0)
    """Learning rate, after the warm-up."""
    betas: tuple[_Decay, _Decay] = (0.9, 0.999)
    """Decay rates of the running averages of gradients and of their squares (AdamW, arXiv 1711.05101)."""
    eps: float = Field(default=1e-8, gt=0)
    """Constant in the denominator of AdamW."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay of AdamW, multiplied by the learning rate."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule after the warm-up; linear and cosine reach 0 at total_updates."""
    warmup_updates: int = Field(default=0, ge=0)
    """Number of updates over which the learning rate grows linearly to lr."""
    total_updates: int | None = Field(default=None, gt=0)
    """Length of the schedule in updates, warm-up included; None: the length of the run."""
    grad_clip: float | None = Field(default=1.0, gt=0)
    """Largest norm of the gradient; None: no clipping."""

    mini_batches: int = Field(default=1, ge=1)
    """Number of optimizer updates per batch."""
    token_budget: int = Field(default=16384, ge=1)
    """Largest number of tokens in a micro-batch, and so in a trajectory. It bounds memory and does not change the
    result."""
    skip_zero_advantage: bool = True
    """Skip trajectories with advantage 0 if that does not change the gradient. They still count in the averages of the
    loss, but not in the metrics of the policy."""
    skip_checks: Annotated[tuple[CheckName, ...], FSDP] = ()
    """Load-time checks of the model to skip. A model that fails a check is trained on wrong numbers."""

    # In a run these come from other sections of the resolved config; a learner without a run takes them as arguments.
    model: str = Field(default="", exclude=True)
    """Folder of the model in Hugging Face format."""
    temperature: float = Field(default=1.0, gt=0, exclude=True)
    """Temperature that the engine sampled with."""
    seed: int = Field(default=0, exclude=True)
    """Seed of adapters and of random numbers in training."""
    chat_template: str | None = Field(default=None, exclude=True, repr=False)
    """Text of the chat template of saved models; None: that of `model`."""
    recording: RecordingConfig | None = Field(default=None, exclude=True, repr=False)
    """Profiles and timelines that each rank records."""

    @model_validator(mode="after")
    def _has_settings_of_its_backend(self) -> Self:
        """Reject settings that only the other backend supports."""
        other: BackendName = "fsdp" if self.backend == "megatron" else "megatron"
        if foreign := list(self.settings_of(other)):
            raise ValueError(
                f"backend is {self.backend}, but only {other} has {', '.join(foreign)}: remove them, or set "
                f"learner.backend={other}"
            )
        if self.reference_every is not None:
            self._check_moving_reference()
        if self.fp8 != "off" and self.compute_dtype != "bfloat16":
            raise ValueError(
                f"fp8 is {self.fp8} and compute_dtype is {self.compute_dtype}, but products in FP8 return bfloat16: "
                "set learner.compute_dtype=bfloat16, or remove fp8"
            )
        if self.share_prefixes and self.context_parallel > 1:
            raise ValueError(
                f"share_prefixes is true and context_parallel is {self.context_parallel}, but context_parallel splits "
                "rows whose prompts are not shared: remove share_prefixes"
            )
        return self

    def _check_moving_reference(self) -> None:
        if self.lora is not None and self.reference in (None, self.model):
            raise ValueError(
                "reference_every needs a reference model of its own, but with lora the reference is this model without "
                "its adapters: remove reference_every or lora"
            )
        if not self.needs_reference and self.loss != "dpo":
            raise ValueError(
                "reference_every is set, but the loss has no KL to a reference model: set kl_coef above 0, or remove "
                "reference_every"
            )

    def settings_of(self, backend: BackendName) -> Iterator[str]:
        """Yield the settings that only `backend` supports."""
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            for mark in field.metadata:
                if isinstance(mark, OnlyOf) and mark.backend == backend and mark.is_used(value, field.default):
                    yield f"{name}={value}" if mark.values else name

    @property
    def needs_reference(self) -> bool:
        """Whether the loss needs a reference model."""
        return self.kl_coef > 0 or self.reference is not None

    @property
    def loads_reference(self) -> bool:
        """Whether the reference is a separate model, not this model without its adapters."""
        starts_as_reference = self.lora is not None and self.reference in (None, self.model)
        return self.needs_reference and not starts_as_reference
