"""Convert the engine, sampling and evaluation."""

from __future__ import annotations

from agentloop.trainer.from_verl.config import Settings, VerlConfig, positive

_ROLLOUT = "actor_rollout_ref.rollout"


def rollout(verl: VerlConfig) -> Settings:
    """Convert rendering, sampling, engine and evaluation."""
    verl.unsupported(f"{_ROLLOUT}.ignore_eos", "a turn always ends at the end-of-turn token.")
    for name, plain in (("repetition_penalty", 1.0), ("min_p", 0.0)):
        verl.unsupported(
            f"{_ROLLOUT}.{name}", "sampling has only temperature, top_p and top_k.", harmless=(None, plain)
        )
    return {
        "rendering.chat_template_kwargs": verl.get("data.apply_chat_template_kwargs") or None,
        "rendering.chat_template": verl.get("actor_rollout_ref.model.custom_chat_template"),
        "sampling.temperature": verl.number(f"{_ROLLOUT}.temperature"),
        "sampling.top_p": verl.number(f"{_ROLLOUT}.top_p"),
        "sampling.top_k": max(verl.number(f"{_ROLLOUT}.top_k", default=0), 0),
        **_engine(verl),
        **_evaluation(verl),
    }


def _engine(verl: VerlConfig) -> Settings:
    engine = verl.get(f"{_ROLLOUT}.name", default="vllm")
    if engine not in ("vllm", "sglang"):
        verl.note(f"{_ROLLOUT}.name={engine}: agentloop does not have this engine; vllm is used.")
        engine = "vllm"
    options: Settings = {"tensor_parallel_size": verl.number(f"{_ROLLOUT}.tensor_model_parallel_size", default=1)}
    pipeline = verl.number(f"{_ROLLOUT}.pipeline_model_parallel_size", default=1)
    memory = verl.number(f"{_ROLLOUT}.gpu_memory_utilization")
    sequences = verl.number(f"{_ROLLOUT}.max_num_seqs")
    dtype, quantization = verl.get(f"{_ROLLOUT}.dtype", default="bfloat16"), verl.get(f"{_ROLLOUT}.quantization")
    if memory is not None:
        options["gpu_memory_utilization"] = memory
    if pipeline > 1 and engine == "vllm":
        options["pipeline_parallel_size"] = pipeline
    if verl.is_set(f"{_ROLLOUT}.max_num_seqs"):
        options["max_num_seqs"] = sequences
    if dtype not in ("bfloat16", "auto"):
        options["dtype"] = dtype
    if quantization == "fp8" and engine == "vllm":
        options["quantization"] = "fp8"
    elif quantization not in (None, "null", "None"):
        verl.lack(
            f"{_ROLLOUT}.quantization={quantization}: engines compute in {options.get('dtype', 'bfloat16')} here."
        )
    options |= _model_overrides(verl, engine)
    kwargs = verl.get(f"{_ROLLOUT}.engine_kwargs") or {}
    own = {name: value for name, value in (kwargs.get(engine) or {}).items() if value is not None}
    if others := sorted(name for name in kwargs if name != engine and kwargs[name]):
        verl.note(f"{_ROLLOUT}.engine_kwargs of {', '.join(others)} are not used: the engine is {engine}.")
    options |= own if engine == "vllm" else {"server_args": own} if own else {}
    return {"engine.name": engine, "engine.options": options}


def _model_overrides(verl: VerlConfig, engine: str) -> Settings:
    """Convert changes to the model's config.json; only the engine needs to know a longer context."""
    changes = dict(verl.get("actor_rollout_ref.model.override_config") or {})
    changes |= changes.pop("model_config", None) or {}
    longest = changes.pop("max_position_embeddings", None)
    others = [name for name in changes if not name.endswith(("dropout", "pdrop", "attn_implementation"))]
    if others:
        verl.lack(
            f"actor_rollout_ref.model.override_config: {', '.join(others)} keep the values of the model's config.json."
        )
    if longest is None:
        return {}
    if engine != "vllm":
        verl.lack(f"max_position_embeddings={longest}: set it in the model's config.json for {engine}.")
        return {}
    return {"hf_overrides": {"max_position_embeddings": longest}}


def _evaluation(verl: VerlConfig) -> Settings:
    kwargs = f"{_ROLLOUT}.val_kwargs"
    top_k, temperature = verl.number(f"{kwargs}.top_k", default=-1), verl.number(f"{kwargs}.temperature", default=0)
    top_p, samples = verl.number(f"{kwargs}.top_p"), verl.get(f"{kwargs}.do_sample", default=False)
    if temperature and not samples:
        verl.note(f"{kwargs}.do_sample=False: verl's agent loops ignore it and sample at temperature {temperature}.")
    if temperature and max(top_k, 0) != max(verl.number(f"{_ROLLOUT}.top_k", default=-1), 0):
        verl.note(f"{kwargs}.top_k={top_k}: evaluation uses the top_k of training here.")
    every = verl.number("rollout.test_freq") if "async_training" in verl.values else None
    every = positive(every if every is not None else verl.number("trainer.test_freq"))
    has_files = verl.get("data.val_files") not in (None, [])
    if verl.get("trainer.val_only", default=False):
        verl.note("trainer.val_only: use `agentloop rollout` instead.")
    return {
        "eval.every": every if has_files else None,
        "eval.samples": verl.number(f"{kwargs}.n"),
        "eval.temperature": temperature,
        "eval.top_p": top_p if temperature else None,
    }
