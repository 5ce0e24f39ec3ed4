"""The federations that come with the package, each a TOML file here."""

from __future__ import annotations

from pathlib import Path

from securefda.errors import ConfigError

_FOLDER = Path(__file__).parent


def sample(name: str) -> Path:
    """Return the path of a sample configuration.

    Raises:
        ConfigError: there is none of that name.
    """
    path = _FOLDER / f"{name}.toml"
    if not path.is_file():
        raise ConfigError(name, "is no sample federation", hint=f"samples: {', '.join(sample_names())}")
    return path


def sample_names() -> list[str]:
    """Names of all samples, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))
