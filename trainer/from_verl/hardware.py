"""GPUs, and how the learner is spread over its part of them."""

from __future__ import annotations

from agentloop.trainer.from_verl.asynchronous import kind
from agentloop.trainer.from_verl.config import Settings, VerlConfig
from agentloop.trainer.from_verl.learner import sequence_parallel

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"


def hardware(verl: VerlConfig) -> Settings:
    strategy = str(verl.get(f"{_ACTOR}.strategy", default="fsdp"))
    if strategy not in ("fsdp", "fsdp2", "megatron"):
        verl.note(f"{_ACTOR}.strategy={strategy}: there is no such backend here; fsdp was taken.")
    _refuse_models(verl)
    _refuse_routers(verl)
    backend = "megatron" if strategy == "megatron" else "fsdp"
    return _placement(verl) | (_megatron(verl) if backend == "megatron" else _fsdp(verl)) | {"learner.backend": backend}


def _refuse_models(verl: VerlConfig) -> None:
    """What changes the model that is trained."""
    verl.unsupported("actor_rollout_ref.model.mtp.enable_train", "heads for several tokens are not trained here.")
    verl.unsupported(f"{_ACTOR}.fsdp_config.qat.enable", "weights are not quantised in training here.")
    verl.unsupported(f"{_ACTOR}.megatron.qat.enable", "weights are not quantised in training here.")
    verl.unsupported("distillation.enabled", "there is no teacher here.")
    for place in ("router_replay.mode", "megatron.router_replay.mode", "veomni.router_replay.mode"):
        verl.unsupported(f"{_ACTOR}.{place}", "experts are chosen anew in training here.", harmless=(None, "disabled"))


def _refuse_routers(verl: VerlConfig) -> None:
    """What mixtures of experts add to the loss."""
    transformer = f"{_ACTOR}.megatron.override_transformer_config"
    for name in ("moe_aux_loss_coeff", "moe_z_loss_coeff"):
        verl.unsupported(f"{transformer}.{name}", "the loss of the policy is all there is here.", harmless=(None, 0.0))
    kind = f"{transformer}.moe_router_load_balancing_type"
    verl.unsupported(kind, "experts are not balanced here.", harmless=(None, "none"))
    verl.unsupported(f"{transformer}.fp8", "the learner computes in bfloat16 here.", harmless=(None, False, "null"))


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
    """Where both have part of one node, verl counts that node twice."""
    total = learner + engines
    shared = total <= 8 and nodes <= 1 and engine_nodes <= 1
    return {
        "placement.n_gpus": total,
        "placement.nnodes": 1 if shared else nodes + engine_nodes,
        "placement.layout": "separate",
        "placement.learner_gpus": learner,
    }


def _takes_turns(verl: VerlConfig) -> bool:
    """verl's offload is of a learner that does not train, as its engines free their memory while they do not sample."""
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
