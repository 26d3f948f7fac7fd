"""The trainer's model: its configuration, and what the run loop asks of it."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from agentloop.config import HAS_PATHS, Config, ConfigPath
from agentloop.engines.base import TakesWeights
from agentloop.errors import UserError
from agentloop.trainer.batch import Sample, TrainBatch
from agentloop.trainer.kl import KlEstimator
from agentloop.trainer.losses.aggregation import Aggregation
from agentloop.trainer.recording import RecordingConfig

if TYPE_CHECKING:
    from torch import Tensor

    from agentloop.engines.shared_weights import SharedWeights
    from agentloop.trainer.placement.home import Home


class CorrectionConfig(Config):
    """One weight of the losses of tokens that another policy sampled."""

    name: ConfigPath
    """`truncate`, `mask`, `icepop`, `reject`, `veto`, or one that a file registers, 'file.py:name'."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Of that correction; truncate: level, cap."""


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


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
        "early_gradients",
        "freeze_vision",
        "lora",
        "shard",
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
    corrections: tuple[Annotated[CorrectionConfig, BeforeValidator(_named), HAS_PATHS], ...] = ()
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
    early_gradients: bool = False
    """Compute the gradients of groups that have ended while others of the same step play. A step then ends sooner after
    its last episode; its batch is summed in another order, so that runs are the same to rounding only."""
    skip_zero_advantage: bool = True
    """Leave out the passes of trajectories whose advantage is 0 where that does not change the gradient; they still
    count in the averages of the loss, but not in the metrics of the policy."""
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


def learning_rate(config: LearnerConfig, update: int) -> float:
    """Of update number `update`, from 0. Past the end of the schedule it stays at the last value."""
    if update < config.warmup_updates:
        return config.lr * (update + 1) / (config.warmup_updates + 1)
    if config.lr_schedule == "constant":
        return config.lr
    assert config.total_updates is not None, "checked when the learner is made"
    length = max(config.total_updates - config.warmup_updates, 1)
    done = min((update - config.warmup_updates) / length, 1.0)
    if config.lr_schedule == "linear":
        return config.lr * (1.0 - done)
    return config.lr * 0.5 * (1.0 + math.cos(math.pi * done))


class Captured(Protocol):
    """The state of a learner at one moment, in the memory of the host."""

    def write(self, folder: Path) -> None:
        """Into a folder that appears whole or not at all. May run in a thread of its own."""


class Learner(Protocol):
    """Holds the weights that are trained."""

    def accumulate(self, batch: TrainBatch) -> None:
        """Compute the gradient of a part of the next batch: `step` then gets the rest of it, and trains on all as if it
        had got them together. Blocks, and raises, as `step` does; only with `learner.early_gradients`.
        """
        ...

    def step(self, batch: TrainBatch) -> dict[str, float]:
        """Train on a batch, each sample once, in `mini_batches` updates, and say how it went.

        Blocks; call it from a thread where an event loop must go on. Raises `UserError` where a trajectory is longer
        than the token budget.
        """
        ...

    def logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Log-probabilities of the sampled tokens of each sample under the current weights, [num_sampled]."""
        ...

    def reference_logprobs(self, samples: Sequence[Sample]) -> list[NDArray[np.float32]]:
        """Log-probabilities of the sampled tokens of each sample under the reference model, [num_sampled]. Raises
        `UserError` where there is none."""
        ...

    async def publish(self, engine: TakesWeights, version: int) -> None:
        """Give the engine, or all workers, the current weights under their Hugging Face names, as `version`."""

    def sleep(self) -> None:
        """Leave the device to others: what is there goes to the memory of the host. Until `wake` nothing may be asked
        of it but `close`."""

    def wake(self) -> None:
        """Take the device back; everything is as it was, bit for bit. Without `sleep` before, nothing happens."""

    def save(self, folder: Path) -> None:
        """Everything that an exact resume needs, into a folder that appears whole or not at all."""

    def capture(self) -> Captured:
        """What `save` would write, as it is now: training may go on while it is written."""
        ...

    def load(self, folder: Path) -> None:
        """Go on from `save`. Raises `UserError` where the folder does not hold a state of this model."""

    def save_hf(self, folder: Path) -> None:
        """Model and tokenizer as a folder that transformers' `from_pretrained` loads."""

    def close(self) -> None:
        """End what was started for it. May be called twice."""


class RankLearner(Learner, Protocol):
    """A learner that every rank makes, and of which all call the same methods with the same arguments."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Full parameters one at a time under their Hugging Face names; every rank must take all of them."""
        ...

    def share(self, on_host: bool) -> SharedWeights | None:
        """Put the weights into memory that engines map, each into that of one rank, on its device or on the host: no
        rank has all of them. They hold until the next time. None on other ranks than the first."""
        ...


def create(config: LearnerConfig, home: Home | None = None) -> Learner:
    """The learner of `config.backend`, for the run that `home` is of. Raises `UserError` where the configuration or the
    model cannot be used."""
    if config.backend == "megatron":
        return _on_ranks(_megatron(), config, home)
    from agentloop.trainer.backends.fsdp import FsdpLearner

    return _on_ranks(FsdpLearner, config, home)


def _megatron() -> Callable[[LearnerConfig], RankLearner]:
    if importlib.util.find_spec("megatron") is None:
        raise UserError("learner.backend=megatron needs megatron-core: pip install 'agentloop[megatron]'.")
    from agentloop.trainer.backends.megatron.learner import MegatronLearner

    return MegatronLearner


def create_critic(config: LearnerConfig, home: Home | None = None) -> Learner:
    """A learner whose log-probabilities are values; its loss is `value`. Raises `UserError` as `create` does."""
    if config.backend == "megatron":
        raise UserError("learner.backend=megatron has no critic, which advantage gae needs. Set learner.backend=fsdp.")
    from agentloop.trainer.backends.critic import FsdpCritic

    return _on_ranks(FsdpCritic, config, home)


def _on_ranks(
    backend: Callable[[LearnerConfig], RankLearner], config: LearnerConfig, home: Home | None = None
) -> Learner:
    from agentloop.trainer.backends.ranked import RankedLearner

    alone = config.ranks == 1 and config.nodes in (None, 1)
    return backend(config) if alone else RankedLearner(backend, config, home)
