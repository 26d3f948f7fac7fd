"""Layers in FP8 get new weights from recorded copies; tests/gpu/test_fp8_cuda.py has the layers of vLLM itself.

The layers here load and round as those of vLLM do: their loader fills a parameter of the size in the checkpoint.
"""

import sys
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from agentloop.engines.vllm.loading.rounding import rounded_copies
from agentloop.weights.shelf import WeightShelf

_RELOAD = "vllm.model_executor.model_loader.reload"
_PLACES = {"q": slice(0, 4), "k": slice(4, 6), "v": slice(6, 8)}


class Fp8PtpcOnlineLinearMethod:
    def process_weights_after_loading(self, layer):
        if getattr(layer, "_already_called_process_weights_after_loading", False):
            return
        scale = layer.weight.abs().amax(1, keepdim=True).float() / 448
        rounded = (layer.weight.float() / scale).to(torch.float8_e4m3fn)
        layer.weight = torch.nn.Parameter(rounded.t(), requires_grad=False)
        layer.weight_scale = torch.nn.Parameter(scale, requires_grad=False)
        layer._already_called_process_weights_after_loading = True


def load_part(parameter, weight, place):
    parameter.data[place].copy_(weight)


class Attention(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = torch.nn.Linear(4, 8, bias=False)
        self.qkv.weight = torch.nn.Parameter(torch.ones(8, 4), requires_grad=False)
        self.qkv.quant_method = Fp8PtpcOnlineLinearMethod()
        self.qkv.quant_method.process_weights_after_loading(self.qkv)
        self.norm = torch.nn.Parameter(torch.zeros(4), requires_grad=False)

    def load_weights(self, weights):
        for name, weight in weights:
            if name in _PLACES:
                self.qkv.weight.weight_loader(self.qkv.weight, weight, _PLACES[name])
            elif name == "norm":
                self.norm.data.copy_(weight)


@pytest.fixture(autouse=True)
def reload(monkeypatch):
    """vLLM's modules of the reload, with the functions that are used."""
    meta = torch.nn.Parameter(torch.empty(8, 4, device="meta"), requires_grad=False)
    meta.weight_loader = "a loader that waits for all weights of a layer"
    info = SimpleNamespace(restore_metadata=({"weight": meta}, {}))

    def copy_of(parameter):
        found = torch.nn.Parameter(parameter.data, requires_grad=False)
        found.weight_loader = parameter.weight_loader
        return found

    layerwise = SimpleNamespace(
        get_layerwise_info=lambda layer: info, _get_original_loader=lambda _: partial(load_part)
    )
    monkeypatch.setitem(sys.modules, f"{_RELOAD}.layerwise", layerwise)
    monkeypatch.setitem(sys.modules, f"{_RELOAD}.meta", SimpleNamespace(to_meta_tensor=copy_of))
    monkeypatch.setitem(
        sys.modules, f"{_RELOAD}.sanitize", SimpleNamespace(restore_layer_refs=lambda parameter, layer: parameter)
    )


def weights_of(seed):
    torch.manual_seed(seed)
    shapes = {"q": (4, 4), "k": (2, 4), "v": (2, 4), "norm": (4,)}
    return [(name, torch.randn(shape)) for name, shape in shapes.items()]


def test_each_load_rounds_the_weights_in_memory_into_the_same_parameters():
    model, shelf = Attention(), WeightShelf(bucket_bytes=300)
    places = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    mapped = shelf.put(weights_of(0)).open()
    with torch.inference_mode():
        load = rounded_copies(model, mapped, mapped)
    assert load is not None
    for seed in (0, 1, 2):
        weights = dict(weights_of(seed))
        shelf.put(weights.items())
        with torch.inference_mode():
            load()
        assert torch.equal(model.norm, weights["norm"])
        assert model.qkv.weight.dtype == torch.float8_e4m3fn
        whole = torch.cat([weights["q"], weights["k"], weights["v"]])
        found = model.qkv.weight.t().float() * model.qkv.weight_scale
        torch.testing.assert_close(found, whole, rtol=2**-4, atol=2e-3 * float(whole.abs().max()))
        assert {name: parameter.data_ptr() for name, parameter in model.named_parameters()} == places


class OtherMethod:
    pass


def test_models_with_other_quantised_layers_or_none_are_left_to_the_reload_of_vllm():
    model = Attention()
    model.extra = torch.nn.Linear(4, 4)
    model.extra.quant_method = OtherMethod()
    shelf = WeightShelf()
    mapped = shelf.put(weights_of(0)).open()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert rounded_copies(model, mapped, mapped) is None
    assert rounded_copies(torch.nn.Linear(4, 4), mapped, mapped) is None
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.float(), before[name].float())


def test_a_loader_that_does_more_than_copy_leaves_the_parameters_of_the_layer():
    model = Attention()
    rounded = model.qkv.weight
    shelf = WeightShelf()
    mapped = shelf.put(weights_of(0)).open()
    assert rounded_copies(model, mapped, [(name, weight * 2) for name, weight in mapped]) is None
    assert model.qkv.weight is rounded
