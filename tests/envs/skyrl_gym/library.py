"""The package's own step loop, in its own interpreter: reads episodes as JSON, prints what happened in them."""

import json
import sys

import skyrl_gym
from omegaconf import OmegaConf

found = {}
for name, episode in json.load(sys.stdin).items():
    row = episode["row"]
    extras = {key: value for key, value in row.items() if key != "prompt"}
    config = OmegaConf.create(episode["config"])
    env = skyrl_gym.make(row["env_class"], env_config=config, extras=extras)
    messages, _ = env.init(row["prompt"])
    rewards, done = [], False
    for turn in episode["turns"]:
        result = env.step(turn)
        messages = [*messages, {"role": "assistant", "content": turn}, *result["observations"]]
        rewards.append(result["reward"])
        done = result["done"]
        if done:
            break
    env.close()
    found[name] = {"messages": messages, "reward": sum(rewards), "done": done, "metrics": env.get_metrics()}
sys.stdout.write("\n" + json.dumps(found))
