"""Writes the table of wheels on the page of what is supported, from the package index; ``make lock`` runs it.

    python docs/support.py    needs uv on the path

uv looks up the files of each locked package. A cell is the oldest glibc or macOS on which some wheel runs under every
supported Python, or the Pythons without one.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "support.md"
LOCKS = ("requirements.lock", "requirements-torch-cuda.lock")
PYTHONS = (11, 12, 13)
PLATFORMS = {
    "Linux x86-64, glibc": r"manylinux_(\d+)_(\d+)_x86_64",
    "Linux arm64, glibc": r"manylinux_(\d+)_(\d+)_aarch64",
    "macOS on Apple silicon": r"macosx_(\d+)_(\d+)_(?:arm64|universal2)",
}
_TABLE = re.compile(r"(?<=<!-- wheels -->\n).*(?=<!-- end -->)", re.DOTALL)


def locked(lock: str) -> list[dict[str, Any]]:
    """The packages of a lock with their wheels, as uv finds them."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "pylock.toml"
        how = ["--quiet", "--universal", "--python-version", "3.11", "--no-deps", "--only-binary", ":all:"]
        command = ["uv", "pip", "compile", *how, "--format", "pylock.toml", "--output-file", str(out), lock]
        subprocess.run(command, cwd=ROOT, check=True)
        return list(tomllib.loads(out.read_text())["packages"])


def runs_under(tag: Tag, python: int) -> bool:
    """Whether CPython 3.``python`` takes a wheel of this tag."""
    if tag.abi == "abi3":
        return int(tag.interpreter.removeprefix("cp3")) <= python
    return tag.interpreter in ("py3", f"cp3{python}") and tag.abi in ("none", f"cp3{python}")


def oldest(tags: Iterable[Tag], pattern: str) -> str:
    """The content of a cell."""
    found: dict[int, tuple[int, int]] = {}
    for tag in tags:
        platform = re.fullmatch(pattern, tag.platform.replace("manylinux2014", "manylinux_2_17"))
        for python in PYTHONS:
            if platform and runs_under(tag, python):
                system = int(platform[1]), int(platform[2])
                found[python] = min(system, found.get(python, system))
    without = ", ".join(f"3.{python}" for python in PYTHONS if python not in found)
    return f"none for {without}" if without else "{}.{}".format(*max(found.values()))


def table(packages: Iterable[Mapping[str, Any]]) -> str:
    """The table and what it was made of; each package once, and those for every platform only counted."""
    rows, anywhere = {}, 0
    for package in packages:
        names = [wheel["url"].rpartition("/")[2] for wheel in package.get("wheels", ())]
        tags = [tag for name in names for tag in parse_wheel_filename(name)[3]]
        if any(tag.platform == "any" for tag in tags):
            anywhere += 1
        else:
            cells = [oldest(tags, pattern) for pattern in PLATFORMS.values()]
            rows[package["name"]] = [package["name"], package["version"], *cells]
    head = ["package", "version", *PLATFORMS]
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows.values())]
    day = datetime.now(UTC).date()
    return "\n".join(
        [*lines, "", f"The other {anywhere} packages have one wheel for all platforms. Looked up on {day}.\n"]
    )


def main() -> None:
    """Look up, and write."""
    packages = [*locked(LOCKS[0]), *(one for one in locked(LOCKS[1]) if one["name"] == "torch")]
    page, count = _TABLE.subn(lambda _: table(packages), PAGE.read_text())
    if count != 1:
        sys.exit(f"error: {PAGE} has no place for the table")
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
