"""The federations that come with the package."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from pathlib import Path

from securefda.errors import ConfigError


def sample(name: str) -> Path:
    """Return the path of a sample configuration: in the installed package, or in the source tree.

    Raises:
        ConfigError: there is none of that name.
    """
    folder = _folder()
    path = folder.joinpath(f"{name}.toml")
    if not path.is_file():
        known = sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
        raise ConfigError(name, "is no sample federation", hint=f"samples: {', '.join(known) or 'none'}")
    return Path(str(path))


def _folder() -> Traversable:
    if find_spec("securefda.examples") is not None:
        return files("securefda.examples")
    return Path(__file__).parents[2] / "examples"
