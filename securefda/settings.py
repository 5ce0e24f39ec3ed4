"""Settings read from TOML: frozen, kebab-case, no unknown keys, and errors that name the key and the mend.

The models of a configuration or a policy derive from :class:`Settings`. Every way of getting one wrong ends in one
:class:`~securefda.errors.ConfigError` whose key is the dotted name in the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails

from securefda.errors import ConfigError
from securefda.parse import BeyondBounds, toml_table

_SHOWN_CHARACTERS = 60
_MAX_FILE_BYTES = 4 * 1024 * 1024


def kebab_case(name: str) -> str:
    """Turn a field name into its key in a file."""
    return name.replace("_", "-")


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

    renamed: ClassVar[Mapping[str, str]] = {}
    """Dotted keys of earlier versions -> what they are called now."""


SettingsT = TypeVar("SettingsT", bound=Settings)


def _beside_the_file(value: object, info: ValidationInfo) -> object:
    if not isinstance(value, str):
        return value
    if "\0" in value:
        raise ValueError("must be a path, and none holds a NUL")
    base = (info.context or {}).get("base", Path())
    return Path(base) / Path(value).expanduser() if value else None


SettingsPath = Annotated[Path, BeforeValidator(_beside_the_file)]
"""A path; a relative one is taken from the folder of the file that names it."""

OptionalSettingsPath = Annotated[Path | None, BeforeValidator(_beside_the_file)]
"""Like :data:`SettingsPath`; the empty string is None."""


def read_toml(path: Path) -> dict[str, Any]:
    """Parse a TOML file of at most 4 MiB.

    Raises:
        ConfigError: the file is not there, cannot be read, or is larger; or as :func:`parse_toml`.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(str(path), "file not found", hint="check the path") from error
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(str(path), f"is larger than {_MAX_FILE_BYTES} bytes", hint="check the path")
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
        raise ConfigError(str(path), f"not valid TOML: {error}", hint="text values need quotes") from error


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
        ConfigError: names the first wrong key; unknown keys come first, since they explain the missing ones.
    """
    try:
        return model.model_validate(data, by_alias=True, by_name=False, context={"base": file.parent})
    except ValidationError as error:
        details = error.errors(include_url=False)
        worst = next((detail for detail in details if detail["type"] == "extra_forbidden"), details[0])
        raise _as_config_error(model, worst, file, origins) from None


def known_keys(model: type[Settings]) -> dict[str, Any]:
    """Return every dotted key of ``model`` that holds a value (not a table of settings), with its annotation."""
    return dict(_walk(model, ""))


def _walk(model: type[Settings], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, field in model.model_fields.items():
        key = prefix + kebab_case(name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, Settings):
            yield from _walk(field.annotation, f"{key}.")
        else:
            yield key, field.annotation


def nearest_key(key: str, known: Mapping[str, Any]) -> str | None:
    """Return the key of ``known`` that ``key`` was probably meant to be: alike, or its last part in another table."""
    near = get_close_matches(key, list(known), n=1, cutoff=0.75)
    if near:
        return near[0]
    by_leaf = {name.rpartition(".")[2]: name for name in known}
    near = get_close_matches(key.rpartition(".")[2], list(by_leaf), n=1, cutoff=0.75)
    return by_leaf[near[0]] if near else None


def _as_config_error(
    model: type[Settings], detail: ErrorDetails, file: Path, origins: Mapping[str, str]
) -> ConfigError:
    key = ".".join(str(part) for part in detail["loc"]) or str(file)
    source = next((where for name, where in origins.items() if _overlap(key, name)), file.name)
    if detail["type"] == "extra_forbidden":
        if key in model.renamed:
            return ConfigError(key, f"is now {model.renamed[key]} ({source})", hint=f"write {model.renamed[key]}")
        return ConfigError(key, f"unknown key ({source})", hint=_unknown_key_hint(model, key))
    if detail["type"] == "missing":
        return ConfigError(key, f"missing ({source})", hint=f"add {key.rpartition('.')[2]} to the file")
    return ConfigError(key, f"{_why(detail)} ({source})")


def _overlap(key: str, other: str) -> bool:
    return f"{key}.".startswith(f"{other}.") or f"{other}.".startswith(f"{key}.")


def _unknown_key_hint(model: type[Settings], key: str) -> str:
    known = known_keys(model)
    near = nearest_key(key, known)
    if near:
        return f"did you mean {near}?"
    table = key.rpartition(".")[0]
    beside = [name.removeprefix(f"{table}.") for name in known if name.startswith(f"{table}.")] if table else []
    if beside:
        return f"known keys of [{table}]: {', '.join(beside)}"
    return f"known tables and keys: {', '.join(dict.fromkeys(name.split('.')[0] for name in known))}"


def _why(detail: ErrorDetails) -> str:
    if detail["type"] == "model_type":
        return "must be a table"
    message = detail["msg"].removeprefix("Value error, ").replace("Input should be", "must be").replace("tuple", "list")
    message = message[:1].lower() + message[1:]
    if isinstance(detail["input"], bool | int | float | str):
        shown = repr(detail["input"])
        message += f", not {shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + '...'}"
    return message
