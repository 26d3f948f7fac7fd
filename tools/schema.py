"""JSON Schema and validation of a tool's arguments: `Arguments` from a signature, `SchemaArguments` from a schema.

In a signature, types are all that pydantic understands. A parameter's description is the string in `Annotated`,
`Field(description=)`, or its line in the docstring's `Args:`. Validation uses pydantic's lax mode because models write
numbers as strings: "3" and 3.0 are integers, 3.5 is not. A bool must be true or false, or such a string: "yes", "on"
and 1 are refused.
"""

from __future__ import annotations

import inspect
import re
import typing
import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace, UnionType
from typing import Annotated, Any, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import SchemaError as CoreSchemaError

from agentloop.errors import UserError, nearest
from agentloop.tools import docstrings

_PREFIX = "argument_"
"""Prefix of pydantic field names, so that a parameter may have any name, even that of a method of BaseModel."""

_DATA_KEYS = ("default", "examples", "const", "enum")
"""Keys of a JSON Schema whose values are data, not schemas."""
_REFERENCES = frozenset({"$ref", "$dynamicRef"})
_SAME_VALUE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"})
"""Keys of a JSON Schema whose schemas apply to the same value as the schema itself."""
_UNFIT = (PydanticUserError, CoreSchemaError, TypeError)
"""What pydantic raises for a type without a schema, an invalid pattern, and settings that contradict each other."""
_MAX_SHOWN = 80
_MAX_PROBLEMS = 5
_MAX_MESSAGE = 200


class ArgumentError(Exception):
    """The arguments do not fit the schema. The message, one line per problem, is for the model."""


class Arguments:
    """Arguments of a function: `schema` for the model and `validate` for the call.

    `skip` is the number of leading parameters that the model does not pass (self, ctx). `docstring` describes
    parameters that the function's own docstring does not. Raises `UserError` if no schema describes the signature.
    """

    def __init__(self, function: Callable[..., Any], *, skip: int = 0, docstring: str | None = None) -> None:
        self._what = getattr(function, "__qualname__", repr(function))
        parameters = list(inspect.signature(function).parameters.values())[skip:]
        descriptions = docstrings.split(docstring)[1] | docstrings.split(function.__doc__)[1]
        hints = self._hints(function, parameters)
        fields = {_PREFIX + p.name: _field(p, hints[p.name], descriptions.get(p.name)) for p in parameters}
        try:
            model, schema = _model(fields)
        except _UNFIT as error:
            unfit = " and ".join(f"the parameter {p.name!r}" for p in parameters if not _fits(_PREFIX + p.name, fields))
            raise UserError(f"No JSON Schema describes {unfit} of {self._what}: {_reason_and_fix(error)}") from error
        self._names = [parameter.name for parameter in parameters]
        self._validate = model.__pydantic_validator__.validate_python
        self.schema: dict[str, Any] = {"properties": {}, **_clean(schema, schema.pop("$defs", {}))}

    def _hints(self, function: Callable[..., Any], parameters: list[inspect.Parameter]) -> dict[str, Any]:
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise UserError(
                    f"No schema describes the parameter {str(parameter).split(':')[0]!r} of {self._what}: name each "
                    "parameter of a tool, without *args, **kwargs and positional-only ones."
                )
            if re.search(r"\bToolContext\b", str(parameter.annotation)):
                raise UserError(
                    f"The parameter {parameter.name!r} of {self._what} is a ToolContext, which the model cannot pass: "
                    "name it ctx, and make it the first parameter."
                )
            if parameter.annotation is parameter.empty:
                raise UserError(
                    f"The parameter {parameter.name!r} of {self._what} has no type hint: add one, because the model "
                    "sees the types."
                )
        inner = inspect.unwrap(getattr(function, "__func__", function))
        # Resolve only these, because hints of ctx and of the result may name imports under TYPE_CHECKING.
        shown = SimpleNamespace(__annotations__={p.name: p.annotation for p in parameters})
        try:
            return typing.get_type_hints(shown, globalns=getattr(inner, "__globals__", {}), include_extras=True)
        except NameError as error:
            raise UserError(
                f"A type hint of {self._what} names {error.name!r}, which its module does not define at run time. "
                "Import or define it at the top of the module (not under TYPE_CHECKING, not inside a function)."
            ) from error

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with the function's types and defaults. Raises `ArgumentError`."""
        try:
            values = self._validate(arguments).__dict__.values()
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False)
            raise ArgumentError("\n".join(map(self._describe, problems))) from None
        return dict(zip(self._names, values, strict=True))

    def _describe(self, problem: Any) -> str:
        place = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            known = self._names if len(problem["loc"]) == 1 else []
            return f"{place}: unknown argument.{nearest(place, known)}"
        message = problem["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        if problem["type"] == "missing":
            return f"{place}: {message}"
        value = repr(problem["input"])
        return f"{place}: {message}, got {value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + '...'}"


class SchemaArguments:
    r"""Arguments described by a JSON Schema (2020-12 unless it names another) instead of a signature.

    Patterns that only ECMA-262 has, such as `\p{L}`, are shown to the model and not checked. Raises `UserError` for an
    invalid schema and for a reference to nothing; `what` names the tool in the message, and `fix` what to do.
    """

    def __init__(self, schema: Mapping[str, Any], *, what: str, fix: str = "Correct the schema.") -> None:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for
        from jsonschema_specifications import REGISTRY
        from referencing.jsonschema import specification_with

        self.schema: dict[str, Any] = {"type": "object", "properties": {}, **schema}
        checked = _without_foreign_patterns(self.schema)
        kind = validator_for(checked, default=Draft202012Validator)
        try:
            kind.check_schema(checked)
        except SchemaError as error:
            raise UserError(f"The input schema of {what} is not a valid JSON Schema: {error.message}. {fix}") from error
        resource = specification_with(kind.META_SCHEMA["$schema"]).create_resource(checked)
        if reference := _broken_reference(resource, REGISTRY.resolver_with_root(resource)):
            raise UserError(f"The input schema of {what} refers to {reference!r}, which does not exist. {fix}")
        if reference := _endless_reference(resource, REGISTRY.resolver_with_root(resource), set()):
            raise UserError(
                f"The input schema of {what} refers to {reference!r}, which leads back to itself for the same value, "
                f"so a check would not end. {fix}"
            )
        self._validator = kind(checked, registry=REGISTRY)  # with its own registry, jsonschema would ask other servers

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments unchanged. Raises `ArgumentError`, one line per problem."""
        problems = sorted(
            self._validator.iter_errors(dict(arguments)), key=lambda problem: list(map(str, problem.path))
        )
        if problems:
            lines = [f"{'.'.join(map(str, p.path)) or 'arguments'}: {p.message[:_MAX_MESSAGE]}" for p in problems]
            raise ArgumentError("\n".join(lines[:_MAX_PROBLEMS]))
        return dict(arguments)


def _broken_reference(resource: Any, resolver: Any) -> str | None:
    """Return the first reference that leads nowhere in a schema, which is a resource of `referencing`."""
    from referencing.exceptions import Unresolvable

    schema = resource.contents
    for key in _REFERENCES & schema.keys() if isinstance(schema, dict) else ():
        try:
            resolver.lookup(str(schema[key]))
        except Unresolvable:
            return str(schema[key])
    broken = (_broken_reference(inner, resolver.in_subresource(inner)) for inner in resource.subresources())
    return next(filter(None, broken), None)


def _endless_reference(resource: Any, resolver: Any, ending: set[int]) -> str | None:
    """Return the first reference through which a schema applies to a value again and again.

    `ending` gets the ids of schemas that do not, so each is followed once.
    """
    if reference := _reference_back(resource, resolver, (), ending):
        return reference
    endless = (_endless_reference(inner, resolver.in_subresource(inner), ending) for inner in resource.subresources())
    return next(filter(None, endless), None)


def _reference_back(resource: Any, resolver: Any, applied: tuple[int, ...], ending: set[int]) -> str | None:
    """Return the reference that leads to one of the schemas with the ids `applied`, which apply to the same value."""
    schema = resource.contents
    if not isinstance(schema, dict) or id(schema) in ending:
        return None
    applied = (*applied, id(schema))
    for key in _REFERENCES & schema.keys():
        found = resolver.lookup(str(schema[key]))
        if id(found.contents) in applied:
            return str(schema[key])
        if reference := _reference_back(_like(resource, found.contents), found.resolver, applied, ending):
            return reference
    for key in _SAME_VALUE & schema.keys():
        value = schema[key]
        for part in value if isinstance(value, list) else value.values() if key == "dependentSchemas" else [value]:
            inner = _like(resource, part)
            if reference := _reference_back(inner, resolver.in_subresource(inner), applied, ending):
                return reference
    ending.add(id(schema))
    return None


def _like(resource: Any, contents: Any) -> Any:
    """Return contents as a resource of the same specification, unless they name their own."""
    return type(resource).from_contents(contents, default_specification=resource._specification)


def _without_foreign_patterns(schema: Any) -> Any:
    """Return a schema without the regular expressions that Python's `re` cannot compile."""
    if isinstance(schema, list):
        return [_without_foreign_patterns(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    copy: dict[str, Any] = {}
    unchecked_rest: tuple[str, ...] = ()
    """Keywords about properties that no pattern matches, which are unknown without all patterns."""
    for key, value in schema.items():
        if key in _DATA_KEYS:
            copy[key] = value
        elif key in ("properties", "patternProperties") and isinstance(value, dict):
            kept = {name: item for name, item in value.items() if key == "properties" or _compiles(name)}
            copy[key] = {name: _without_foreign_patterns(item) for name, item in kept.items()}
            if len(kept) < len(value):
                unchecked_rest = ("additionalProperties", "unevaluatedProperties")
        elif key != "pattern" or not isinstance(value, str) or _compiles(value):
            copy[key] = _without_foreign_patterns(value)
    return {key: value for key, value in copy.items() if key not in unchecked_rest}


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, OverflowError):
        return False
    return True


def _reason_and_fix(error: Exception) -> str:
    if isinstance(error, PydanticUserError):
        # The sentences after the first explain settings of pydantic's models, which the author cannot reach.
        reason = error.message.partition(". ")[0].removesuffix(".")
        return f"{reason}. Use types that JSON can express, such as str, list[int] or a pydantic model."
    reason = str(error).rpartition("\n")[2].removeprefix("error: ").removesuffix(".")
    return f"{reason}. Correct its type hint."


def _model(fields: Mapping[str, Any]) -> tuple[type[BaseModel], dict[str, Any]]:
    """Return the model of these fields and its JSON Schema. Raises one of `_UNFIT` if there is none."""
    with warnings.catch_warnings():
        # pydantic omits a default that does not serialise. The argument stays optional.
        warnings.simplefilter("ignore")
        model: type[BaseModel] = create_model("Arguments", __config__=ConfigDict(extra="forbid"), **fields)  # type: ignore[call-overload]
        return model, model.model_json_schema()


def _fits(name: str, fields: Mapping[str, Any]) -> bool:
    """Return whether a schema describes the field of this name alone: the errors of pydantic do not name fields."""
    try:
        _model({name: fields[name]})
    except _UNFIT:
        return False
    return True


def _field(parameter: inspect.Parameter, hint: Any, description: str | None) -> tuple[Any, FieldInfo]:
    metadata = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    for item in metadata:
        if isinstance(item, str):
            description = item
        elif isinstance(item, FieldInfo) and item.description:
            description = item.description
    hint = _without_guessed_bools(hint)
    default = parameter.default
    if isinstance(default, FieldInfo):  # `city: str = Field(...)`, as in pydantic's models
        description = default.description or description
        hint, default = Annotated[hint, default], parameter.empty
    given = {} if default is parameter.empty else {"default": default}
    return hint, Field(alias=parameter.name, description=description, **given)


def _without_guessed_bools(hint: Any) -> Any:
    """Return a type whose `bool`, alone or in a union, is checked by `_no_guessed_bool`."""
    if hint is bool:
        return Annotated[bool, BeforeValidator(_no_guessed_bool)]
    parts, origin = typing.get_args(hint), typing.get_origin(hint)
    if origin is Annotated:
        return Annotated[(_without_guessed_bools(parts[0]), *parts[1:])]
    if origin in (Union, UnionType):
        return Union[tuple(map(_without_guessed_bools, parts))]  # noqa: UP007
    return hint


def _no_guessed_bool(value: Any) -> Any:
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if isinstance(value, bool):
        return value
    raise ValueError("Input should be true or false")


def _clean(schema: Any, definitions: Mapping[str, Any], inside: tuple[str, ...] = ()) -> Any:
    """Remove `title`s, which repeat the names, and replace references by their definitions.

    Chat templates print `properties` and nothing else. A type that contains itself is cut at its second appearance.
    """
    if isinstance(schema, list):
        return [_clean(item, definitions, inside) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        if name in inside:
            return {"type": "object", **rest}
        return _clean({**definitions[name], **rest}, definitions, (*inside, name))
    cleaned = {}
    for key, value in schema.items():
        if key in _DATA_KEYS:
            cleaned[key] = value
        elif key == "properties":
            cleaned[key] = {name: _clean(item, definitions, inside) for name, item in value.items()}
        elif key != "title":
            cleaned[key] = _clean(value, definitions, inside)
    return cleaned
