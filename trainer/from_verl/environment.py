"""Convert tools, reward and limits."""

from __future__ import annotations

from agentloop.trainer.from_verl.config import Settings, VerlConfig

_MULTI_TURN = "actor_rollout_ref.rollout.multi_turn"
_AGENT = "actor_rollout_ref.rollout.agent"
_CHARACTERS_PER_TOKEN = 4
_MANAGERS = ("naive", "dapo", "prime", "limited", "rate_limited", "remote")
"""Reward managers that call the reward function row by row and use its score unchanged."""
_MANY_TURNS = 1000
"""Limit on turns if verl limits episodes only by tokens."""


def environment(verl: VerlConfig) -> Settings:
    """Convert tools, reward and limits of the environment."""
    tools = _tools(verl)
    _refuse_programs(verl)
    return {
        "env.tools": [{"name": "verl", "options": {"config": tools}}] if tools else None,
        **_reward(verl),
        "algorithm.overlong": _overlong(verl),
        **_limits(verl),
    }


def _tools(verl: VerlConfig) -> str | None:
    if functions := verl.get(f"{_MULTI_TURN}.function_tool_path", "data.function_tool_path"):
        verl.lack(
            f"The functions of {functions} can be tools here: replace @function_tool with @tool "
            "(`from agentloop import tool`), and list each under env.tools as 'file.py:function'."
        )
    tools = verl.get(f"{_MULTI_TURN}.tool_config_path", "data.tool_config_path")
    if tools in (None, "None", "null"):
        return None
    verl.note("Rewards that tools return are added to the reward of the episode here; verl does not add them.")
    return str(tools)


def _refuse_programs(verl: VerlConfig) -> None:
    loop = verl.get(f"{_AGENT}.default_agent_loop", default="single_turn_agent")
    if loop not in ("single_turn_agent", "tool_agent"):
        verl.lack(f"{_AGENT}.default_agent_loop={loop}: write it as an environment, or run it through the gateway.")
    for key in ("agent_loop_config_path", "agent_loop_manager_class"):
        verl.unsupported(f"{_AGENT}.{key}", "write your agent loop as an environment, or run it through the gateway.")
    verl.unsupported(f"{_MULTI_TURN}.interaction_config_path", "write the simulated user as an environment.")


def _reward(verl: VerlConfig) -> Settings:
    path = verl.get("custom_reward_function.path", "reward.custom_reward_function.path")
    kwargs = verl.get("custom_reward_function.reward_kwargs", "reward.custom_reward_function.reward_kwargs") or {}
    name = verl.get("custom_reward_function.name", "reward.custom_reward_function.name", default="compute_score")
    if path in (None, "None", "null"):
        path, name = "verl.utils.reward_score", "default_compute_score"
        kwargs = _sandbox(verl)
        verl.note(
            "The reward is verl's own default_compute_score, which needs verl to be installed. A reward of agentloop "
            "may replace it: 'math', 'last_number' or 'code_tests' (docs/guides/rewards.md)."
        )
    manager = _manager(verl)
    if manager not in _MANAGERS or verl.get("reward.reward_manager.module.path"):
        verl.lack(f"The reward manager {manager!r} calls rewards differently; agentloop calls them row by row.")
    if verl.get("reward_model.enable", "reward.reward_model.enable", default=False):
        verl.lack("A reward model is not trained or served here: call one over HTTP with the reward 'judge'.")
    options = {"function": f"{_module_or_file(str(path))}:{name}"} | ({"reward_kwargs": kwargs} if kwargs else {})
    return {"env.reward": "verl", "env.reward_options": options}


def _module_or_file(path: str) -> str:
    """Return a path of verl, which may begin with pkg:// (a module) or file://, without that."""
    return path.removeprefix("pkg://").replace("/", ".") if path.startswith("pkg://") else path.removeprefix("file://")


def _manager(verl: VerlConfig) -> str:
    """Return the name of the reward manager."""
    keys = ("reward_model.reward_manager", "reward_manager.name", "reward.reward_manager.name")
    return str(verl.get(*keys, default="naive"))


def _sandbox(verl: VerlConfig) -> dict[str, object]:
    """Return the sandbox options of rewards that run code; the sandbox itself limits its concurrency."""
    verl.get("reward_model.sandbox_fusion.max_concurrent", "reward.sandbox_fusion.max_concurrent")
    url = verl.get("sandbox_fusion.url", "reward_model.sandbox_fusion.url", "reward.sandbox_fusion.url")
    memory = verl.get("reward_model.sandbox_fusion.memory_limit_mb", "reward.sandbox_fusion.memory_limit_mb")
    return {"sandbox_fusion_url": url, "memory_limit_mb": memory or 1024} if url else {}


def _overlong(verl: VerlConfig) -> Settings | None:
    """Convert the length penalty of the reward manager dapo."""
    manager = _manager(verl)
    places = (
        "reward.reward_kwargs.overlong_buffer_cfg",
        "reward_model.reward_kwargs.overlong_buffer_cfg",
        "reward_model.overlong_buffer",
    )
    enabled, buffer, penalty = (
        verl.number(*[f"{place}.{name}" for place in places], default=default)
        for name, default in (("enable", False), ("len", 0), ("penalty_factor", 1.0))
    )
    longest = verl.number("reward.reward_kwargs.max_resp_len", "reward_model.reward_kwargs.max_resp_len")
    if not enabled or manager != "dapo" or not buffer or not penalty:
        return None
    if _is_multi_turn(verl):
        verl.note("verl's overlong_buffer counts tokens of tools too; algorithm.overlong counts only sampled tokens.")
    return {"max_sampled_tokens": longest or lengths(verl)[1], "buffer": buffer, "penalty": float(penalty)}


def _limits(verl: VerlConfig) -> Settings:
    longest, response = lengths(verl)
    settings: Settings = {"limits.max_tokens": longest, "limits.max_turn_tokens": response}
    turns, answers = verl.number(f"{_MULTI_TURN}.max_assistant_turns"), verl.number(f"{_MULTI_TURN}.max_user_turns")
    calls = verl.number(f"{_MULTI_TURN}.max_parallel_calls", default=1)
    characters = verl.number(f"{_MULTI_TURN}.max_tool_response_length", default=256)
    if not _is_multi_turn(verl):
        return settings | {"limits.max_turns": 1}
    verl.unsupported(
        f"{_MULTI_TURN}.tool_response_truncate_side", "agentloop cuts out the middle.", harmless=(None, "middle")
    )
    verl.note(
        f"verl bounds tokens after the prompt ({response}). limits.max_tokens bounds the whole episode ({longest}), "
        f"so a short prompt leaves more room. verl cuts tool results at {characters} characters; agentloop cuts out "
        f"their middle by tokens (about {_CHARACTERS_PER_TOKEN} characters each)."
    )
    turns = min([turns or _MANY_TURNS, *([answers + 1] if answers else [])])
    return settings | {
        "limits.max_turns": turns,
        "limits.max_parallel_calls": calls,
        "limits.max_observation_tokens": max(characters // _CHARACTERS_PER_TOKEN, 64),
    }


def _is_multi_turn(verl: VerlConfig) -> bool:
    """Return whether episodes have several turns; with tools, each row chooses its agent loop."""
    keys = ("enable", "tool_config_path", "function_tool_path")
    return any(verl.get(f"{_MULTI_TURN}.{key}") not in (None, False, "None", "null") for key in keys) or (
        verl.get(f"{_AGENT}.default_agent_loop") == "tool_agent"
    )


def lengths(verl: VerlConfig) -> tuple[int, int]:
    """Return the largest number of tokens of an episode, and of its part after the prompt."""
    rollout = "actor_rollout_ref.rollout"
    response = verl.number(f"{rollout}.response_length", "data.max_response_length", default=512)
    return verl.number(f"{rollout}.prompt_length", "data.max_prompt_length", default=512) + response, response
