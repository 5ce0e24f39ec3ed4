"""Settings read from TOML: frozen, kebab-case, no unknown keys, and errors that name the key and the fix.

The models of a configuration or a policy derive from :class:`Settings`. Every way of getting one wrong ends in a
:class:`~securefda.errors.ConfigError` whose key is the dotted name in the file. A file with several errors is refused
with all of them at once, unknown keys first.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from securefda.disk import read_file
from securefda.errors import ConfigError, ConfigErrors
from securefda.parse import BeyondBounds, toml_table

_SHOWN_CHARACTERS = 60
_WORDS = {
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "mapping_type": "must be a table",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text in quotes",
    "path_type": "must be a path in quotes",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "too_short": "must have at least {min_length}, has {actual_length}",
    "too_long": "must have at most {max_length}, has {actual_length}",
    "value_error": "{error}",
}
"""Type of an error of pydantic -> what it says to a user."""


def kebab_case(name: str) -> str:
    """Turn a field name into its key in a file: ``from_``, since Python keeps ``from`` to itself, is ``from``."""
    return name.removesuffix("_").replace("_", "-")


class Settings(BaseModel):
    """Base of all settings. Python builds them by field name, files by kebab-case key."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=kebab_case,
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
    )


SettingsT = TypeVar("SettingsT", bound=Settings)


class _Contradiction(ValueError):
    """A :class:`ConfigError` on its way through pydantic, which collects only errors of this type."""

    def __init__(self, error: ConfigError) -> None:
        super().__init__(str(error))
        self.error = error


def check(function: Callable[[SettingsT], SettingsT]) -> Any:
    """Mark a method as a check of a table whose keys are each valid; it raises ConfigError.

    Where a file is read, pydantic goes on with the other tables, so that all errors are found. A model that Python
    builds raises the ConfigError itself.
    """

    def checked(self: SettingsT, info: ValidationInfo) -> SettingsT:
        try:
            return function(self)
        except ConfigError as error:
            if info.context is None:
                raise
            raise _Contradiction(error) from error

    return model_validator(mode="after")(checked)


def _beside_the_file(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str):
        return value
    if "\0" in value:
        raise ValueError("must be a path, and none holds a NUL")
    base = (info.context or {}).get("base", Path())
    return _without_dots(Path(base) / Path(value).expanduser()) if value else None


def _without_dots(path: Path) -> Path:
    """Return the path without ``..``, as a user would type it, unless that would pass through a link."""
    plain = Path(os.path.normpath(path))
    return plain if os.path.realpath(plain) == os.path.realpath(path) else path


SettingsPath = Annotated[Path, BeforeValidator(_beside_the_file)]
"""A path; a relative one is taken from the folder of the file that names it."""

OptionalSettingsPath = Annotated[Path | None, BeforeValidator(_beside_the_file)]
"""Like :data:`SettingsPath`; the empty string is None."""


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file of at most 4 MiB.

    Raises:
        ConfigError: the file is missing, cannot be read, is no regular file, or is larger; or as :func:`parse_toml`.
    """
    try:
        data = read_file(path).data
    except ConfigError as error:
        for what, inside in (("settings", path / "local" / "settings.toml"), ("federation", path / "federation.toml")):
            if os.path.isfile(inside):  # noqa: PTH113 - unlike Path's, never raises
                raise ConfigError(str(path), error.why, hint=f"name the {what} in it: {inside}") from error
        raise
    return parse_toml(data, path)


def parse_toml(data: bytes, path: Path) -> dict[str, Any]:
    """Parse TOML that was read from ``path``.

    Raises:
        ConfigError: it is not UTF-8, not TOML (with line and column), or holds what no setting takes: nesting without
            end, or an integer of more than 64 bits.
    """
    try:
        return toml_table(data)
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "is not UTF-8 text", hint="save it as UTF-8") from error
    except BeyondBounds as error:
        raise ConfigError(str(path), str(error), hint="no setting takes that; look at who wrote the file") from error
    except ValueError as error:
        raise ConfigError(str(path), f"not valid TOML: {error}", hint=_toml_hint(str(error))) from error


def _toml_hint(found: str) -> str:
    if "overwrite" in found or "twice" in found:
        return "a key or table stands twice: keep one of them"
    if "Illegal character" in found:
        return "remove that character, or save the file again as UTF-8 text"
    return "correct that place; text values need quotes"


def parse_settings(
    model: type[SettingsT],
    data: Mapping[str, Any],
    *,
    file: Path,
    origins: Mapping[str, str] = MappingProxyType({}),
) -> SettingsT:
    """Validate ``data``, as read from ``file``, into ``model``.

    Args:
        model: what to build.
        data: nested tables with kebab-case keys.
        file: where the data came from; relative paths are relative to its folder.
        origins: dotted key -> where its value came from, for values that are not the file's own.

    Raises:
        ConfigError: the one that is wrong; a :class:`~securefda.errors.ConfigErrors` where there are several, unknown
            keys first, since they explain the missing ones.
    """
    known, unknown = _split(model, data, "")
    every_key = known_keys(model)
    errors = [_unknown_key_error(model, key, _origin(key, file, origins)) for key in unknown]
    try:
        settings = model.model_validate(known, by_alias=True, by_name=False, context={"base": file.parent})
    except ValidationError as error:
        details = error.errors(include_url=False)
        order = {"extra_forbidden": 0, "missing": 1}
        details.sort(key=lambda detail: order.get(detail["type"], 2))
        meant = {error.hint.removeprefix("did you mean ").rstrip("?") for error in errors}
        for detail in details:
            found = _as_config_error(detail, file, origins, every_key)
            if not (detail["type"] == "missing" and found.key in meant):
                errors.append(found)
    else:
        if not errors:
            return settings
    for one in (one for error in errors for one in (error.errors if isinstance(error, ConfigErrors) else (error,))):
        key = re.sub(r"\.\d+$", "", one.key)
        if one.hint or key not in every_key:
            continue
        if key.startswith("task.options."):  # `config explain` knows no options of tasks
            one.hint = "the manual's page on the task says what it takes"
        else:
            one.hint = f"securefda config explain {key} says what it takes"
    raise ConfigErrors.of(errors)


def parse_options(model: type[SettingsT], options: Mapping[str, object]) -> SettingsT:
    """Validate the options of a task; errors name them as ``task.options.KEY``. Raises what `parse_settings` does."""
    task = create_model("Task", __base__=Settings, options=(model, ...))
    root: Any = create_model("Root", __base__=Settings, task=(task, ...))
    parsed: SettingsT = parse_settings(
        root, {"task": {"options": dict(options)}}, file=Path("task.options")
    ).task.options
    return parsed


def _split(model: type[Settings], data: Mapping[str, Any], prefix: str) -> tuple[dict[str, Any], list[str]]:
    """Return ``data`` without the keys that ``model`` does not know, and the dotted names of these."""
    fields = {kebab_case(name): field.annotation for name, field in model.model_fields.items()}
    known, unknown = dict[str, Any](), list[str]()
    for key, value in data.items():
        annotation = fields.get(key)
        if key not in fields:
            unknown.append(f"{prefix}{key}")
        elif isinstance(value, Mapping) and isinstance(annotation, type) and issubclass(annotation, Settings):
            known[key], inner = _split(annotation, value, f"{prefix}{key}.")
            unknown += inner
        else:
            known[key] = value
    return known, unknown


def known_keys(model: type[Settings]) -> dict[str, Any]:
    """Return every dotted key of ``model`` that holds a value (not a table of settings), with its annotation."""
    return {key: field.annotation for key, field in declared_keys(model)}


def declared_keys(model: type[Settings], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield every dotted key of ``model`` that holds a value, as it is declared."""
    for name, field in model.model_fields.items():
        key = prefix + kebab_case(name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield from declared_keys(field.annotation, f"{key}.")
        else:
            yield key, field


def nearest_key(key: str, known: Mapping[str, Any]) -> str | None:
    """Return the key of ``known`` that ``key`` was probably meant to be: alike, or its last part in another table."""
    near = get_close_matches(key.lower(), list(known), n=1, cutoff=0.75)
    if near:
        return near[0]
    by_leaf = {name.rpartition(".")[2]: name for name in known}
    near = get_close_matches(key.rpartition(".")[2], list(by_leaf), n=1, cutoff=0.75)
    return by_leaf[near[0]] if near else None


def _as_config_error(
    detail: ErrorDetails, file: Path, origins: Mapping[str, str], known: Collection[str]
) -> ConfigError:
    key = ".".join(str(part) for part in detail["loc"]) or str(file)
    contradiction = detail.get("ctx", {}).get("error")
    if isinstance(contradiction, _Contradiction):
        return _where_it_lies(contradiction.error, [str(part) for part in detail["loc"]], known)
    source = _origin(key, file, origins)
    if detail["type"] == "missing":
        return ConfigError(key, f"missing ({source})", hint=f"add {key.rpartition('.')[2]} to the file")
    if detail["type"] == "extra_forbidden":
        return ConfigError(key, f"unknown key ({source})", hint="remove it, or spell it as the other entries do")
    given = detail["input"]
    bounds = {
        name: int(one) if isinstance(one, float) and one.is_integer() else one
        for name, one in detail.get("ctx", {}).items()
    }
    why = _WORDS.get(detail["type"], "has a value that this key does not take").format_map(bounds)
    hint = nearest_choice(given, why) if isinstance(given, str) else ""
    if isinstance(given, bool | int | float | str):
        shown = repr(given)
        why += f", not {shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + '...'}"
    return ConfigError(key, f"{why} ({source})", hint=hint)


def _where_it_lies(error: ConfigError, table: Sequence[str], known: Collection[str]) -> ConfigError:
    """Return a table's error with the key's name in this file: ``training.target.vary`` in a federation's."""
    inside = error.key.split(".")[1:]
    for depth in range(1, len(table) + 1):
        key = ".".join([*table[:depth], *inside])
        if error.key not in known and key in known:
            return ConfigError(key, error.why, hint=error.hint)
    return error


def _unknown_key_error(model: type[Settings], key: str, source: str) -> ConfigError:
    known = known_keys(model)
    table = key.rpartition(".")[0]
    beside = [name.removeprefix(f"{table}.") for name in known if name.startswith(f"{table}.")] if table else []
    if near := nearest_key(key, known):
        hint = f"did you mean {near}?"
    elif beside:
        hint = f"known keys of [{table}]: {', '.join(beside)}"
    else:
        hint = f"known tables and keys: {', '.join(dict.fromkeys(name.split('.')[0] for name in known))}"
    return ConfigError(key, f"unknown key ({source})", hint=hint)


def _origin(key: str, file: Path, origins: Mapping[str, str]) -> str:
    """Return where the value of a key came from, for an error."""
    inside = f"{key}."
    for name, where in origins.items():
        if inside.startswith(f"{name}.") or f"{name}.".startswith(inside):  # one is the other, or a table around it
            return where
    return str(file)


def nearest_choice(given: str, why: str) -> str:
    """Return a hint at the choice that ``given`` was probably meant to be, if ``why`` lists the choices; else empty."""
    listed = why.partition("must be one of ")[2].partition(";")[0]
    choices = listed.split(", ") if listed else re.findall(r"'([^']*)'", why)
    near = get_close_matches(given.lower(), choices, n=1)
    return f"did you mean {near[0]}?" if near else ""
