"""Compare loss and gradient of the LM head with the three matrix products that are the minimum.

    python -m benchmarks.learner.lm_head [--tokens 8192 --hidden 4096 --vocab 151936]

`bare` is one matrix product each for logits, gradient of hidden states and gradient of the weight. `fused` is
`fused_head.head_loss`, `recomputing` is `logprobs.token_logprobs`, both forward and backward with a PPO loss. Memory is
the peak beyond inputs and the gradients of both. `gspo` and `gmpo` are `fused` with these losses, as the learner
computes them, over trajectories of `--lengths` trained tokens. Accuracy is of gradients against float64, on fewer
tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from agentloop.config.learner import LearnerConfig
from agentloop.trainer.batch.trained_tokens import TrainedTokens
from agentloop.trainer.model.head.fused_head import head_loss
from agentloop.trainer.model.head.logprobs import token_logprobs
from agentloop.trainer.objective.objective import Objective
from benchmarks import results_file


def milliseconds(run: Callable[[], Any], repeats: int = 20) -> float:
    """Return the median of `repeats` after two warm-up calls."""
    times = []
    for number in range(repeats + 2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        if number >= 2:
            times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


class Case:
    """Return random hidden states and weights whose logits have the spread of a trained model."""

    def __init__(self, tokens: int, hidden: int, vocab: int, dtype: torch.dtype = torch.bfloat16) -> None:
        torch.manual_seed(0)
        self.hidden = torch.randn(tokens, hidden, device="cuda").to(dtype).requires_grad_()
        self.weight = (torch.randn(vocab, hidden, device="cuda") * 3 / hidden**0.5).to(dtype).requires_grad_()
        self.targets = torch.randint(vocab, (tokens,), device="cuda")
        self.advantages = torch.randn(tokens, device="cuda")
        self.old = torch.randn(tokens, device="cuda") * 0.1 - 16.0

    def loss(self, logprobs: Tensor, entropy: Tensor, rows: slice) -> Tensor:
        ratio = (logprobs - self.old[rows]).clamp(-2, 2).exp()
        advantages = self.advantages[rows]
        surrogate = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.28))
        return (surrogate - 0.01 * entropy).sum() / len(self.targets)

    def clear(self) -> None:
        self.hidden.grad = self.weight.grad = None

    def bare(self) -> None:
        hidden, weight = self.hidden.detach(), self.weight.detach()
        logits = hidden @ weight.t()
        torch.mm(logits, weight)
        torch.mm(logits.t(), hidden)

    def fused(self) -> None:
        self.clear()
        head_loss(self.hidden, self.weight, self.targets, self.loss)[0].backward()

    def trajectories(self, loss: str, length: int) -> Callable[[], None]:
        """Measure a loss of whole trajectories of this many tokens each."""
        objective = Objective(LearnerConfig(model="", loss=loss))
        counts = [length] * (len(self.targets) // length)
        counts += [rest] if (rest := len(self.targets) - sum(counts)) else []
        sizes = torch.tensor(counts, device="cuda")
        tokens = TrainedTokens(
            rollout_logprobs=self.old,
            ages=torch.zeros_like(self.targets, dtype=torch.int32),
            advantages=self.advantages[: len(counts)].repeat_interleave(sizes),
            weights=torch.full_like(self.old, 1 / len(self.old)),
            sequences=torch.arange(len(counts), device="cuda").repeat_interleave(sizes),
            counts=sizes,
            sizes=np.array(counts),
        )
        assert not objective.is_tokenwise

        def run() -> None:
            self.clear()
            of_rows = partial(objective.of_rows, tokens)
            head_loss(self.hidden, self.weight, self.targets, of_rows, units=tokens.sizes)[0].backward()

        return run

    def recomputing(self) -> None:
        self.clear()
        logprobs, entropy = token_logprobs(self.hidden, self.weight, self.targets)
        self.loss(logprobs, entropy, slice(None)).backward()


def peak_gib(case: Case, run: Callable[[], None]) -> float:
    case.clear()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    gradients = case.hidden.nbytes + case.weight.nbytes
    return (torch.cuda.max_memory_allocated() - before - gradients) / 2**30


def errors(tokens: int, hidden: int, vocab: int) -> dict[str, list[float]]:
    """Return the relative error of the gradients of hidden states and weight: ours, and plain bfloat16 autograd."""
    case = Case(tokens, hidden, vocab)
    exact = [tensor.detach().double().requires_grad_() for tensor in (case.hidden, case.weight)]

    def plain(hidden: Tensor, weight: Tensor) -> list[Tensor]:
        log_p = torch.log_softmax((hidden @ weight.t()).to(torch.promote_types(hidden.dtype, torch.float32)), -1)
        entropy = -(log_p.exp() * log_p).sum(-1)
        loss = case.loss(log_p.gather(1, case.targets[:, None])[:, 0], entropy, slice(None))
        return list(torch.autograd.grad(loss, (hidden, weight)))

    want = plain(*exact)
    found = {"autograd": plain(case.hidden, case.weight)}
    for name in ("fused", "recomputing"):
        getattr(case, name)()
        assert case.hidden.grad is not None
        assert case.weight.grad is not None
        found[name] = [case.hidden.grad, case.weight.grad]
    return {
        name: [((g.double() - w).norm() / w.norm()).item() for g, w in zip(grads, want, strict=True)]
        for name, grads in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192], help="of trajectories")
    args = parser.parse_args()
    accuracy = errors(1024, 512, args.vocab)
    torch.cuda.empty_cache()
    case = Case(args.tokens, args.hidden, args.vocab)
    result: dict[str, Any] = {
        "case": vars(args),
        "gradient_error": accuracy,
        "bare_gemms_ms": milliseconds(case.bare),
        "fused_ms": milliseconds(case.fused),
        "recomputing_ms": milliseconds(case.recomputing),
        "fused_peak_gib": peak_gib(case, case.fused),
        "recomputing_peak_gib": peak_gib(case, case.recomputing),
    }
    for loss in ("gspo", "gmpo"):
        result[f"{loss}_ms"] = {n: milliseconds(case.trajectories(loss, n)) for n in args.lengths}
        result[f"{loss}_over_bare"] = {n: ms / result["bare_gemms_ms"] for n, ms in result[f"{loss}_ms"].items()}
    result["fused_over_bare"] = result["fused_ms"] / result["bare_gemms_ms"]
    result["recomputing_over_bare"] = result["recomputing_ms"] / result["bare_gemms_ms"]
    for key, value in result.items():
        print(key, value)
    print(results_file.write(f"lm_head_{args.hidden}", result, gpu=torch.cuda.get_device_name()))


if __name__ == "__main__":
    main()
