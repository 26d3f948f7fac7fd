"""`LearnerConfig`: how the policy is trained."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from agentloop.config.profiler import RecordingConfig
from agentloop.registry.options import HAS_PATHS, Config, ConfigPath, named


class KlEstimator(StrEnum):
    """With d = log policy - log reference of a token that the policy sampled."""

    K1 = "k1"
    """d: unbiased, but as a loss its gradient is 0 on average. For rewards."""
    K2 = "k2"
    """d^2 / 2: as a loss of fresh samples it has the gradient of the KL."""
    K3 = "k3"
    """exp(-d) - 1 + d: unbiased, never negative, of low variance; the one of GRPO."""


class Aggregation(StrEnum):
    """A way to average, over the mini-batch as a whole."""

    TOKEN_MEAN = "token_mean"
    """Mean over all tokens (DAPO, arXiv 2503.14476)."""
    SEQ_MEAN_TOKEN_SUM = "seq_mean_token_sum"
    """Sum within a trajectory, mean over trajectories."""
    SEQ_MEAN_TOKEN_MEAN = "seq_mean_token_mean"
    """Mean within a trajectory, mean over trajectories (GRPO, arXiv 2402.03300)."""
    SEQ_MEAN_TOKEN_SUM_NORM = "seq_mean_token_sum_norm"
    """Sum within a trajectory over a constant, mean over trajectories (Dr. GRPO, arXiv 2503.20783)."""


class CorrectionConfig(Config):
    """One weight of the losses of tokens that another policy sampled."""

    name: ConfigPath
    """`truncate`, `mask`, `icepop`, `reject`, `veto`, or one that a file registers, 'file.py:name'."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Of that correction; truncate: level, cap."""


class LoraConfig(Config):
    """Adapters of low rank in place of all weights (arXiv 2106.09685). Learning rates are some ten times those of full
    fine-tuning, whatever the rank."""

    rank: int = Field(default=32, ge=1)
    alpha: float = Field(default=32.0, gt=0)
    """What an adapter says is multiplied by alpha / rank."""
    targets: Literal["all"] | tuple[str, ...] = "all"
    """Names of the linear layers that have one, such as q_proj: of decoder layers, never of embedding and LM head."""


AttentionName = Literal["auto", "fa4", "fa2", "sdpa"]
"""fa4: FlashAttention 4 (package flash-attn-4), Hopper and newer. fa2: FlashAttention 2, part of torch. sdpa: torch's
scaled_dot_product_attention over padded batches, any device and precision."""


BackendName = Literal["fsdp", "megatron"]

CheckName = Literal["packed_equals_alone"]
"""packed_equals_alone: a few short sequences in one row, in training mode, have the log-probabilities that transformers
computes of each alone (docs/models.md)."""


CheckpointingName = Literal["off", "selective", "full", "sparse"]
"""selective: all but attention and the narrow matrix products; full: all but the input of each layer; sparse: all but
the input of every fourth one (`SPARSE`), where parameters are gathered once."""


SPARSE = 4
"""Layers that are computed from one kept input with sparse checkpointing."""


OffloadName = Literal["off", "optimizer", "all"]
"""optimizer: the state of the optimizer, which a step takes to the device part by part. all: parameters, gradients and
the optimizer, which then runs on the CPU; layers are taken to the device one by one. Without CUDA there is nothing to
offload."""


_SETTINGS_OF: dict[BackendName, tuple[str, ...]] = {
    "fsdp": (
        "compile_layers",
        "offload",
        "sequence_parallel",
        "refine_costs",
        "gather_once",
        "freeze_vision",
        "lora",
        "shard",
        "skip_checks",
    ),
    "megatron": ("tensor_parallel", "pipeline_parallel", "virtual_pipeline", "context_parallel", "expert_parallel"),
}
"""That the other backend does not have."""


class LearnerConfig(Config):
    """How the policy is trained. Loss and averaging apply to sampled tokens only."""

    model: str
    """Folder of the model in Hugging Face format."""
    backend: BackendName = "fsdp"
    """megatron is for models beyond one node (docs/megatron.md)."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Ranks that divide each matrix; like the next four of backend megatron."""
    pipeline_parallel: int = Field(default=1, ge=1)
    """Ranks that have some of the layers each."""
    virtual_pipeline: int = Field(default=1, ge=1)
    """Pieces of the model that each of them has: a micro-batch goes round so many times, and ranks idle so much less at
    both ends (interleaved pipelines, arXiv 2104.04473)."""
    context_parallel: int = Field(default=1, ge=1)
    """Ranks that divide each micro-batch of token_budget tokens among them."""
    expert_parallel: int = Field(default=1, ge=1)
    """Ranks that have some of the experts each; they are not further ranks."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    ranks: int = Field(default=1, ge=1)
    """Processes that train together, one a device: rank 0 is the process of the run, the others are started by it."""
    nodes: int | None = Field(default=None, ge=1)
    """Nodes of a Ray cluster that the ranks are spread over in equal parts, the one of the run first. None: as few as
    have devices for all ranks."""
    shard: Literal["all", "node"] = "all"
    """Ranks that a copy of the parameters is divided among: all of them, or those of each node, so that only gradients
    go from node to node (HSDP); each node then holds a whole copy."""
    param_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the parameters that the optimizer changes, and of its state."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Of activations, and of the weights that are published; the softmax is float32 in any case."""
    attention: AttentionName = "auto"
    """auto takes the fastest that runs."""
    compile_layers: bool | None = None
    """Fuse what is between matrix products (torch.compile): a minute at the start. None: on CUDA. Layers whose
    attention is sdpa are never compiled."""
    checkpointing: CheckpointingName = "off"
    """What of the activations is computed again in the backward instead of being kept."""
    offload: OffloadName = "off"
    """What is in the memory of the host while it is not needed."""
    sequence_parallel: int = Field(default=1, ge=1)
    """Ranks that divide each micro-batch of token_budget tokens among them, for episodes that are too long for one:
    around attention they exchange tokens for heads (Ulysses)."""
    refine_costs: bool | None = None
    """Plan by measured times of micro-batches. Plans then differ from run to run, and results in their rounding. None:
    on several CUDA devices."""
    gather_once: bool | None = None
    """Gather parameters and sum gradients over ranks once a mini-batch, not for every micro-batch. Each device holds
    all parameters in compute_dtype and all gradients in float32 meanwhile; ranks may have unequal numbers of
    micro-batches. One rank casts once instead of gathering. None: on one rank, and on several CUDA devices where that
    is at most a quarter of the memory of one."""
    freeze_vision: bool = False
    """Train the language model of a vision-language model alone."""
    lora: LoraConfig | None = None
    """Train adapters of a frozen model, which is kept in compute_dtype; engines get the sum. None: all weights."""
    share_prefixes: bool | None = None
    """Compute the prompt of a group once for all its trajectories. None: where attention is FlashAttention."""

    loss: ConfigPath = "ppo"
    """`ppo`, `gspo`, `cispo`, `sapo`, `gmpo`, `dppo_tv`, `dppo_kl`, `reinforce`, `sft`, or one that a file registers,
    'file.py:name'."""
    loss_options: dict[str, Any] = Field(default_factory=dict)
    """Of that loss; ppo: clip_low, clip_high, dual_clip."""
    aggregation: Aggregation | None = None
    """How the losses of tokens become one; None: as in the paper of the loss."""
    aggregation_norm: float = Field(default=1024.0, gt=0)
    """The constant of `seq_mean_token_sum_norm`, in tokens."""
    entropy_bonus: float = Field(default=0.0, ge=0)
    """Times the entropy of each sampled token's distribution, taken from its loss."""
    old_logprobs: Literal["auto", "rollout", "learner", "interpolated"] = "auto"
    """What ratios are taken against. rollout: the policy that sampled, as the engine computed it. learner: the weights
    before the first update on the batch; costs a pass where mini_batches is above 1. interpolated: these, guessed from
    the versions of the tokens without a pass (AReaL). auto: learner where there are corrections, else rollout."""
    corrections: tuple[Annotated[CorrectionConfig, BeforeValidator(named), HAS_PATHS], ...] = ()
    """For the difference between old_logprobs and the policy that sampled; their weights are multiplied. A plain string
    is a name."""
    kl_coef: float = Field(default=0.0, ge=0)
    """Times the KL to the reference model, added to the loss of each token; 0 loads no reference model."""
    kl_estimator: KlEstimator = KlEstimator.K3
    reference: ConfigPath | None = None
    """Folder of the reference model; None: the one that the run starts from."""
    temperature: float = Field(default=1.0, gt=0)
    """That the engine sampled with."""

    lr: float = Field(default=1e-6, ge=0)
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = Field(default=1e-8, gt=0)
    weight_decay: float = Field(default=0.0, ge=0)
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """After the warm-up; linear and cosine reach 0 at total_updates."""
    warmup_updates: int = Field(default=0, ge=0)
    """Updates in which the learning rate grows linearly to lr."""
    total_updates: int | None = Field(default=None, gt=0)
    """Length of the schedule, warm-up included; needed by linear and cosine."""
    grad_clip: float | None = Field(default=1.0, gt=0)
    """Largest norm of the gradient; None does not clip."""

    mini_batches: int = Field(default=1, ge=1)
    """Optimizer updates that one batch is split into."""
    token_budget: int = Field(default=16384, ge=1)
    """Most tokens of one micro-batch; bounds memory, not the result. No trajectory may be longer."""
    skip_zero_advantage: bool = True
    """Leave out the passes of trajectories whose advantage is 0 where that does not change the gradient; they still
    count in the averages of the loss, but not in the metrics of the policy."""
    skip_checks: tuple[CheckName, ...] = ()
    """Checks of the model at load that are left out. A model that fails one is trained on wrong numbers."""
    seed: int = 0
    recording: RecordingConfig | None = Field(default=None, exclude=True, repr=False)
    """Set by the run, from `profiler`."""

    @model_validator(mode="after")
    def _has_settings_of_its_backend(self) -> Self:
        """What another backend would do is not left out in silence."""
        other: BackendName = "fsdp" if self.backend == "megatron" else "megatron"
        fields = type(self).model_fields
        foreign = [name for name in _SETTINGS_OF[other] if getattr(self, name) != fields[name].default]
        if foreign:
            raise ValueError(f"backend is {self.backend}, but only {other} has {', '.join(foreign)}")
        if self.backend == "megatron" and self.checkpointing == "sparse":
            raise ValueError("backend is megatron, but only fsdp has checkpointing=sparse")
        if self.share_prefixes and self.context_parallel > 1:
            raise ValueError("share_prefixes is true, but context_parallel divides rows whose prompts are not shared")
        return self

    @property
    def needs_reference(self) -> bool:
        """There is a reference model."""
        return self.kl_coef > 0 or self.reference is not None

    @property
    def loads_reference(self) -> bool:
        """It is a model of its own, and not this one without its adapters."""
        starts_as_reference = self.lora is not None and self.reference in (None, self.model)
        return self.needs_reference and not starts_as_reference
