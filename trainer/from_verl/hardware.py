"""Convert the number of GPUs, the placement and the learner's layout."""

from __future__ import annotations

from agentloop.trainer.from_verl.asynchronous import kind
from agentloop.trainer.from_verl.config import Settings, VerlConfig
from agentloop.trainer.from_verl.learner import sequence_parallel

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"


def hardware(verl: VerlConfig) -> Settings:
    """Convert backend, placement and parallelism."""
    strategy = str(verl.get(f"{_ACTOR}.strategy", default="fsdp"))
    if strategy not in ("fsdp", "fsdp2", "megatron"):
        verl.note(f"{_ACTOR}.strategy={strategy}: agentloop does not have this backend; fsdp is used.")
    _refuse_models(verl)
    _refuse_routers(verl)
    backend = "megatron" if strategy == "megatron" else "fsdp"
    return _placement(verl) | (_megatron(verl) if backend == "megatron" else _fsdp(verl)) | {"learner.backend": backend}


def _refuse_models(verl: VerlConfig) -> None:
    """Record changes of the trained model that are not supported."""
    verl.unsupported("actor_rollout_ref.model.mtp.enable_train", "multi-token prediction heads are not trained here.")
    verl.unsupported(f"{_ACTOR}.fsdp_config.qat.enable", "quantisation-aware training is not supported.")
    verl.unsupported(f"{_ACTOR}.megatron.qat.enable", "quantisation-aware training is not supported.")
    verl.unsupported("distillation.enabled", "distillation is not supported.")
    for place in ("router_replay.mode", "megatron.router_replay.mode", "veomni.router_replay.mode"):
        verl.unsupported(f"{_ACTOR}.{place}", "the learner routes tokens itself.", harmless=(None, "disabled"))


def _refuse_routers(verl: VerlConfig) -> None:
    """Record losses of mixtures of experts that are not supported."""
    transformer = f"{_ACTOR}.megatron.override_transformer_config"
    for name in ("moe_aux_loss_coeff", "moe_z_loss_coeff"):
        verl.unsupported(
            f"{transformer}.{name}", "auxiliary losses of routers are not supported.", harmless=(None, 0.0)
        )
    kind = f"{transformer}.moe_router_load_balancing_type"
    verl.unsupported(kind, "load balancing of experts is not supported.", harmless=(None, "none"))
    verl.unsupported(f"{transformer}.fp8", "the learner computes in bfloat16.", harmless=(None, False, "null"))


def _placement(verl: VerlConfig) -> Settings:
    nodes, per_node = verl.number("trainer.nnodes", default=1), verl.number("trainer.n_gpus_per_node", default=8)
    if kind(verl) in ("fully_async", "one_step") or kind(verl) == "separate_async":
        of_engines = "rollout" if "rollout" in verl.values else _ROLLOUT
        engine_nodes = verl.number(f"{of_engines}.nnodes", default=0)
        engine_gpus = engine_nodes * verl.number(f"{of_engines}.n_gpus_per_node", default=8)
        return _separate(nodes * per_node, nodes, engine_gpus, engine_nodes)
    settings: Settings = {
        "placement.n_gpus": nodes * per_node,
        "placement.nnodes": nodes,
        "placement.layout": "colocated",
    }
    return settings | {"placement.sleep": _takes_turns(verl) if kind(verl) == "sync" else None}


def _separate(learner: int, nodes: int, engines: int, engine_nodes: int) -> Settings:
    """Return a separate placement; verl counts a shared node twice."""
    total = learner + engines
    shared = total <= 8 and nodes <= 1 and engine_nodes <= 1
    return {
        "placement.n_gpus": total,
        "placement.nnodes": 1 if shared else nodes + engine_nodes,
        "placement.layout": "separate",
        "placement.learner_gpus": learner,
    }


def _takes_turns(verl: VerlConfig) -> bool:
    """Return whether learner and engines take turns: verl offloads an idle learner, and engines free idle memory."""
    frees = [verl.get(f"{_ROLLOUT}.{name}", default=True) for name in ("free_cache_engine", "enable_sleep_mode")]
    offloads = [
        verl.get(f"{_ACTOR}.{backend}.{what}_offload", default=False)
        for backend in ("fsdp_config", "megatron")
        for what in ("param", "optimizer")
    ]
    return all(frees) or any(offloads)


def _fsdp(verl: VerlConfig) -> Settings:
    per_node, nodes = verl.number("trainer.n_gpus_per_node", default=8), verl.number("trainer.nnodes", default=1)
    group = verl.number(f"{_ACTOR}.fsdp_config.fsdp_size", default=-1)
    return {
        "learner.offload": "all" if verl.get(f"{_ACTOR}.fsdp_config.offload_policy") else None,
        "learner.sequence_parallel": sequence_parallel(verl),
        "learner.shard": "node" if group == per_node and nodes > 1 else None,
    }


def _megatron(verl: VerlConfig) -> Settings:
    sizes = {"tensor": "tensor_model", "pipeline": "pipeline_model", "context": "context", "expert": "expert_model"}
    pieces = verl.number(f"{_ACTOR}.megatron.virtual_pipeline_model_parallel_size")
    return {"learner.virtual_pipeline": pieces or None} | {
        f"learner.{ours}_parallel": verl.number(f"{_ACTOR}.megatron.{theirs}_parallel_size")
        for ours, theirs in sizes.items()
    }
