"""Find which roundings of a half-precision forward change the log-probabilities of a trained model, and how much.

    python -m benchmarks.rollout.rounding --model FOLDER      # of a Llama, such as SmolLM2-135M-Instruct

A forward in float32 rounds the outputs of one kind of operation, of all, or of all but some. The error is the mean
absolute difference to the forward without rounding, on tokens that the model sampled itself. Two sides that compute the
same products in another order have such errors independently of each other: their gap is up to 1.4 times as large.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks import results_file
from benchmarks.rollout.logprob_gap import QUESTIONS

PLACES = (
    "norm", "qkv", "cos_sin", "rope", "probabilities", "attention", "o_proj", "residual", "gate_up", "activation",
    "down_proj", "final_norm", "logits",
)  # fmt: skip
Rounds = Callable[[str, Tensor], Tensor]


class RoundedLlama:
    """A Llama whose operations are followed by a rounding of the caller's choice."""

    def __init__(self, model: Any) -> None:
        self._weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
        self._config = model.config
        size = self._config.head_dim
        base = self._config.rope_parameters["rope_theta"]
        self._frequencies = 1.0 / base ** (torch.arange(0, size, 2, device=model.device).float() / size)

    def _norm(self, name: str, hidden: Tensor) -> Tensor:
        scale = torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self._config.rms_norm_eps)
        return hidden * scale * self._weights[name]

    def logits(self, ids: Tensor, rounds: Rounds) -> Tensor:
        """Return the logits [sequences, tokens, vocab] of `ids` [sequences, tokens]."""
        config, weights = self._config, self._weights
        count, length = ids.shape
        angles = torch.outer(torch.arange(length, device=ids.device).float(), self._frequencies).repeat(1, 2)
        cos, sin = rounds("cos_sin", angles.cos()), rounds("cos_sin", angles.sin())
        mask = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        hidden = weights["model.embed_tokens.weight"][ids]
        for layer in range(config.num_hidden_layers):
            prefix = f"model.layers.{layer}."
            x = rounds("norm", self._norm(prefix + "input_layernorm.weight", hidden))
            q, k, v = (
                rounds("qkv", x @ weights[f"{prefix}self_attn.{part}_proj.weight"].t())
                .view(count, length, -1, config.head_dim)
                .transpose(1, 2)
                for part in "qkv"
            )
            q, k = (rounds("rope", part * cos + _rotated(part) * sin) for part in (q, k))
            repeats = config.num_attention_heads // config.num_key_value_heads
            k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
            scores = (q @ k.transpose(-1, -2) * config.head_dim**-0.5).masked_fill(~mask, -1e30)
            parts = (scores - scores.amax(-1, keepdim=True)).exp()
            x = rounds("attention", rounds("probabilities", parts) @ v / parts.sum(-1, keepdim=True))
            x = x.transpose(1, 2).reshape(count, length, -1) @ weights[prefix + "self_attn.o_proj.weight"].t()
            hidden = rounds("residual", hidden + rounds("o_proj", x))
            x = rounds("norm", self._norm(prefix + "post_attention_layernorm.weight", hidden))
            gate, up = (
                rounds("gate_up", x @ weights[f"{prefix}mlp.{part}_proj.weight"].t()) for part in ("gate", "up")
            )
            x = rounds("activation", torch.nn.functional.silu(gate) * up)
            hidden = rounds("residual", hidden + rounds("down_proj", x @ weights[prefix + "mlp.down_proj.weight"].t()))
        head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
        return rounds("logits", rounds("final_norm", self._norm("model.norm.weight", hidden)) @ head.t())


def _rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


def _rounding(places: Collection[str], dtype: torch.dtype) -> Rounds:
    return lambda place, x: x.to(dtype).float() if place in places else x


@torch.no_grad()
def measure(folder: Path, samples: int, new_tokens: int) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device).eval()
    turns = []
    for question in QUESTIONS:
        messages = [{"role": "user", "content": question}]
        prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt").input_ids
        ids = model.generate(
            prompt.repeat(samples, 1).to(device), attention_mask=torch.ones(samples, prompt.shape[1], device=device),
            do_sample=True, top_k=0, min_new_tokens=new_tokens, max_new_tokens=new_tokens,
        )  # fmt: skip
        turns.append((prompt.shape[1], ids))
    llama = RoundedLlama(model)

    def logprobs(places: Collection[str], dtype: torch.dtype) -> Tensor:
        found = []
        for start, ids in turns:
            log_p = torch.log_softmax(llama.logits(ids, _rounding(places, dtype))[:, start - 1 : -1], -1)
            found.append(log_p.gather(2, ids[:, start:, None]).flatten())
        return torch.cat(found)

    exact = logprobs((), torch.float32)

    def error(places: Collection[str], dtype: torch.dtype) -> float:
        return float((logprobs(places, dtype) - exact).abs().mean())

    half, fine = torch.bfloat16, torch.float16
    inside = [place for place in PLACES if place != "logits"]
    return {
        "tokens": len(exact),
        "mean_logprob": float(exact.mean()),
        "bfloat16": error(PLACES, half),
        "bfloat16_float32_logits": error(inside, half),
        "bfloat16_float32_logits_and_residual": error([place for place in inside if place != "residual"], half),
        "float16": error(PLACES, fine),
        "float16_float32_logits": error(inside, fine),
        "bfloat16_only": {place: error([place], half) for place in PLACES},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=8, help="of each question")
    parser.add_argument("--new-tokens", type=int, default=64)
    args = parser.parse_args()
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    result = {"model": args.model.name} | measure(args.model, args.samples, args.new_tokens)
    print(results_file.write(f"rounding_{args.model.name}", result, gpu=gpu).read_text())


if __name__ == "__main__":
    main()
