"""The settings that a process really has: each value, where it came from, and how it differs from a run's.

Options whose name marks them as a secret are never shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securefda.formats import RUN_SETTINGS
from securefda.parse import canonical_json, load_object, texts
from securefda.settings import Settings, known_keys, read_toml
from securefda.site.config.key_help import toml
from securefda.site.config.load import Loaded, keys_in, load_settings, model_of
from securefda.site.policy import SourcePolicy, load_policy

DEFAULT = "default"
HIDDEN = "(hidden)"
_SECRET = re.compile(r"pass(word|phrase|wd)?|secret|token|credential|api-?key|private-?key", re.IGNORECASE)
_EMPTY, _ABSENT = "{}", "not set"


@dataclass(frozen=True, slots=True)
class Effective:
    """A key, its value as a file would spell it, and where the value came from."""

    key: str
    value: str
    origin: str


def load_effective(path: Path, overrides: Iterable[str], env: Mapping[str, str]) -> tuple[Effective, ...]:
    """Return every key of a settings file as a process started with these arguments would have it.

    Args:
        path: one of the three files.
        overrides: ``KEY=VALUE``, as given to ``--set``.
        env: the environment.

    Raises:
        ConfigError: the file, an override or a variable is wrong.
    """
    loaded: Loaded[Any] = load_settings(model_of(path), path, overrides, env)
    return tuple(effective(loaded.settings, loaded.given))


def effective_policy(path: Path) -> tuple[Effective, ...]:
    """Return every key of a policy.toml, signed or not.

    Raises:
        ConfigError: the file is wrong.
    """
    given = dict.fromkeys(keys_in(read_toml(path), known_keys(SourcePolicy)), path.name)
    return tuple(effective(load_policy(path), given))


def effective(settings: Settings, given: Mapping[str, str]) -> Iterator[Effective]:
    """Yield every key of ``settings``; those that are not ``given`` have their default."""
    for key, value in values_of(settings).items():
        yield Effective(key, value, next((given[name] for name in (key, _table(key)) if name in given), DEFAULT))


def _table(key: str) -> str:
    """Return the table of options or sites that ``key`` belongs to, or else ``key`` itself."""
    return next((name for name in ("task.options", "privacy.site-visibility") if key.startswith(f"{name}.")), key)


def values_of(settings: Settings) -> dict[str, str]:
    """Return dotted key -> value as a file would spell it; options and the like one by one, with secrets hidden."""
    found: dict[str, str] = {}
    for key in known_keys(type(settings)):
        value: Any = settings
        for part in key.split("."):
            value = getattr(value, part.replace("-", "_"))
        if isinstance(value, Mapping) and value:
            found |= _one_by_one(key, value)
        else:
            found[key] = toml(value)
    return found


def _one_by_one(key: str, table: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a table, and those of a table of tables in it, each under a key of its own."""
    found: dict[str, str] = {}
    for name, value in table.items():
        if _SECRET.search(name):
            found[f"{key}.{name}"] = HIDDEN
        elif isinstance(value, Mapping) and any(isinstance(one, Mapping) for one in value.values()):
            found |= _one_by_one(f"{key}.{name}", value)
        else:
            found[f"{key}.{name}"] = toml(_shown(value))
    return found


def _shown(value: Any) -> Any:
    """Hide the secrets in the tables of a value."""
    if isinstance(value, Mapping):
        return {name: HIDDEN if _SECRET.search(name) else _shown(one) for name, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, list | tuple) else value


def without_secrets(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a task's options without those whose name marks a secret; those in nested tables and lists are hidden."""
    return {name: _shown(value) for name, value in options.items() if not _SECRET.search(name)}


def secret_options(options: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Dotted names of the options that :func:`without_secrets` leaves out or hides; a list counts as one."""
    found: list[str] = []
    for name, value in options.items():
        if _SECRET.search(name):
            found.append(prefix + name)
        elif isinstance(value, Mapping):
            found += secret_options(value, f"{prefix}{name}.")
        elif _shown(value) != (list(value) if isinstance(value, tuple) else value):
            found.append(prefix + name)
    return found


def kept_settings(settings: Settings) -> bytes:
    """Return the values as a run's folder keeps them, for a later comparison."""
    return canonical_json({"version": RUN_SETTINGS.number, "settings": values_of(settings)}) + b"\n"


def changes_since(kept: bytes, settings: Settings) -> list[str]:
    """Return a line such as ``strategy.rounds: 500 \N{RIGHTWARDS ARROW} 12`` for each key that differs from what was
    kept.

    Raises:
        ValueError: ``kept`` is not what :func:`kept_settings` gave.
    """
    before, now = texts(load_object(kept, "version", "settings")["settings"]), values_of(settings)
    keys = [key for key in dict.fromkeys((*now, *before)) if before.get(key, _EMPTY) != now.get(key, _EMPTY)]
    return [change_text(key, before.get(key, _ABSENT), now.get(key, _ABSENT)) for key in keys]


def changes_between(before: Mapping[str, Any], now: Mapping[str, Any], table: str = "") -> dict[str, str]:
    """Return dotted key -> :func:`change_text` for each key that differs between two parsed files.

    That a secret differs is said, and neither of its values.
    """
    found: dict[str, str] = {}
    for name in dict.fromkeys((*before, *now)):
        key, old, new = f"{table}{name}", before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found |= changes_between(old, new, f"{key}.")
        elif old != new:
            is_secret = _SECRET.search(name) is not None
            shown = (_ABSENT if value is None else HIDDEN if is_secret else toml(_shown(value)) for value in (old, new))
            found[key] = change_text(key, *shown)
    return found


def change_text(key: str, before: str, now: str) -> str:
    """Describe a change, for example ``strategy.rounds: 500 \N{RIGHTWARDS ARROW} 12``."""
    return f"{key}: {before} \N{RIGHTWARDS ARROW} {now}"
