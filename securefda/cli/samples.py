"""The federations that come with the package."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from securefda.errors import ConfigError


def sample(name: str) -> Path:
    """Return the path of a sample configuration: in the installed package, or in the source tree.

    Raises:
        ConfigError: there is none of that name.
    """
    installed = find_spec("securefda.examples") is not None
    folder = Path(str(files("securefda.examples"))) if installed else Path(__file__).parents[2] / "examples"
    path = folder / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in folder.glob("*.toml")))
        raise ConfigError(name, "is no sample federation", hint=f"samples: {known or 'none'}")
    return path
