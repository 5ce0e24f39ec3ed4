"""The values and the meaning of every settings key: for the manual, ``config explain`` and comments in files.

A key's text is its docstring in the code: the string below the field, or the field's entry under "Attributes:". Names
in backquotes are code.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import tomli_w
from pydantic import AfterValidator, BeforeValidator
from pydantic.fields import FieldInfo

from securefda.errors import ConfigError
from securefda.settings import Settings, kebab_case, known_keys, nearest_key
from securefda.site.config.load import (
    AggregatorConfig,
    FederationConfig,
    SourceConfig,
    environment_name,
)
from securefda.site.policy import SourcePolicy

FILES: Mapping[str, type[Settings]] = {
    "a federation's file": FederationConfig,
    "the aggregator's settings": AggregatorConfig,
    "a source's settings": SourceConfig,
    "a source's policy.toml": SourcePolicy,
}
"""The files that hold keys, and their models."""

_FORMS = {
    "_site_id": "site id",
    "_address": "`host:port`",
    "_ip_address": "IP address",
    "_reached": "`host:port`",
    "_proxy": "`http://host:port`",
    "_factory": "`package.module:Class`",
    "_task": "`package.module:Class`, or `package.module:Class@SHA-256`",
    "_words": "text",
    "_day": "day, as `2027-06-30`, or empty",
    "_text_log": "file name",
    "_json_log": "file name",
    "_rule": "rule",
    "_digest": "SHA-256, hex",
    "_beside_the_file": "path",
    "_first_models": '`"task"`, or a list of SHA-256, hex',
}
"""Validator of a single value -> the values that it accepts."""

_UNITS = {"s": "seconds", "bytes": "bytes", "bits": "bits"}


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table of settings; code in its texts stands in backquotes.

    Attributes:
        name: as it stands in the file.
        takes: which values, with bounds and unit.
        default: as it would stand in the file; None where the key is required.
        meaning: one or more sentences.
    """

    name: str
    takes: str
    default: str | None
    meaning: str


def keys_of(owner: type[Settings]) -> Iterator[Key]:
    """Yield every key of a table that holds a value, but not the tables in it.

    Raises:
        LookupError: the code says nothing of one.
    """
    for name, field in owner.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            continue
        default = None if field.is_required() else toml(field.get_default(call_default_factory=True))
        key = kebab_case(name)
        unit = "".join(f", {_UNITS[part]}" for part in key.split("-") if part in _UNITS)
        meaning = " ".join(field.description.split()) if field.description else described(owner, name, _as_key)
        yield Key(key, _taken(field.annotation, field.metadata) + unit, default, meaning)


def tables_of(model: type[Settings], prefix: str = "") -> Iterator[tuple[str, type[Settings]]]:
    """Yield dotted name and class of every table of a file that holds values of its own."""
    for name, field in model.model_fields.items():
        owner = field.annotation
        if isinstance(owner, type) and issubclass(owner, Settings):
            dotted = prefix + kebab_case(name)
            if any(True for _ in keys_of(owner)):
                yield dotted, owner
            yield from tables_of(owner, f"{dotted}.")


def toml(value: object) -> str:
    """Return a value as it is written in a file, on one line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, Mapping):
        parts = (f"{toml_key(key)} = {toml(one)}" for key, one in value.items())
        return f"{{ {', '.join(parts)} }}" if value else "{}"
    plain = "" if value is None else str(value) if isinstance(value, Path) else value
    return tomli_w.dumps({"value": plain}).removeprefix("value = ").rstrip("\n")


def toml_key(key: str) -> str:
    """Return a key as it is written in a file: in quotes where it needs them."""
    return tomli_w.dumps({key: ""}).removesuffix(' = ""\n')


def described(owner: type, field: str, spelled: Callable[[str], str] = str) -> str:
    """Return a field's description as a Markdown sentence; ``spelled`` turns names in code font into those of the file.

    Raises:
        LookupError: the code says nothing of it.
    """
    text = _descriptions(owner).get(field)
    if not text:
        raise LookupError(f"{owner.__module__}.{owner.__qualname__}.{field} has no description")
    text = markdown(text, spelled)
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "`.")) else f"{text}."


def summary_of(owner: type) -> str:
    """Return the first paragraph of a class's docstring."""
    return markdown(" ".join((inspect.getdoc(owner) or "").partition("\n\n")[0].split()))


def markdown(text: str, spelled: Callable[[str], str] = str) -> str:
    """Turn a docstring's reStructuredText into Markdown: roles and double backquotes become code."""
    text = re.sub(r":\w+:`~?\.?([^`]+)`", lambda role: f"`{role[1].rpartition('.')[2]}`", text).replace("``", "`")
    return re.sub(r"`([a-z_]+)`", lambda code: f"`{spelled(code[1])}`", text)


@cache
def _descriptions(owner: type) -> Mapping[str, str]:
    """Return field name -> description of a class and its bases, from below each field or from "Attributes:"."""
    meanings: dict[str, str] = {}
    for cls in reversed([*owner.__mro__, *getattr(owner, "declared_by", object).__mro__]):
        if cls.__module__.partition(".")[0] in ("builtins", "abc", "enum", "pydantic", "typing"):
            continue
        listed = (inspect.getdoc(cls) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
        for entry in re.finditer(r"(?m)^    ([a-z_, ]+): ((?:.+\n?(?:     .*\n?)*))", listed):
            meanings |= dict.fromkeys(entry[1].split(", "), " ".join(entry[2].split()))
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        if not isinstance(body, ast.ClassDef):
            continue
        for statement, text in zip(body.body, body.body[1:], strict=False):
            name = statement.target if isinstance(statement, ast.AnnAssign) else None
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                name = statement.targets[0]
            if isinstance(name, ast.Name) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                meanings[name.id] = " ".join(str(text.value.value).split())
    return meanings


def _taken(annotation: Any, metadata: Sequence[Any] = ()) -> str:  # noqa: PLR0911 - a table of types
    """Describe the values that a key takes."""
    for item in metadata:
        if isinstance(item, type) and issubclass(item, StrEnum):
            return ", ".join(f'`"{choice}"`' for choice in item)
        if isinstance(item, AfterValidator | BeforeValidator):
            return _FORMS[getattr(item.func, "__name__", "")]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        extra = [part for item in arguments[1:] for part in (item.metadata if isinstance(item, FieldInfo) else [item])]
        return _taken(arguments[0], extra)
    if origin is Literal:
        return ", ".join(f"`{toml(choice)}`" for choice in arguments)
    if origin is tuple:
        return f"list of: {_taken(arguments[0])}"
    if origin is not None and issubclass(origin, Mapping):
        return "table" if arguments[1] is Any else f"table of: {_taken(arguments[1])}"
    if annotation is bool:
        return "`true`, `false`"
    if annotation in (int, float):
        signs = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
        bounds = [
            f", {signs[name]} {getattr(item, name)}" for item in metadata for name in signs if hasattr(item, name)
        ]
        return ("whole number" if annotation is int else "number") + "".join(bounds)
    if annotation is str:
        return "text"
    raise TypeError(f"no words for {annotation}")


def _as_key(word: str) -> str:
    return kebab_case(word) if kebab_case(word) in _names() else word


@cache
def _names() -> frozenset[str]:
    return frozenset(key.rpartition(".")[2] for model in (FederationConfig, SourcePolicy) for key in known_keys(model))


@dataclass(frozen=True, slots=True)
class ExplainedKey:
    """A key and every place where it can be set.

    Attributes:
        key: what it takes and means.
        dotted: its name with the table's, as ``--set`` takes it.
        files: of :data:`FILES`.
        environment: the variable that sets it; empty for a policy's, which no variable changes.
    """

    key: Key
    dotted: str
    files: tuple[str, ...]
    environment: str


def explained(name: str) -> tuple[ExplainedKey, ...]:
    """Find the keys that a name means: a dotted key, the last part of one, or a table with all its keys.

    Raises:
        ConfigError: the name is empty, or there is no such key or table; the nearest is named.
    """
    asked = name.strip().strip("[]").strip()
    if not asked:
        raise ConfigError("KEY", "is empty", hint="name a key, such as strategy.rounds, or a table of keys: strategy")
    every = list(_all_keys())
    keys = (
        [one for one in every if one.dotted == asked]
        or [one for one in every if one.dotted.startswith(f"{asked}.")]
        or [one for one in every if one.key.name == asked]
    )
    if keys:
        return tuple(keys)
    if asked.startswith("task.options."):
        hint = "the manual's page on tables and images lists those of Tabular and ImageFolder"
        raise ConfigError(name, "is a task's own option, and unknown here", hint=hint)
    near = nearest_key(asked, {one.dotted: None for one in every})
    if near is None:
        tables = dict.fromkeys(one.dotted.partition(".")[0] for one in every if "." in one.dotted)
        raise ConfigError(name, "there is no such key", hint=f"tables: {', '.join(tables)}")
    raise ConfigError(name, "there is no such key", hint=f"did you mean {near}?")


def _all_keys() -> Iterator[ExplainedKey]:
    """Yield every key once. A key of several configuration files is one key; a policy's key is another."""
    places: dict[tuple[str, type[Settings], bool], list[str]] = {}
    for file, model in FILES.items():
        for table, owner in (("", model), *tables_of(model)):
            places.setdefault((table, owner if table else model, model is SourcePolicy), []).append(file)
    for (table, owner, of_policy), files in places.items():
        for key in keys_of(owner):
            dotted = f"{table}.{key.name}" if table else key.name
            yield ExplainedKey(key, dotted, tuple(files), "" if of_policy else environment_name(dotted))
