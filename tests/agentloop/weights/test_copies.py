"""A model that loads as vLLM's do: names are looked up, three matrices become one, the vocabulary is padded."""

import torch

from agentloop.weights.copies import copies_of, is_as_loaded
from agentloop.weights.shelf import WeightShelf


class Fused(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Parameter(torch.zeros(8, 4), requires_grad=False)
        self.embed = torch.nn.Parameter(torch.zeros(6, 4), requires_grad=False)
        self.norm = torch.nn.Parameter(torch.zeros(4, dtype=torch.float64), requires_grad=False)

    def load_weights(self, weights):
        places = {"q": (0, 4), "k": (4, 2), "v": (6, 2)}
        for name, weight in weights:
            if name in places:
                self.qkv.data.narrow(0, *places[name]).copy_(weight)
            elif name == "embed":
                self.embed.data[:5].copy_(weight)
                self.embed.data[5:].fill_(0)
            elif name == "norm":
                self.norm.data.copy_(weight)


def weights_of(seed):
    torch.manual_seed(seed)
    shapes = {"q": (4, 4), "k": (2, 4), "v": (2, 4), "embed": (5, 4), "norm": (4,), "lm_head.weight": (5, 4)}
    return [(name, torch.randn(shape)) for name, shape in shapes.items()]


def state(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def test_the_copies_do_what_loading_does():
    model, shelf = Fused(), WeightShelf(bucket_bytes=300)
    with torch.inference_mode():
        copies = copies_of(model, shelf.put(weights_of(0)).open())
    assert copies is not None
    for seed in (1, 2):
        shelf.put(weights_of(seed))
        with torch.inference_mode():
            copies()
        expected = Fused()
        expected.load_weights(weights_of(seed))
        for name, tensor in state(expected).items():
            assert torch.equal(model.state_dict()[name], tensor)


class Scaled(Fused):
    """Makes something else of a weight before it copies it."""

    def load_weights(self, weights):
        super().load_weights((name, weight * 2) for name, weight in weights)


class Added(Fused):
    """Writes by other means than copies."""

    def load_weights(self, weights):
        weights = dict(weights)
        super().load_weights(weights.items())
        self.norm.data.add_(weights["norm"])


class Forgetful(Fused):
    """Copies not all."""

    def load_weights(self, weights):
        super().load_weights((name, weight) for name, weight in weights if name != "k")


def test_a_model_that_does_more_is_loaded_but_has_no_copies():
    for kind in (Scaled, Added, Forgetful):
        model, expected = kind(), kind()
        assert copies_of(model, WeightShelf().put(weights_of(0)).open()) is None
        expected.load_weights(weights_of(0))
        assert all(torch.equal(tensor, model.state_dict()[name]) for name, tensor in expected.state_dict().items())


class UnquantizedLinearMethod:
    pass


class Fp8LinearMethod:
    pass


def test_models_whose_weights_are_made_into_something_else_are_not_as_loaded():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    assert is_as_loaded(model)
    model[0].quant_method = UnquantizedLinearMethod()
    assert is_as_loaded(model)
    model[1].quant_method = Fp8LinearMethod()
    assert not is_as_loaded(model)

    class MLAAttention(torch.nn.Module):
        def process_weights_after_loading(self, dtype):
            pass

    class Attention(MLAAttention):
        pass

    assert is_as_loaded(torch.nn.Sequential(Attention()))
    assert not is_as_loaded(torch.nn.Sequential(MLAAttention()))
