"""Measure a training step of hybrid, MoE and gpt-oss shapes beside plain transformers with the same kernels.

    python -m benchmarks.learner.train_families --shape Qwen3.5-4B
    python -m benchmarks.learner.train_families --shape Qwen3-30B-A3B --layers 8

Each system runs in a process of its own. `agentloop` is the learner, and settings of `learner` can follow it after a
comma. `packed` is a loop over transformers' own model with the learner's attention kernel and rows, the recurrence and
convolution of flash-linear-attention, the LM head at trained positions alone, fused AdamW and gradient checkpointing.
`padded` is that loop with padded batches of sequences of similar length and sdpa, or plain torch for gpt-oss, which has
no other attention there. Both compute each layer again in the backward pass; with `packed,checkpointing=off` none.
MFU counts the necessary FLOPs (`families.flops`). Weights are random, so this shows speed and memory, not quality.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.batch.train_batch import Sample, TrainBatch
from agentloop.trainer.model.attention import packed as attention
from agentloop.trainer.model.attention.choice import choose
from agentloop.trainer.model.attention.packed import PackedRow
from agentloop.trainer.model.recurrent import tuning
from benchmarks import results_file
from benchmarks.learner.families import SHAPES, flops, model_config, random_model
from benchmarks.learner.qwen3 import PEAK, batch_of, lengths_of


def learner_step(system: str, args: argparse.Namespace, folder: Path) -> Any:
    """Return a function that trains one step of a batch."""
    from agentloop.trainer.learner.fsdp.learner import FsdpLearner

    options = dict(part.split("=", 1) for part in system.split(",")[1:])
    config = {"model": str(folder), "param_dtype": "bfloat16", "compute_dtype": "bfloat16", "device": args.device}
    config |= {"token_budget": args.token_budget, "attention": args.attention, "checkpointing": "full"}
    config["skip_checks"] = ["packed_equals_alone"]  # it runs in float32, for which kernels would compile, too
    return FsdpLearner(LearnerConfig.model_validate(config | options)).step


def _padded_attention(folder: Path) -> str:
    """Return the attention of transformers for padded batches: `sdpa`, or `eager` for models with sinks."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

    kind: Any = MODEL_FOR_CAUSAL_LM_MAPPING[type(AutoConfig.from_pretrained(folder))]
    return "sdpa" if kind._supports_sdpa else "eager"


def _use_kernels(model: nn.Module) -> None:
    """Let recurrent layers convolve with the kernel of flash-linear-attention, as they compute their recurrence."""
    from fla.modules.causal_conv1d import causal_conv1d

    def convolution(
        rows: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        activation: str | None = None,
        cu_seq_lens_q: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        out, _state = causal_conv1d(rows.transpose(1, 2), weight, bias, activation=activation, cu_seqlens=cu_seq_lens_q)
        return out.transpose(1, 2)

    for kind in {type(module) for module in model.modules()}:
        names = vars(sys.modules[kind.__module__])
        if "causal_conv1d_fn" in names:
            names["causal_conv1d_fn"] = convolution
            tuning.compile_variants_in_parallel()


class PlainLoop:
    """The training loop that one would write around transformers."""

    def __init__(self, *, padded: bool, checkpointing: bool, args: argparse.Namespace, folder: Path) -> None:
        from transformers import AutoModelForCausalLM

        self._padded, self._budget, self._device = padded, args.token_budget, torch.device(args.device)
        kernel = choose(args.attention, self._device, torch.bfloat16)
        name = _padded_attention(folder) if padded else attention.register(kernel)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation=name)
        if importlib.util.find_spec("fla"):
            _use_kernels(self.model)
        self.model.to(self._device).train()
        if checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False})
        self._optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-6, fused=True)

    def step(self, batch: TrainBatch) -> None:
        for samples in self._rows(list(batch.samples)):
            hidden, targets, old, advantages = self._forward(samples)
            logits = self.model.get_output_embeddings()(hidden).float()
            logprobs = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
            loss = -((logprobs - old).exp() * advantages).sum() / batch.num_sampled
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()

    def _rows(self, samples: list[Sample]) -> list[list[Sample]]:
        """Fill rows of at most `token_budget` tokens, which include padding."""
        rows: list[list[Sample]] = [[]]
        for sample in sorted(samples, key=lambda sample: -len(sample.token_ids)):
            row = [*rows[-1], sample]
            size = len(row) * len(row[0].token_ids) if self._padded else sum(len(one.token_ids) for one in row)
            if size > self._budget:
                rows.append([sample])
            else:
                rows[-1] = row
        return rows

    def _forward(self, samples: list[Sample]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return hidden states [n, hidden] before trained tokens, these tokens, their log-probabilities, advantages."""
        ids = [torch.from_numpy(sample.token_ids).long() for sample in samples]
        trained = [torch.from_numpy(sample.loss_mask).nonzero()[:, 0] for sample in samples]
        if self._padded:
            rows = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).to(self._device)
            lengths = torch.tensor([len(one) for one in ids], device=self._device)
            mask = torch.arange(rows.shape[1], device=self._device) < lengths[:, None]
            hidden = self.model.base_model(input_ids=rows, attention_mask=mask.long(), use_cache=False)
            starts = [number * rows.shape[1] for number in range(len(ids))]
        else:
            row = PackedRow.of([len(one) for one in ids], self._device, padded=False)
            hidden = self.model.base_model(input_ids=torch.cat(ids)[None].to(self._device), **row.kwargs())
            starts = row.cu_seqlens[:-1].tolist()
        places = torch.cat([start + place - 1 for start, place in zip(starts, trained, strict=True)])
        targets = torch.cat([one[place] for one, place in zip(ids, trained, strict=True)])
        old = torch.cat([torch.from_numpy(s.logprobs)[place] for s, place in zip(samples, trained, strict=True)])
        advantages = torch.cat([torch.full((len(p),), s.advantage) for s, p in zip(samples, trained, strict=True)])
        chosen = hidden.last_hidden_state.flatten(0, 1)[places.to(self._device)]
        return chosen, targets.to(self._device), old.to(self._device), advantages.to(self._device)


def measure(system: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return speed and memory of one system, or that its memory was not enough."""
    folder = random_model(args.shape, args.layers, args.folder)
    config, lengths = model_config(args.shape, args.layers), lengths_of(args.tokens, args.median, args.sigma, args.cap)
    batch = batch_of(lengths, args.trained, vocab=config.vocab_size)
    is_cuda, seconds = args.device == "cuda", []
    try:
        if system.startswith("agentloop"):
            run = learner_step(system, args, folder)
        else:
            name, _, setting = system.partition(",")
            assert name in ("packed", "padded"), system
            assert setting in ("", "checkpointing=off"), system
            run = PlainLoop(padded=name == "padded", checkpointing=not setting, args=args, folder=folder).step
        for number in range(args.steps + 2):
            if number == 2 and is_cuda:
                torch.cuda.reset_peak_memory_stats()
            start = time.perf_counter()
            run(batch)
            if is_cuda:
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - start)
    except torch.OutOfMemoryError as error:
        return {"system": system, "out_of_memory": str(error)}
    step = sorted(seconds[2:])[args.steps // 2]
    return {
        "system": system,
        "all_seconds": seconds,
        "step_seconds": step,
        "tokens_per_second": batch.num_tokens / step,
        "mfu": flops(config, lengths, batch.num_sampled) / step / PEAK,
        "memory_peak_gib": torch.cuda.max_memory_allocated() / 2**30 if is_cuda else None,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, required=True)
    parser.add_argument("--layers", type=int, help="fewer layers than the shape has")
    parser.add_argument("--systems", nargs="+", default=["packed", "padded", "agentloop"])
    parser.add_argument("--trained", type=float, default=0.25, help="share of trained tokens")
    parser.add_argument("--tokens", type=int, default=65536, help="tokens of a step")
    parser.add_argument("--median", type=float, default=2000)
    parser.add_argument("--sigma", type=float, default=0.8)
    parser.add_argument("--cap", type=int, default=8192)
    parser.add_argument("--token-budget", type=int, default=16384)
    parser.add_argument("--attention", default="auto")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--timeout", type=float, default=300, help="seconds of one system")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    return parser.parse_args()


def in_own_process(system: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the result of one system. Raises `RuntimeError` if its process fails."""
    command = [sys.executable, "-m", "benchmarks.learner.train_families", *sys.argv[1:], "--only", system]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, timeout=args.timeout)
    except subprocess.TimeoutExpired:
        return {"system": system, "timed_out": args.timeout}
    if done.returncode:
        raise RuntimeError(f"the process of {system} ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    args = parse()
    if args.only:
        print(json.dumps(measure(args.only, args)))
        return
    config = model_config(args.shape, args.layers)
    result: dict[str, Any] = {
        "shape": args.shape,
        "layers": config.num_hidden_layers,
        "layers_of_the_shape": SHAPES[args.shape]["num_hidden_layers"],
        "config": SHAPES[args.shape],
        "options": {key: str(value) for key, value in vars(args).items()},
        "systems": [],
    }
    for system in args.systems:
        line = in_own_process(system, args)
        result["systems"].append(line)
        print(json.dumps(line), flush=True)
        speeds = {one["system"]: one.get("tokens_per_second") for one in result["systems"]}
        ours = max((speed for name, speed in speeds.items() if name.startswith("agentloop") and speed), default=None)
        plain = {name: speed for name, speed in speeds.items() if not name.startswith("agentloop") and speed}
        if ours:
            result["times_as_fast_as"] = {name: ours / speed for name, speed in plain.items()}
        gpu = torch.cuda.get_device_name() if args.device == "cuda" else None
        print(results_file.write(f"train_families_{args.shape}", result, gpu=gpu))  # keep it if a later one fails


if __name__ == "__main__":
    main()
