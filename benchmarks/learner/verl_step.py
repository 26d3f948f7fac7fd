"""Measure the step of train_step.py on verl's FSDP engine: same model, same sequences, same GPU.

    PYTHONPATH=<verl 0.9.1, flash_attn.ops.triton> python -m benchmarks.learner.verl_step --model 0.6B [...]

Calls `FSDPEngineWithLMHead.train_batch` with verl's own `ppo_loss`, as its actor worker does. Empty modules replace
missing imports of verl that the engine does not use (ray, datasets, ...). `--attention` names an attention of
transformers. The default is agentloop's kernel, because transformers searches for sequence starts in every layer (and
with its flash_attention_4 each call compiled the kernel again).

Without the cross-entropy of the package flash-attn, verl computes the logits row by row, which takes 3 times as long at
4B. The benchmark refuses this, unless `--fused` selects verl's own head.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
import tempfile
import time
import types
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AttentionInterface

from agentloop.trainer.batch.train_batch import TrainBatch
from agentloop.trainer.model.attention.choice import choose
from agentloop.trainer.model.attention.ops import packed_attention
from benchmarks import results_file
from benchmarks.learner.qwen3 import PEAK, SHAPES, batch_of, flops, lengths_of, model_config, random_model

_UNUSED = ("ray", "orjson", "datasets", "wandb", "torchdata", "pyarrow", "pylatexenc", "cupy", "pandas", "codetiming")


class _Anything:
    """Stand-in for any class, decorator or value of a missing module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if args and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (object,)


class _Absent(types.ModuleType):
    __path__ = ()  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: set[str]) -> None:
        self._names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        is_ours = name.split(".")[0] in self._names
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if is_ours else None

    def create_module(self, spec: Any) -> types.ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


class SameKernel:
    """agentloop's attention for a model with position ids; it finds sequence starts once per row."""

    def __init__(self, kernel: str) -> None:
        self._kernel = kernel
        self._row: tuple[torch.Tensor, torch.Tensor, int] | None = None

    def __call__(
        self, module: Any, query: Any, key: Any, value: Any, mask: Any, *, position_ids: Any, scaling: float, **_: Any
    ) -> tuple[torch.Tensor, None]:
        if self._row is None or self._row[0] is not position_ids:
            starts = torch.nonzero(position_ids.flatten() == 0).flatten()
            end = starts.new_tensor([position_ids.numel()])
            cu = torch.cat([starts, end]).to(torch.int32)
            self._row = position_ids, cu, int(cu.diff().max())
        _, cu, longest = self._row
        rows = (part[0].transpose(0, 1).to(torch.bfloat16) for part in (query, key, value))
        out, _ = packed_attention(*rows, cu, longest, 0, scaling, self._kernel, None, None, None, None, 0, 0)
        return out[None], None


def prepare() -> None:
    """Provide what verl needs: its imports, a process group of one rank, and the kernel under its name."""
    missing = {name for name in _UNUSED if importlib.util.find_spec(name) is None}
    sys.meta_path.append(_Finder(missing))
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29511"), ("RANK", "0"), ("WORLD_SIZE", "1")):
        os.environ.setdefault(name, value)
    os.environ.setdefault("LOCAL_RANK", "0")
    torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    kernel = choose("auto", torch.device("cuda"), torch.bfloat16)
    AttentionInterface.register("agentloop_kernel", SameKernel(kernel))


def build_engine(args: argparse.Namespace, model: Path) -> tuple[Any, Any]:
    """Return the engine and its loss."""
    from verl.trainer.config import CheckpointConfig
    from verl.utils import torch_functional
    from verl.workers.config import ActorConfig, FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
    from verl.workers.utils.losses import ppo_loss

    if torch.cuda.is_available() and not args.fused and not torch_functional.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE:
        sys.exit(
            "flash_attn.ops.triton.cross_entropy is missing, and verl is slow. Install it, or pass --fused triton."
        )
    engine_config = FSDPEngineConfig(
        strategy="fsdp2",
        max_token_len_per_gpu=args.token_budget,
        use_fused_kernels=bool(args.fused),
        use_dynamic_bsz=True,
    )
    hf_model = HFModelConfig(
        path=str(model),
        load_tokenizer=False,
        override_config={"attn_implementation": args.attention},
        enable_gradient_checkpointing=args.checkpointing,
        enable_activation_offload=args.activation_offload,
        use_fused_kernels=bool(args.fused),
        fused_kernel_options={"impl_backend": args.fused},
    )
    optimizer = FSDPOptimizerConfig(lr=1e-6, total_training_steps=100)
    engine = FSDPEngineWithLMHead(hf_model, engine_config, optimizer, CheckpointConfig())
    engine.initialize()
    actor = ActorConfig(
        strategy="fsdp2", rollout_n=8, clip_ratio_high=0.28, ppo_micro_batch_size_per_gpu=1, use_dynamic_bsz=True
    )
    return engine, partial(ppo_loss, actor)


def tensors(batch: TrainBatch, args: argparse.Namespace) -> Any:
    """Return the batch as the actor worker passes it to the engine: jagged tensors, responses without their prompts."""
    from verl.utils import tensordict_utils as tu

    def nested(parts: list[Any]) -> Any:
        return torch.nested.as_nested_tensor([torch.as_tensor(part) for part in parts], layout=torch.jagged)

    samples = batch.samples
    starts = [len(sample) - sample.num_sampled for sample in samples]
    pairs = list(zip(samples, starts, strict=True))
    mask = nested([torch.ones(sample.num_sampled, dtype=torch.int64) for sample in samples])
    return tu.get_tensordict(
        tensor_dict={
            "input_ids": nested([sample.token_ids.astype("int64") for sample in samples]),
            "position_ids": nested([torch.arange(len(sample)) for sample in samples]),
            "prompts": nested([sample.token_ids[:start].astype("int64") for sample, start in pairs]),
            "responses": nested([sample.token_ids[start:].astype("int64") for sample, start in pairs]),
            "response_mask": mask,
            "loss_mask": mask,
            "old_log_probs": nested([sample.logprobs[start:] for sample, start in pairs]),
            "advantages": nested([torch.full((sample.num_sampled,), float(sample.advantage)) for sample in samples]),
        },
        non_tensor_dict={
            "temperature": 1.0,
            "global_batch_size": len(samples),
            "max_token_len_per_gpu": args.token_budget,
            "use_dynamic_bsz": True,
            "use_remove_padding": True,
            "use_fused_kernels": bool(args.fused),
            "calculate_entropy": False,
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=SHAPES, default="0.6B")
    parser.add_argument("--trained", type=float, nargs="+", default=[0.25], help="one result each")
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--median", type=float, default=2000)
    parser.add_argument("--sigma", type=float, default=0.8)
    parser.add_argument("--cap", type=int, default=8192)
    parser.add_argument("--token-budget", type=int, default=32768)
    parser.add_argument("--attention", default="agentloop_kernel")
    parser.add_argument("--checkpointing", action="store_true", help="verl's default")
    parser.add_argument("--fused", choices=["triton", "torch"], help="verl's fused LM head: use_fused_kernels")
    parser.add_argument("--activation-offload", action="store_true", help="verl's enable_activation_offload")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    args = parser.parse_args()
    prepare()
    engine, loss = build_engine(args, random_model(args.model, args.folder))
    for trained in args.trained:
        measure(args, engine, loss, trained)


def measure(args: argparse.Namespace, engine: Any, loss: Any, trained: float) -> None:
    """Time steps with this share of the tokens trained, and write the result."""
    on_cuda = torch.cuda.is_available()
    lengths = lengths_of(args.tokens, args.median, args.sigma, args.cap)
    batch = batch_of(lengths, trained, vocab=model_config(args.model).vocab_size)
    seconds, output = [], {}
    for _ in range(args.steps + 2):
        data = tensors(batch, args)
        if on_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        with engine.train_mode():
            output = engine.train_batch(data, loss_function=loss)
        if on_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    step, config = sorted(seconds[2:])[args.steps // 2], model_config(args.model)
    result = {
        "system": "verl 0.9.1 fsdp2",
        "options": {key: str(value) for key, value in vars(args).items()},
        "tokens": batch.num_tokens,
        "trained_tokens": batch.num_sampled,
        "step_seconds": step,
        "all_seconds": seconds,
        "tokens_per_second": batch.num_tokens / step,
        "mfu": flops(config, lengths, batch.num_sampled) / step / PEAK,
        "mfu_full_head": flops(config, lengths, batch.num_tokens) / step / PEAK,
        "memory_peak_gib": torch.cuda.max_memory_allocated() / 2**30 if on_cuda else None,
        "grad_norm": float(output["metrics"]["grad_norm"]),
    }
    print(json.dumps({key: value for key, value in result.items() if key != "options"}))
    kind = ("checkpointing_" if args.checkpointing else "") + ("fused_" if args.fused else "")
    name = f"verl_step_{kind}{args.model}_{round(trained * 100)}"
    print(results_file.write(name, result, gpu=torch.cuda.get_device_name() if on_cuda else None))


if __name__ == "__main__":
    main()
