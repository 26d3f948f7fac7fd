"""Turn validation errors of pydantic into one paragraph that names the key and the fix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from agentloop.config.old_keys import advice
from agentloop.errors import UserError, nearest

_SHOWN_ERRORS = 3

_OF_VERL = ("actor_rollout_ref", "trainer", "reward_model", "custom_reward_function")


def user_error(error: ValidationError, schema: type[BaseModel], source: str) -> UserError:
    """Return an error with the first problems: the dotted path of each key, its value and the nearest known key."""
    details = error.errors(include_url=False)
    if sentence := _of_another_command(details, schema):
        return UserError(f"The config {source} cannot be used. {sentence}")
    sentences = [_sentence(detail, schema) for detail in details[:_SHOWN_ERRORS]]
    if len(details) > _SHOWN_ERRORS:
        sentences.append(f"And {len(details) - _SHOWN_ERRORS} more.")
    return UserError(f"The config {source} cannot be used. {' '.join(sentences)}")


def _of_another_command(details: Iterable[ErrorDetails], schema: type[BaseModel]) -> str | None:
    """Return a sentence about a config of a run of the other kind: only runs that play episodes have an `env`."""
    wrong = {detail["loc"][0]: detail["type"] for detail in details if len(detail["loc"]) == 1}
    if "env" in wrong and "batch_size" in schema.model_fields:
        return "It is a config of `agentloop train`, because it has the section env: use that command."
    if wrong.get("env") == "missing" and wrong.get("batch_size") == "extra_forbidden":
        return (
            "It is a config of `agentloop sft` or `agentloop dpo`, because it has a batch_size and no section env: use "
            "one of these commands. To evaluate the model of its run, name the tasks: "
            "`agentloop rollout RECIPE model=RUN`."
        )
    return None


def _sentence(detail: ErrorDetails, schema: type[BaseModel]) -> str:
    # Pydantic lists the tag of the chosen union member, "<one>", among the keys.
    location = tuple(part for part in detail["loc"] if not str(part).startswith("<"))
    dotted = ".".join(map(str, location))
    if moved := advice(dotted):
        return moved
    if detail["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        if dotted in _OF_VERL:
            return f"{dotted!r} is a key of verl: convert the config with `agentloop from-verl FILE`."
        return f"There is no key {dotted!r}.{_hint(schema, location)}"
    if detail["type"] in ("missing", "missing_argument"):
        if isinstance(location[-1], int):
            return f"{'.'.join(map(str, location[:-1]))} has too few items: it needs {location[-1] + 1} or more."
        missing = f"The key {dotted!r} is missing: set it in the config, or as an override ({dotted}=...)."
        other = " Configs of `agentloop sft` and `agentloop dpo` have none: use these to train on given answers."
        return missing + other * (dotted == "env")
    message = detail["msg"]
    if detail["type"] == "value_error":
        # Our own validators write whole sentences.
        text = str(detail["ctx"]["error"])
        return f"{dotted}: {text}" if dotted and not text.startswith(dotted) else text
    if detail["type"] in ("list_type", "tuple_type"):
        if detail["input"] is None:
            return f"{dotted} must be a list: {dotted}=[] is the empty one."
        return f"{dotted} must be a list: {dotted}=[{detail['input']}] in place of {dotted}={detail['input']}."
    if detail["type"] in ("model_type", "dataclass_type", "dict_type"):
        known = _known_keys(schema, location)
        keys = f" with some of the keys {', '.join(known)}" if known else ""
        return f"{dotted} is {detail['input']!r}: it must be a mapping{keys}."
    message = message[0].lower() + message[1:]
    return f"{dotted} is {detail['input']!r}: {message}."


def _hint(schema: type[BaseModel], location: tuple[int | str, ...]) -> str:
    """Return what the writer of an unknown key may have meant: a key of the same section, or one of another section."""
    *section, name = location
    known = [key for key in _known_keys(schema, section) if not advice(".".join(map(str, (*section, key))))]
    elsewhere = [repr(path) for path in _paths(schema) if path.rpartition(".")[2] == name and not advice(path)]
    if elsewhere and not section:
        return f" Did you mean {' or '.join(elsewhere)}?"
    if alike := nearest(str(name), known):
        return alike
    other = "".join(f" There is a key {path}." for path in elsewhere)
    return other + (f" Known: {', '.join(known)}." if known else "")


def _paths(schema: type[BaseModel]) -> Iterator[str]:
    """Yield the keys at the top level, and those of the sections there."""
    for name, annotation in _fields(schema).items():
        yield name
        yield from (f"{name}.{key}" for key in _fields(annotation))


def _known_keys(schema: Any, location: Iterable[int | str]) -> list[str]:
    for part in location:
        if isinstance(part, int):
            continue
        fields = _fields(schema)
        if part not in fields:
            return []
        schema = fields[part]
    return sorted(_fields(schema))


def _fields(annotation: Any) -> dict[str, Any]:
    """Return key -> type of a config class, a dataclass, or the first of these inside a list or a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return {name: field.annotation for name, field in annotation.model_fields.items()}
    if hasattr(annotation, "__dataclass_fields__"):
        return {name: field.type for name, field in annotation.__dataclass_fields__.items()}
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        arguments = arguments[:1]
    return next((fields for argument in arguments if (fields := _fields(argument))), {})
