"""Convert the advantage, the loss and the selection of episodes."""

from __future__ import annotations

from agentloop.trainer.from_verl.asynchronous import cycle
from agentloop.trainer.from_verl.config import Settings, VerlConfig, positive
from agentloop.trainer.from_verl.corrections import corrections, is_bypassed

_ADVANTAGES = {
    "gae": "gae",
    "gpg": "gpg",
    "grpo": "grpo",
    "grpo_vectorized": "grpo",
    "opo": "opo",
    "reinforce_plus_plus": "reinforce_pp",
    "reinforce_plus_plus_baseline": "reinforce_pp_baseline",
    "remax": "remax",
    "rloo": "rloo",
    "rloo_vectorized": "rloo",
}
_LOSSES = {
    "cispo": "cispo",
    "dppo_kl": "dppo_kl",
    "dppo_tv": "dppo_tv",
    "geo_mean": "gmpo",
    "gpg": "reinforce",
    "gspo": "gspo",
    "sapo": "sapo",
    "vanilla": "ppo",
}
_OF_SEQUENCES = ("gmpo", "sapo")
"""Losses that verl always averages over sequences; it ignores loss_agg_mode for them."""
_AGGREGATIONS = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
_KL_ESTIMATORS = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
_KL_GRADIENTS = {f"{name}+": "k2" for name in _KL_ESTIMATORS}
"""Estimators with the value of another estimator and the gradient of k2."""
_ACTOR = "actor_rollout_ref.actor"


def algorithm(verl: VerlConfig) -> Settings:
    """Convert advantage, groups, loss and KL."""
    return _advantage(verl) | _groups(verl) | _kl_in_reward(verl) | _loss(verl) | _kl_loss(verl)


def _advantage(verl: VerlConfig) -> Settings:
    warmup = verl.number("trainer.critic_warmup")
    advantage = verl.named(_ADVANTAGES, "algorithm.adv_estimator", default="gae")
    scaled = verl.get("algorithm.norm_adv_by_std_in_grpo", default=True)
    if advantage == "grpo" and not scaled:
        advantage = "dr_grpo"
    verl.unsupported("algorithm.use_pf_ppo", "agentloop does not resample rows by their rewards.")
    settings: Settings = {"algorithm.advantage": advantage}
    gamma, lam = float(verl.number("algorithm.gamma", default=1.0)), float(verl.number("algorithm.lam", default=1.0))
    if advantage == "reinforce_pp" and gamma != 1:
        settings["algorithm.advantage_options"] = {"gamma": gamma}
    if advantage == "gae":
        settings["algorithm.advantage_options"] = {"gamma": gamma, "lam": lam, "critic_lam": lam}
        settings |= _critic(verl) | {"critic.warmup_steps": warmup}
    return settings


def _critic(verl: VerlConfig) -> Settings:
    tasks, _ = cycle(verl)
    per_update = verl.number("critic.ppo_mini_batch_size", f"{_ACTOR}.ppo_mini_batch_size", default=tasks)
    policy, critic = verl.get("actor_rollout_ref.model.path"), verl.get("critic.model.path")
    return {
        "critic.model": critic if critic != policy else None,
        "critic.lr": verl.number("critic.optim.lr"),
        "critic.mini_batches": max(tasks // per_update, 1),
        "critic.clip": verl.number("critic.cliprange_value"),
    }


def _groups(verl: VerlConfig) -> Settings:
    settings: Settings = {"algorithm.group_size": verl.number("actor_rollout_ref.rollout.n", default=1)}
    filters = "algorithm.filter_groups"
    rounds = positive(verl.number(f"{filters}.max_num_gen_batches"))
    metric = verl.get(f"{filters}.metric")
    (tasks, _), played = cycle(verl), verl.number("data.gen_batch_size")
    if not verl.get(f"{filters}.enable", default=False):
        return settings
    sampling: Settings = {} if not played or played <= tasks else {"oversampling": round(played / tasks, 4)}
    # verl fails after its last round; agentloop then trains on the groups it has.
    settings["algorithm.dynamic_sampling"] = sampling | {"max_rounds": rounds or 100}
    if metric not in (None, "reward", "score", "seq_reward", "seq_final_reward"):
        verl.note(f"{filters}.metric={metric}: agentloop filters out groups whose rewards are all equal.")
    return settings


def _kl_in_reward(verl: VerlConfig) -> Settings:
    ctrl = "algorithm.kl_ctrl"
    coefficient = verl.number(f"{ctrl}.kl_coef", default=0.001)
    verl.read_keys.update(("algorithm.kl_penalty", f"{ctrl}.type"))
    if not verl.get("algorithm.use_kl_in_reward", default=False) or not coefficient:
        return {}
    verl.unsupported("algorithm.kl_penalty", "the penalty here is log policy - log reference.", harmless=("kl", "k1"))
    verl.unsupported(f"{ctrl}.type", "the coefficient is constant here.", harmless=(None, "fixed"))
    return {"algorithm.kl_in_reward": coefficient, "learner.reference": _reference(verl)}


def _reference(verl: VerlConfig) -> str | None:
    model = "actor_rollout_ref.model.path"
    return verl.get("actor_rollout_ref.ref.model.path", model)  # type: ignore[no-any-return]


def _loss(verl: VerlConfig) -> Settings:
    loss = verl.named(_LOSSES, f"{_ACTOR}.policy_loss.loss_mode", f"{_ACTOR}.loss_mode", default="vanilla")
    settings, options = corrections(verl, loss), _loss_options(verl, loss)
    if "learner.loss" not in settings:
        settings |= {"learner.loss": loss, "learner.loss_options": options or None}
    aggregation = _aggregation(verl, settings["learner.loss"])
    if aggregation == "seq_mean_token_sum_norm":
        scale = verl.number(f"{_ACTOR}.loss_scale_factor", "data.max_response_length")
        settings["learner.aggregation_norm"] = float(scale)
    return settings | {
        "learner.aggregation": aggregation,
        "learner.entropy_bonus": verl.number(f"{_ACTOR}.entropy_coeff"),
        "learner.old_logprobs": "rollout" if is_bypassed(verl) else "learner",
    }


def _loss_options(verl: VerlConfig, loss: str) -> Settings:
    clip = verl.number(f"{_ACTOR}.clip_ratio", default=0.2)
    low, high = (float(verl.number(f"{_ACTOR}.clip_ratio_{side}", default=clip)) for side in ("low", "high"))
    dual = float(verl.number(f"{_ACTOR}.clip_ratio_c", default=3.0))
    temperatures = {
        f"temperature_{sign}": verl.get(f"{_ACTOR}.tau_{sign[:3]}", f"{_ACTOR}.policy_loss.tau_{sign[:3]}")
        for sign in ("positive", "negative")
    }
    match loss:
        case "ppo":
            return {"clip_low": min(low, 1.0), "clip_high": high, "dual_clip": dual}
        case "cispo" | "gspo":
            return {"clip_low": min(low, 1.0), "clip_high": high}  # ratios are positive
        case "gmpo":
            return {"clip_low": low, "clip_high": high}
        case "dppo_kl" | "dppo_tv":
            return {"low": low, "high": high, "cap": dual}
        case "sapo":
            return {name: value for name, value in temperatures.items() if value is not None}
    return {}


def _aggregation(verl: VerlConfig, loss: str) -> str:
    mode = str(verl.get(f"{_ACTOR}.loss_agg_mode", default="token-mean"))
    if loss in _OF_SEQUENCES:
        added = verl.get(f"{_ACTOR}.use_kl_loss") or verl.number(f"{_ACTOR}.entropy_coeff")
        if mode != "seq-mean-token-mean" and added:
            verl.note(
                f"{_ACTOR}.loss_agg_mode={mode}: verl uses it for KL and entropy, and averages {loss} over sequences."
            )
        return "seq_mean_token_mean"
    if loss == "gspo" and mode != "seq-mean-token-mean":
        verl.note(f"{_ACTOR}.loss_agg_mode={mode}: verl before 0.9.1 uses seq-mean-token-mean for gspo instead.")
    if mode not in _AGGREGATIONS:
        verl.lack(f"{_ACTOR}.loss_agg_mode={mode} is not known here. No run starts with it.")
    return mode.replace("-", "_")


def _kl_loss(verl: VerlConfig) -> Settings:
    coefficient = verl.number(f"{_ACTOR}.kl_loss_coef", default=0.001)
    kind = str(verl.get(f"{_ACTOR}.kl_loss_type", default="low_var_kl"))
    if not verl.get(f"{_ACTOR}.use_kl_loss", default=False) or not coefficient:
        return {}
    estimators = _KL_ESTIMATORS | _KL_GRADIENTS
    if kind not in estimators:
        verl.lack(f"{_ACTOR}.kl_loss_type={kind} is not known here (known: {', '.join(estimators)}); k3 is used.")
    reference = _reference(verl)
    is_other = reference != verl.get("actor_rollout_ref.model.path")
    return {
        "learner.kl_coef": coefficient,
        "learner.kl_estimator": estimators.get(kind, "k3"),
        **({"learner.reference": reference} if is_other else {}),
    }
