"""Run as a script: a server that speaks SGLang's protocol, with the smallest language model there is and no cache.

For what the engine makes of the protocol: SGLang itself needs CUDA (tests/gpu). The answers have the shapes that
SGLang 0.5.17 gives: the end token of the model stops a turn, names of requests are prefixes, an ended request answers
what it has. It computes a token at a time for each request, in turns.
"""

import argparse
import asyncio
import base64
import importlib
import json
import os
import pickle
import time
import traceback
from pathlib import Path

import numpy as np
import uvicorn
import yaml
from safetensors.numpy import load_file
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

EOS = 3


def log_softmax_of(weights, ids, temperature):
    """Of the token behind `ids`: the model knows which tokens there were, and the last one."""
    embedding = weights["embed.weight"].astype(np.float64)
    hidden = np.tanh(embedding[ids].mean(0) + embedding[ids[-1]])
    logits = hidden @ weights["head.weight"].astype(np.float64).T / (temperature or 1.0)
    return logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()


class Server:
    quantized = False
    in_parts = False
    """Whether an event of a stream has the new tokens only."""

    def __init__(self, folder, context, loader):
        self.loader = loader
        self.module = None
        self.away = set()
        self.folder = folder
        self.weights = weights_in(folder)
        self.context = context
        self.version = "default"
        self.running = {}
        self.asked = []
        self.ready_at = time.monotonic() + 0.3
        self.paths = [
            ("/health", "GET", self.health),
            ("/generate", "POST", self.generate),
            ("/abort_request", "POST", self.abort),
            ("/update_weights_from_disk", "POST", self.load),
            ("/update_weights_from_tensor", "POST", self.load_tensors),
            ("/release_memory_occupation", "POST", self.release_memory),
            ("/resume_memory_occupation", "POST", self.resume_memory),
            ("/model_info", "GET", self.model_info),
            ("/server_info", "GET", self.server_info),
            ("/v1/models", "GET", self.models),
            ("/openapi.json", "GET", self.openapi),
            ("/asked", "GET", self.tell),
            ("/crash", "POST", self.crash),
        ]

    async def health(self, request):
        return Response(status_code=200 if time.monotonic() > self.ready_at else 503)

    async def generate(self, request):
        body = await request.json()
        self.asked.append({key: value for key, value in body.items() if key != "input_ids"})
        assert not self.away, "there is memory to sample with"
        if body["sampling_params"]["max_new_tokens"] == 13 and body.get("stream"):
            return StreamingResponse(iter(['data: {"error": {"message": "13 tokens are too few"}}\n\n']))
        if body.get("stream"):
            return StreamingResponse(self.events(body), media_type="text/event-stream")
        async for answer in self.answers(body):
            last = answer
        return JSONResponse(last)

    async def events(self, body):
        num_told = 0
        async for answer in self.answers(body):
            if self.in_parts:
                logprobs = answer["meta_info"].get("output_token_logprobs", [])
                answer["meta_info"]["output_token_logprobs"] = logprobs[num_told:]
                num_told = len(logprobs)
            yield f"data: {json.dumps(answer)}\n\n"
        yield "data: [DONE]\n\n"

    async def answers(self, body):
        """After each token what there is so far."""
        name, params, ids = body["rid"], body["sampling_params"], list(body["input_ids"])
        num_prompt = len(ids)
        self.running[name] = False
        generator = np.random.default_rng(params.get("sampling_seed"))
        logprobs, finish = [], None
        while finish is None:
            if self.running[name]:
                finish = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
                break
            token, logprob = self.sample(ids, params, generator)
            ids.append(token)
            logprobs.append([logprob, token, None])
            if len(logprobs) >= params["max_new_tokens"]:
                finish = {"type": "length", "length": params["max_new_tokens"]}
            elif token in params["stop_token_ids"] or token == EOS:
                finish = {"type": "stop", "matched": token}
            if finish is None:
                yield self.answer(name, ids, num_prompt, logprobs, None)
            await asyncio.sleep(0.001)
        del self.running[name]
        yield self.answer(name, ids, num_prompt, logprobs, finish)

    def answer(self, name, ids, num_prompt, logprobs, finish):
        meta = {
            "id": name,
            "finish_reason": finish,
            "prompt_tokens": num_prompt,
            "weight_version": self.version,
            "completion_tokens": len(logprobs),
            "cached_tokens": 0,
        }
        if logprobs:
            meta |= {"input_token_logprobs": [], "output_token_logprobs": list(logprobs)}
        return {"output_ids": ids[num_prompt:], "meta_info": meta}

    def sample(self, ids, params, generator):
        logprobs = log_softmax_of(self.weights, ids, params["temperature"])
        kept = 1 if params["temperature"] == 0 else params["top_k"] if params["top_k"] > 0 else len(logprobs)
        best = np.argsort(-logprobs)[:kept]
        chances = np.exp(logprobs[best])
        token = int(generator.choice(best, p=chances / chances.sum()))
        return token, float(logprobs[token])

    async def abort(self, request):
        body = await request.json()
        for name in self.running:
            if body.get("abort_all") or name.startswith(body["rid"]):
                self.running[name] = True
        return Response(status_code=200)

    async def load(self, request):
        body = await request.json()
        assert not self.running, "weights change when nothing runs"
        try:
            self.weights = weights_in(body["model_path"])
        except (OSError, LookupError) as error:
            message = f"Failed to get weights iterator: {error}."
            return JSONResponse({"success": False, "message": message, "num_paused_requests": 0}, 400)
        self.module = None
        self.folder, self.version = body["model_path"], body["weight_version"]
        return JSONResponse({"success": True, "message": "Succeeded.", "num_paused_requests": 0})

    async def load_tensors(self, request):
        """As SGLang's scheduler, in which what a loader raises ends the server."""
        body = await request.json()
        assert not self.running, "weights change when nothing runs"
        assert "weights" not in self.away, "there is memory for them"
        assert body["load_format"] == self.loader, "the server was started with it"
        (payload,) = body["serialized_named_tensors"]
        module, _, function = self.loader.rpartition(".")
        if self.module is None:
            self.module = module_of(self.weights)
            if self.quantized:
                self.module.quant_method = self
        try:
            getattr(importlib.import_module(module), function)(self.module, pickle.loads(base64.b64decode(payload)))
        except Exception:
            traceback.print_exc()
            os._exit(4)
        self.weights = {name: tensor.detach().numpy() for name, tensor in self.module.state_dict().items()}
        self.version = body["weight_version"]
        return JSONResponse({"success": True, "message": "Success"})

    async def release_memory(self, request):
        assert not self.running, "release_memory_occupation should be called only when server is idle."
        self.away |= set((await request.json())["tags"])
        return Response(status_code=200)

    async def resume_memory(self, request):
        self.away -= set((await request.json())["tags"])
        return Response(status_code=200)

    async def model_info(self, request):
        return JSONResponse({"model_path": self.folder, "weight_version": self.version})

    async def server_info(self, request):
        return JSONResponse({"version": "0.5.17", "model_path": self.folder})

    async def models(self, request):
        return JSONResponse({"object": "list", "data": [{"id": self.folder, "max_model_len": self.context}]})

    async def openapi(self, request):
        return JSONResponse({"paths": {path: {} for path, _, _ in self.paths}})

    async def tell(self, request):
        return JSONResponse({"asked": self.asked, "running": list(self.running), "away": sorted(self.away)})

    async def crash(self, request):
        os._exit(3)


def needs_key(app, key):
    """As SGLang with --api-key; the two routes that only this server has are for tests."""

    async def checked(scope, receive, send):
        given = dict(scope.get("headers", ())).get(b"authorization", b"").decode()
        is_open = scope["type"] != "http" or scope["path"] in ("/health", "/asked", "/crash")
        if key is None or is_open or given == f"Bearer {key}":
            await app(scope, receive, send)
        else:
            await JSONResponse({"error": "Unauthorized"}, 401)(scope, receive, send)

    return checked


def module_of(weights):
    """A torch module with these weights, which loads others as SGLang's models do."""
    import torch

    class Model(torch.nn.Module):
        def load_weights(self, new):
            parameters = dict(self.named_parameters())
            for name, tensor in new:
                parameters[name].data.copy_(tensor)

    model = Model()
    for name, array in weights.items():
        owner, _, attribute = name.rpartition(".")
        model.add_module(owner, torch.nn.Module())
        value = torch.nn.Parameter(torch.tensor(array), requires_grad=False)
        model.get_submodule(owner).register_parameter(attribute, value)
    return model


def weights_in(folder):
    files = sorted(Path(folder).glob("*.safetensors"))
    if not files:
        raise LookupError(f"Cannot find any model weights with `{folder}`")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--context-length", type=int, default=100_000)
    parser.add_argument("--custom-weight-loader")
    parser.add_argument("--config")
    parser.add_argument("--quantized", action="store_true")
    parser.add_argument("--incremental-streaming-output", action="store_true")
    parser.add_argument("--fail")
    options, _ = parser.parse_known_args()
    if options.fail:
        raise SystemExit(options.fail)
    Server.quantized = options.quantized
    Server.in_parts = options.incremental_streaming_output
    server = Server(options.model_path, options.context_length, options.custom_weight_loader)
    key = yaml.safe_load(Path(options.config).read_text())["api-key"] if options.config else None
    app = Starlette(routes=[Route(path, endpoint, methods=[method]) for path, method, endpoint in server.paths])
    uvicorn.run(needs_key(app, key), host="127.0.0.1", port=options.port, log_level="warning")
