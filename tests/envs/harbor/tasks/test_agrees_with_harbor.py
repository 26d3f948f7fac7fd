"""Random files task.toml: our reader and Harbor's own models agree on what they say, and on which are wrong."""

import json
import random
import subprocess
import tomllib

from pydantic import ValidationError

from agentloop.envs.harbor.tasks.config import TaskConfig
from tests.support.harbor import harbor_python

_THEIRS = """
import json, sys, warnings
warnings.simplefilter("ignore")
from harbor.models.task.config import TaskConfig
found = []
for text in json.load(sys.stdin):
    try:
        found.append(TaskConfig.model_validate_toml(text).model_dump(mode="json"))
    except ValueError:
        found.append(None)
json.dump(found, sys.stdout)
"""


def _maybe(rng, **choices):
    """Lines of a random part of the keys, each with one of its values."""
    return "".join(f"{key} = {rng.choice(values)}\n" for key, values in choices.items() if rng.random() < 0.15)


def _network(rng):
    return rng.choice(
        [
            "",
            "",
            'network_mode = "public"\n',
            'network_mode = "no-network"\nallowed_hosts = []\n',
            'network_mode = "allowlist"\nallowed_hosts = ["A.org.", "*.b.org", "10.0.0.0/8", "::1"]\n',
            'network_mode = "allowlist"\nallowed_hosts = ["http://a.org"]\n',
            'network_mode = "allowlist"\nallowed_hosts = ["*.1.2.3.4"]\n',
            'allowed_hosts = ["a.org"]\n',
        ]
    )


def _machine(rng, name):
    legacy = rng.choice(
        ['memory = "2G"\n', 'memory = "1.5g"\nmemory_mb = 1536\n', 'memory = "2G"\nmemory_mb = 1\n', ""]
    )
    other = rng.choice(['storage = "10G"\nallow_internet = false\n', "allow_internet = true\n", 'storage = "x"\n', ""])
    text = (
        f"[{name}]\n" + _network(rng) + (legacy if rng.random() < 0.4 else "") + (other if rng.random() < 0.4 else "")
    )
    text += _maybe(
        rng,
        build_timeout_sec=["600", "1.5"],
        docker_image=['"python:3.12-slim"'],
        os=['"linux"', '"Linux"', '"windows"', '"plan9"'],
        cpus=["1", "2.0", "0.5", "inf"],
        gpus=["0", "1"],
        gpu_types=['["H100"]'],
        tpu=['{type = "v6e", topology = "2x4"}', '{type = "v6e", topology = "2"}'],
        workdir=['"/app"'],
        skills_dir=['"/skills"'],
        env=['{A = "${B:-c}"}', "{}"],
        healthcheck=['{command = "true"}', '{command = "x", retries = 7, interval_sec = 0.5}', "{retries = 1}"],
        mcp_servers=[
            '[{name = "a", url = "http://a"}]',
            '[{name = "a", transport = "http", url = "http://a", headers = {X-A = "b"}}]',
            '[{name = "b", transport = "stdio", command = "b", args = ["-x"]}]',
            '[{name = "b", transport = "stdio"}]',
        ],
    )
    return text


def _agent(rng, name):
    return f"[{name}]\n" + _network(rng) + _maybe(rng, timeout_sec=["5", "0.5"], user=['"agent"', "1000"])


def _verifier(rng, name):
    text = f"[{name}]\n" + _network(rng)
    text += _maybe(
        rng,
        timeout_sec=["60"],
        user=['"root"', "0"],
        env=['{KEY = "${KEY}"}'],
        environment_mode=['"shared"', '"separate"', '"other"'],
        collect=[
            '[{command = "x"}]',
            '[{command = "x", service = "db", timeout_sec = 3, user = "u"}]',
            '[{service = "a"}]',
        ],
    )
    return text + (_machine(rng, f"{name}.environment") if rng.random() < 0.3 else "")


def _artifacts(rng):
    return _maybe(
        rng,
        artifacts=[
            '["/a", {source = "/b", destination = "c/d", exclude = ["*.pyc"]}]',
            '[{source = "/b", service = "db"}]',
            '[{source = "b", service = "db"}]',
            '[{source = "/b", destination = "../c"}]',
            '[{source = "/b", destination = ""}]',
            '[{source = "/b", destination = "manifest.json"}]',
        ],
    )


def _task(rng):
    text = _maybe(
        rng,
        schema_version=['"1.4"'],
        version=['"1.0"'],
        source=['"somewhere"'],
        multi_step_reward_strategy=['"mean"', '"final"', '"best"'],
        some_key_of_the_future=["1"],
    )
    text += _artifacts(rng)
    parts = [
        lambda: '[task]\nname = "org/name"\nkeywords = ["a"]\nauthors = [{name = "A", email = "a@b"}, {name = "B"}]\n',
        lambda: '[task]\nname = "no-org"\n',
        lambda: '[metadata]\ndifficulty = "easy"\n',
        lambda: _agent(rng, "agent"),
        lambda: _verifier(rng, "verifier"),
        lambda: _machine(rng, "environment"),
        lambda: '[solution]\nenv = {A = "b"}\n',
    ]
    used = [part for part in parts if rng.random() < 0.4]
    if parts[0] in used and parts[1] in used:
        used.remove(parts[1])
    text += "".join(part() for part in used)
    for name in rng.choice([(), (), ("one", "two"), ("one", "One"), ("a/b",), ("con",)]):
        text += f'[[steps]]\nname = "{name}"\n' + _artifacts(rng)
        text += _maybe(rng, min_reward=["0.5", "{reward = 1.0, style = 0.2}"], healthcheck=['{command = "true"}'])
        text += _agent(rng, "steps.agent") if rng.random() < 0.3 else ""
        text += _verifier(rng, "steps.verifier") if rng.random() < 0.3 else ""
    return text


def _ours(text):
    try:
        return TaskConfig.model_validate(tomllib.loads(text)).model_dump(mode="json")
    except ValidationError:
        return None


def _plain(value, key=""):
    """Without keys that say nothing and keys that Harbor drops."""
    if isinstance(value, dict):
        kept = {name: _plain(each, name) for name, each in value.items() if name != "some_key_of_the_future"}
        return {name: each for name, each in kept.items() if each not in (None, [], {})}
    if isinstance(value, list):
        return [{"source": each} if key == "artifacts" and isinstance(each, str) else _plain(each) for each in value]
    return value


def test_random_files_are_read_alike(python_with):
    rng = random.Random(19)
    texts = [_task(rng) for _ in range(3000)]
    done = subprocess.run(
        [harbor_python(python_with), "-c", _THEIRS], input=json.dumps(texts), capture_output=True, text=True, check=True
    )
    differences = []
    valid = 0
    for text, theirs in zip(texts, json.loads(done.stdout), strict=True):
        ours = _ours(text)
        valid += theirs is not None
        if (ours is None) != (theirs is None) or (ours is not None and _plain(ours) != _plain(theirs)):
            differences.append((text, ours, theirs))
    assert differences == []
    assert 300 < valid < 2700  # both kinds are there
