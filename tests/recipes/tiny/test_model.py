import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from agentloop.recipes.tiny.model import build_model


def test_folder_loads_like_any_model(tmp_path):
    folder = build_model(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.model_type == "qwen3"
    assert 1_000_000 <= sum(p.numel() for p in model.parameters()) <= 2_000_000
    assert model.config.eos_token_id == model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert model.config.vocab_size >= len(tokenizer)
    assert tokenizer.chat_template
    ids = tokenizer("print(12)", return_tensors="pt").input_ids
    assert torch.isfinite(model(ids).logits).all()


def test_seed_determines_the_weights_without_touching_the_global_rng(tmp_path):
    def weight(name, seed):
        model = AutoModelForCausalLM.from_pretrained(build_model(tmp_path / name, seed))
        return model.model.layers[0].mlp.up_proj.weight

    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = weight("a", 1), weight("b", 1), weight("c", 2)
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
