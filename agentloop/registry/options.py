"""`Config`, the strict base of all config sections, and checks of options against a schema or signature."""

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import Annotated, Any, Self, TypeVar, get_args, get_type_hints

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from agentloop.errors import UserError, nearest
from agentloop.registry.named_objects import name_of


class Config(BaseModel):
    """Strict and frozen: an unknown key, an infinite number and a truth value for a number are errors.

    Attribute docstrings document the keys.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)

    def __init__(self, /, **values: Any) -> None:
        """Create the section. Raises `UserError`; `model_validate` raises pydantic's `ValidationError`."""
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _refused(type(self), error) from error

    # Pydantic would otherwise call `__init__` for a section within another one, whose error would lose its key.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    @field_validator("*", mode="before")
    @classmethod
    def _check_number(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        return not_bool(value) if _is_number(cls.model_fields[info.field_name].annotation) else value

    def replace(self, **changes: Any) -> Self:
        """Return a copy with other values, validated like the original.

        Keys that were not set stay unset. Raises `UserError`.
        """
        return type(self)(**{name: getattr(self, name) for name in self.model_fields_set} | changes)


def not_bool(value: Any) -> Any:
    """Return the value of a key that takes numbers. Raises an error of pydantic, which takes true as 1, for a bool."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "Input should be a number")
    return value


def _is_number(annotation: Any) -> bool:
    """Return whether a field takes numbers, and no truth values."""
    types = {annotation, *get_args(annotation)}
    return bool(types & {int, float}) and not types & {bool, Any}


def _refused(schema: type[BaseModel], error: ValidationError) -> UserError:
    """Return an error with the first problem of the values of a section."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        known = schema.model_fields if len(first["loc"]) == 1 else ()
        return UserError(f"{schema.__name__} has no key {key!r}.{nearest(key, known) or ' Correct or remove it.'}")
    if first["type"] == "missing":
        return UserError(f"{schema.__name__} has no {key!r}: set it.")
    if first["type"] == "value_error":  # our own validators write whole sentences
        return UserError(f"{schema.__name__} cannot have these values. {first['ctx']['error']}")
    return UserError(f"{key} of {schema.__name__} is {first['input']!r}: {first['msg'][0].lower()}{first['msg'][1:]}.")


class NoOptions(Config):
    """Options of an entry that takes none."""


class _HasPaths:
    """Marks a string that may be a path, or a container of such strings."""


HAS_PATHS = _HasPaths()


def _names_of(options: Any) -> Any:
    return {key: name_of(value) for key, value in options.items()} if isinstance(options, Mapping) else options


ConfigPath = Annotated[str, HAS_PATHS, BeforeValidator(name_of)]
"""A path or a plain name; `agentloop.config.loading.anchored` distinguishes them. 'file.py:name' contains a path,
'package.module:name' does not. Python code may pass the class or function itself."""

ConfigOptions = Annotated[dict[str, Any], HAS_PATHS, BeforeValidator(_names_of)]
"""Arguments of an object that the config names; they may contain paths. Python code may pass classes and functions."""

C = TypeVar("C", bound=Config)


def named(value: Any) -> Any:
    """Return {"name": value} for a plain string, a class or a function, and other values unchanged."""
    return {"name": value} if isinstance(value, str) or callable(value) else value


def parse_options(schema: type[C], options: Mapping[str, Any], *, of: str, key: str) -> C:
    """Return `options` as an object of `schema`.

    Raises `UserError` for an unknown name or a wrong value; the message names `of` ("loss 'ppo'") and the config's
    `key`.
    """
    check_options(options, schema.model_fields, of=of, key=key)
    try:
        return schema.model_validate(dict(options))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([key, *map(str, first["loc"])])
        raise UserError(f"{where} of the {of} is {first['input']!r}: {first['msg']}.") from error


def check_options(options: Iterable[str], known: Iterable[str], *, of: str, key: str = "") -> None:
    """Raise `UserError` for the first option that is not known."""
    names = list(known)
    for name in options:
        if name not in names:
            raise UserError(f"The {of} has no option {name!r}.{nearest(name, names)} {_listed(names, key)}")


def check_call(
    function: Callable[..., Any],
    options: Mapping[str, Any],
    *given: Any,
    of: str,
    call: str,
    key: str = "",
    **fixed: Any,
) -> None:
    """Raise `UserError` unless `function(*given, **fixed, **options)` matches its signature.

    `call` shows that call in the error: "factory(row, toolset=..., reward=..., **options)".
    """
    signature = inspect.signature(function)
    parameters = [each for each in list(signature.parameters.values())[len(given) :] if each.name not in fixed]
    names = [each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        check_options(options, names, of=of, key=key)
    try:
        signature.bind(*given, **fixed, **options)
    except TypeError as error:
        names_given = ", ".join(options) or "none"  # names only: values may be secrets
        raise UserError(
            f"The {of} cannot be called as {call} with the options {names_given}: {error}. {_listed(names, key)}"
        ) from error


def as_annotated(
    function: Callable[..., Any], options: Mapping[str, Any], *, of: str, may_be_objects: bool = True
) -> dict[str, Any]:
    """Return the options with the types of the annotations of their parameters.

    Values count as those of a config file: an int is a float, a list is a tuple, and a text may be a path or the value
    of an enum. Parameters without an annotation are not checked, nor are those whose annotation only a type checker can
    resolve, nor, with `may_be_objects`, values that no config file can contain. Raises `UserError` for the first option
    of another type.
    """
    converted = dict(options)
    inner = inspect.unwrap(function.__init__ if isinstance(function, type) else function)  # type: ignore[misc]
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in options or options[name] is parameter.default or parameter.annotation is parameter.empty:
            continue
        shown = SimpleNamespace(__annotations__={name: parameter.annotation})
        try:
            expected = TypeAdapter(get_type_hints(shown, globalns=getattr(inner, "__globals__", {}))[name])
        except (NameError, AttributeError, SyntaxError, TypeError, ValueError, PydanticUserError):
            continue  # the annotation has no meaning here
        try:
            value = _validated(expected, options[name], may_be_object=may_be_objects)
        except ValidationError as error:
            written = parameter.annotation
            wanted = written if isinstance(written, str) else inspect.formatannotation(written)
            raise UserError(
                f"The option {name!r} of the {of} must be of type {wanted}, got {type(options[name]).__name__}"
                f"{_reason(expected, options[name], error)}. Set it to such a value."
            ) from error
        if not isinstance(value, Iterator):  # pydantic's iterators can be read only once
            converted[name] = value
    return converted


def _validated(expected: TypeAdapter[Any], value: Any, *, may_be_object: bool) -> Any:
    """Return a value of the expected type; an object that no config file can contain is returned itself.

    Raises `ValidationError` for a value of another type.
    """
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):  # it comes from Python code, such as a path or a number of numpy
        if not may_be_object:
            expected.validate_python(value, strict=isinstance(value, bytes))  # bytes would count as text
        return value
    expected.validate_json(text, strict=True)
    return expected.validate_python(value)  # the result of the above has texts as the keys of all mappings


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _reason(expected: TypeAdapter[Any], value: Any, error: ValidationError) -> str:
    """Return the place inside a wrong value, or the values that are allowed; "" if the type says all."""
    schema: Mapping[str, Any] = expected.core_schema
    schema = schema["schema"] if schema["type"] == "nullable" else schema
    first = error.errors(include_url=False)[0]
    message = first["msg"][:1].lower() + first["msg"][1:]
    if isinstance(value, str) and value.startswith(("[", "{")) and not _is_json(value):
        return f" {value!r}, which is not valid JSON: its texts need double quotes"
    if schema["type"] == "union":  # it has an error for each of its types
        return ""
    if first["loc"]:
        return f": at {'.'.join(map(str, first['loc']))}, {message}"
    return f": {message}" if first["type"] in ("literal_error", "enum") else ""


def _listed(names: list[str], key: str) -> str:
    return f"Options it takes{f' ({key})' if key else ''}: {', '.join(names) or 'none'}."
