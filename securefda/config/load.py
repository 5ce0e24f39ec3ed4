"""Reading a configuration file with its overrides: flag before environment before file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from securefda.config.files import AggregatorConfig, FederationConfig, SourceConfig
from securefda.errors import ConfigError
from securefda.parse import MAX_NESTING, BeyondBounds, toml_table
from securefda.settings import Settings, SettingsT, known_keys, parse_settings, read_toml

ENVIRONMENT_PREFIX = "SECUREFDA_"
_NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})
_FILES: tuple[type[Settings], ...] = (FederationConfig, AggregatorConfig, SourceConfig)


def load_federation(
    path: Path, overrides: Iterable[str] = (), env: Mapping[str, str] = _NO_ENVIRONMENT
) -> FederationConfig:
    """Read FEDERATION.toml.

    Args:
        path: the file; relative paths inside it are relative to its folder.
        overrides: ``KEY=VALUE`` with a dotted key, as given to ``--set``; relative paths are the caller's own.
        env: the environment; ``SECUREFDA_STRATEGY_ROUNDS`` sets ``strategy.rounds``.

    Raises:
        ConfigError: the file, a key or a value is wrong; the key is named, and for an unknown one the nearest.
    """
    return _load(FederationConfig, path, overrides, env)


def load_aggregator(
    path: Path, overrides: Iterable[str] = (), env: Mapping[str, str] = _NO_ENVIRONMENT
) -> AggregatorConfig:
    """Read aggregator.toml; arguments and errors as for :func:`load_federation`."""
    return _load(AggregatorConfig, path, overrides, env)


def load_source(path: Path, overrides: Iterable[str] = (), env: Mapping[str, str] = _NO_ENVIRONMENT) -> SourceConfig:
    """Read source.toml; arguments and errors as for :func:`load_federation`."""
    return _load(SourceConfig, path, overrides, env)


def child_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return ``env`` without settings: for a process whose file already holds what the parent's overrides said."""
    names = set().union(*(_environment_names(model) for model in _FILES))
    return {name: value for name, value in env.items() if name not in names}


def _load(model: type[SettingsT], path: Path, overrides: Iterable[str], env: Mapping[str, str]) -> SettingsT:
    data = read_toml(path)
    annotations = known_keys(model)
    origins: dict[str, str] = {}
    for key, text, origin in (*_from_environment(model, env), *map(_from_flag, overrides)):
        try:
            _put(data, key, _parse_value(text, annotations.get(key)), origin)
        except BeyondBounds as error:
            raise ConfigError(key, f"{error} ({origin})", hint="no setting takes that") from error
        origins[key] = origin
    return parse_settings(model, data, file=path, origins=origins)


def _from_flag(override: str) -> tuple[str, str, str]:
    key, equals, text = override.partition("=")
    if not equals or not all(key.strip().split(".")):
        raise ConfigError(f"--set {override}", "is not KEY=VALUE", hint="for example --set strategy.rounds=3")
    if key.count(".") >= MAX_NESTING:
        raise ConfigError("--set", f"a key of more than {MAX_NESTING} parts", hint="no setting is nested so deep")
    return key.strip(), text.strip(), "--set"


def _from_environment(model: type[Settings], env: Mapping[str, str]) -> list[tuple[str, str, str]]:
    own = _environment_names(model)
    every = set().union(*(_environment_names(other) for other in _FILES))
    tables = tuple({f"{ENVIRONMENT_PREFIX}{key.split('.')[0].upper()}_" for m in _FILES for key in known_keys(m)})
    found = []
    for name in sorted(env):
        if name in own:
            found.append((own[name], env[name], name))
        elif name.startswith(tables) and name not in every:
            near = get_close_matches(name, every, n=1)
            raise ConfigError(name, "unknown setting", hint=f"did you mean {near[0]}?" if near else "unset it")
    return found


def _environment_names(model: type[Settings]) -> dict[str, str]:
    """Environment name -> dotted key, for every key but the task's own options, whose names are the task's."""
    keys = (key for key in known_keys(model) if key != "task.options")
    return {ENVIRONMENT_PREFIX + key.replace(".", "_").replace("-", "_").upper(): key for key in keys}


def _put(data: dict[str, Any], key: str, value: object, origin: str) -> None:
    *tables, leaf = key.split(".")
    for table in tables:
        data = data.setdefault(table, {})
        if not isinstance(data, dict):
            raise ConfigError(key, f"{table} is a value, not a table ({origin})")
    data[leaf] = value


def _parse_value(text: str, annotation: object) -> object:
    """Read an override as TOML where that is possible, else as plain text; a text field always gets text.

    Raises:
        BeyondBounds: it is nested without end, say; or it was given in bytes that are not UTF-8.
    """
    try:
        parsed = toml_table(f"value = {text}")
    except BeyondBounds:
        raise
    except ValueError:
        parsed = {}
    value = parsed["value"] if parsed.keys() == {"value"} else text
    if _takes(annotation, Path):
        value = value if isinstance(value, str) else text
        return str(Path(value).expanduser().absolute()) if value else ""
    if _takes(annotation, str) and not isinstance(value, str):
        return text
    return value


def _takes(annotation: object, kind: type) -> bool:
    """Whether a field of this annotation takes ``kind``, through unions and literals."""
    origin = get_origin(annotation)
    if origin is Literal:
        return any(isinstance(choice, kind) for choice in get_args(annotation))
    if origin in (Union, UnionType):
        return any(_takes(part, kind) for part in get_args(annotation))
    return annotation is kind
