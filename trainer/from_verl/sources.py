"""Read a config of verl from a file that Hydra saved, a launch script, or the words of a command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, OmegaConfBaseException

from agentloop.errors import UserError
from agentloop.trainer.from_verl.config import VerlConfig
from agentloop.trainer.from_verl.launch import Launch, launch_of, read_script
from agentloop.trainer.from_verl.overrides import parse_override

VERSION = "0.9.1"
"""Version of verl whose defaults are in defaults.yaml."""

_OWN_TRAINERS = ("sft", "generation", "main_eval", "model_merger", "main_gkd")
"""Parts of module names of trainers without rewards."""


def read(words: Sequence[str], variables: Mapping[str, str] = MappingProxyType({})) -> VerlConfig:
    """Read a YAML file with overrides, a script with arguments, or a command. Raises `UserError`.

    Scripts and interpolations see only `variables` of the environment.
    """
    first, *rest = words
    if first.endswith((".yaml", ".yml")):
        return _saved(Path(first), rest)
    if first.endswith((".sh", ".bash", ".slurm", ".sbatch")) or Path(first).is_file():
        return _script(Path(first), rest, variables)
    launch = launch_of(words)
    if launch is None:
        raise UserError(
            f"{first} is not a config of verl, a script that starts verl, or a command. Pass a config.yaml that Hydra "
            "saved, a launch script, or -- and the overrides: agentloop from-verl -- data.train_files=... "
            "actor_rollout_ref.model.path=..."
        )
    return _launched(launch, [Path()])


def _saved(source: Path, overrides: Sequence[str]) -> VerlConfig:
    """Read a config that Hydra saved, resolved or not; `overrides.yaml` next to it has the keys that the user set."""
    values = _read(source)
    if "actor_rollout_ref" not in values:
        raise UserError(
            f"{source} is not a config of verl: it has no 'actor_rollout_ref'. Hydra writes the config of a run to "
            "outputs/DATE/TIME/.hydra/config.yaml in the folder where the run started."
        )
    file = source.with_name("overrides.yaml")
    set_keys = [parse_override(str(each)).key for each in OmegaConf.load(file)] if file.is_file() else []
    verl = VerlConfig(values, frozenset([*set_keys, *_override(values, overrides)]))
    if not file.is_file():
        verl.note(
            f"There is no overrides.yaml next to {source.name}. It lists the settings that the run changed, so without "
            "it some that have no counterpart here may be missing above. Hydra writes both files to the same folder."
        )
    return verl


def _script(source: Path, arguments: Sequence[str], variables: Mapping[str, str]) -> VerlConfig:
    script = read_script(source, arguments, variables)
    if not script.launches:
        raise UserError(
            f"{source} does not start verl{f' ({script.complaint})' if script.complaint else ''}. Set the "
            "variables that it needs with --env NAME=VALUE, or pass the overrides: agentloop from-verl -- data.seed=..."
        )
    first = script.launches[0]
    below = sorted(source.absolute().parent.glob("*/"))
    verl = _launched(first, [Path(), *source.absolute().parents, *below])
    if len(script.launches) > 1:
        verl.note(f"{source.name} starts {len(script.launches)} runs; this is the first, {first.module}.")
    for note in script.notes:
        verl.note(note)
    return verl


def _launched(launch: Launch, folders: Sequence[Path]) -> VerlConfig:
    """Merge the defaults, the named config, which is looked up in `folders`, and the overrides."""
    if any(part in launch.module for part in _OWN_TRAINERS):
        raise UserError(f"{launch.module} does not train with rewards. Pass a command that starts main_ppo.")
    if launch.others:
        raise UserError(
            f"The command has {', '.join(map(repr, launch.others))}, which verl refuses or this converter does not "
            "read. Write each setting as one word, key=value, without spaces around =."
        )
    known = _known()
    module = launch.module.removesuffix(".py").replace("/", ".").lstrip(".")
    engine = next((each.partition("=")[2] for each in launch.overrides if each.startswith("model_engine=")), "")
    name = (launch.config_name or known["modules"].get(module, "ppo_trainer")).removesuffix(".yaml")
    layers = list(_layers(name, launch.config_path or "", folders, known["configs"]))
    if engine == "megatron":
        layers.insert(1, known["configs"]["ppo_megatron_trainer"])
    elif engine not in ("", "dp"):
        layers.insert(1, {"actor_rollout_ref": {"actor": {"strategy": engine}}})
    values = OmegaConf.merge(*layers)
    assert isinstance(values, DictConfig)
    own = () if name in known["configs"] else _changed(layers[-1], OmegaConf.merge(*layers[:-1]))
    verl = VerlConfig(values, frozenset([*own, *_override(values, launch.overrides)]))
    verl.note(f"Unset settings have the defaults of verl {VERSION}.")
    if module not in known["modules"]:
        verl.lack(f"{launch.module} is a custom trainer: its differences from verl's main_ppo are not converted.")
    return verl


def _known() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("defaults.yaml").read_text(encoding="utf-8")
    known: dict[str, Any] = yaml.load(text, Loader=yaml.CSafeLoader)
    return known


def _layers(name: str, path: str, folders: Sequence[Path], known: dict[str, Any]) -> Iterator[Any]:
    """Yield the configs in the defaults list of a config, then the config itself."""
    if name not in known:
        config = _read(_find(name, path, folders))
        defaults = config.pop("defaults", ["ppo_trainer"])
        config.pop("hydra", None)
        for each in defaults:
            if each != "_self_":
                yield from _layers(str(each), path, folders, known)
        yield config
        return
    if name != "ppo_trainer":
        yield from _layers("ppo_trainer", path, folders, known)
    yield known[name]


def _find(name: str, path: str, folders: Sequence[Path]) -> Path:
    for folder in folders:
        for file in (folder / path / f"{name}.yaml", folder / f"{name}.yaml"):
            if file.is_file():
                return file
    raise UserError(
        f"There is no config {name}.yaml in {path or 'the current folder'}. Run this command in the folder where verl "
        "starts, or pass the config that Hydra saved: agentloop from-verl outputs/DATE/TIME/.hydra/config.yaml."
    )


def _override(values: DictConfig, texts: Sequence[str]) -> Iterator[str]:
    """Apply overrides; yield their keys."""
    for override in map(parse_override, texts):
        if override.action == "delete":
            parent, _, leaf = override.key.rpartition(".")
            node = OmegaConf.select(values, parent) if parent else values
            if isinstance(node, DictConfig):
                node.pop(leaf, None)
        elif "@" not in override.key:
            try:
                OmegaConf.update(values, override.key, override.value, force_add=True)
            except OmegaConfBaseException as error:
                # OmegaConf's lines after the first name its own types, and the parser speaks of its own rules.
                reason, *_ = ["${ without }"] if isinstance(error, GrammarParseError) else str(error).splitlines()
                raise UserError(
                    f"{override.key}={override.value!r} cannot be set: {reason}. Correct it in the command."
                ) from error
        yield override.key


def _changed(config: Any, below: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of a config whose values differ from `below`."""
    plain: Any = OmegaConf.to_container(config) if isinstance(config, DictConfig) else config
    for key, value in plain.items():
        if isinstance(value, dict) and value:
            yield from _changed(value, below, f"{prefix}{key}.")
        elif key != "_target_" and OmegaConf.select(below, f"{prefix}{key}") != value:
            yield f"{prefix}{key}"


def _read(source: Path) -> DictConfig:
    try:
        config = OmegaConf.load(source)
    except FileNotFoundError as error:
        raise UserError(f"There is no file {source}. Check the path.") from error
    except (OSError, UnicodeDecodeError, OmegaConfBaseException, yaml.YAMLError) as error:
        raise UserError(f"{source} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(config, DictConfig):
        raise UserError(f"{source} is not a config of verl: it has no keys.")
    return config
