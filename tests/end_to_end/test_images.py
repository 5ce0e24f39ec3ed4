"""The walk-through of the README from images: the commands that docs/how-to/deploy.md lists, as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from depth import DEEP
from fork_server import REPOSITORY

PAGE = REPOSITORY / "docs/how-to/deploy.md"
HEADING = "## In ten commands, without a container engine"
MOST_COMMANDS = 10
TOOLS = ("buildah", "mmdebstrap")
DISK_SPACE = 20 << 30
"""Bytes: each layer of each image is a whole copy of its files."""

OF_PIP = ("index", "find-links", "cert", "proxy")


def documented() -> list[str]:
    """The commands of the page, one for each line that goes on in no other."""
    section = PAGE.read_text().partition(HEADING)[2]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None, f"no commands below {HEADING!r}"
    lines = block[1].replace("\\\n", " ").splitlines()
    return [" ".join(line.split()) for line in lines if not line.startswith("#")]


def why_not() -> str:
    """Why these images are not built here; empty where they are."""
    if not DEEP:
        return "takes ten minutes: make test-deep"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"needs {' and '.join(missing)}"
    if os.geteuid() != 0:
        return "needs root"
    if shutil.disk_usage(tempfile.gettempdir()).free < DISK_SPACE:
        return f"needs {DISK_SPACE >> 30} GB in {tempfile.gettempdir()}"
    if "BUILD_OPTIONS" not in os.environ:
        listed = [sys.executable, "-m", "pip", "config", "list"]
        keys = subprocess.run(listed, check=True, capture_output=True, text=True).stdout
        if own := [line.partition("=")[0] for line in keys.splitlines() if any(word in line for word in OF_PIP)]:
            return f"pip has settings of its own here, {own[0]}: name in BUILD_OPTIONS how a build gets them (--volume)"
    return ""


def test_the_walkthrough_is_at_most_ten_commands_and_each_site_is_started_once() -> None:
    commands = documented()
    assert 0 < len(commands) <= MOST_COMMANDS
    started = [re.search(r"kits/([\w-]+):/kit.*securefda (\w+) start", command) for command in commands]
    assert [found.groups() for found in started if found] == [
        ("clinic", "aggregator"),
        *((site, "source") for site in ("hospital-a", "hospital-b", "hospital-c")),
    ]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder on the disk with a clone of the last commit; every container is gone after the test."""
    with tempfile.TemporaryDirectory(prefix="securefda-images-") as name:
        folder = Path(name)
        subprocess.run(
            ["git", "clone", "--quiet", "--depth", "1", f"file://{REPOSITORY}", folder / "clone"], check=True
        )
        yield folder
        buildah(folder, "rm", "--all")


def environment(folder: Path) -> Mapping[str, str]:
    """Images below ``folder``, on a file system that a container may have too."""
    settings = folder / "storage.conf"
    settings.write_text(f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/images"\nrunroot = "{folder}/run"\n')
    own = {"STORAGE_DRIVER": "vfs", "CONTAINERS_STORAGE_CONF": str(settings), "TMPDIR": str(folder)}
    return {**os.environ, **own, "BUILDAH_ISOLATION": "chroot"}


def buildah(folder: Path, *arguments: str) -> str:
    command = ["buildah", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=environment(folder)).stdout


REASON = why_not()


@pytest.mark.skipif(bool(REASON), reason=REASON)
def test_the_walkthrough_runs_from_images(place: Path) -> None:
    """All end with 0, nothing is written beside /kit and /tmp, and the two builds hold the same files."""
    clone, options = place / "clone", os.environ.get("BUILD_OPTIONS", "")
    commands = [command.replace("buildah bud ", f"buildah bud {options} ") for command in documented()]
    waits = "for pid in $(jobs -p); do wait $pid || { code=$?; kill $(jobs -p); exit $code; }; done"
    script = "\n".join(["set -eu", *commands, waits])
    done = subprocess.run(
        ["bash", "-c", script], check=False, cwd=clone, env=environment(place), capture_output=True, text=True
    )
    said = f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    assert done.returncode == 0, said
    assert "round 12 of 12" in said

    roots = {
        name: Path(buildah(place, "mount", name).strip())
        for name in buildah(place, "containers", "--format", "{{.ContainerName}}").split()
    }
    assert len(roots) == 1 + 4  # the authority and the sites
    begun = str(clone / "federation")  # made before the first container, and changed when the kits came
    for root in roots.values():
        find = ["find", str(root), "-xdev", "-newer", begun, "-type", "f", "-not", "-path", "*/tmp/*"]
        assert subprocess.run(find, check=True, capture_output=True, text=True).stdout == ""
    installed = [next(root for name, root in roots.items() if role in name) for role in ("aggregator", "source")]
    compare = ["diff", "--brief", "--recursive", "--no-dereference", *(root / "opt/securefda" for root in installed)]
    same = subprocess.run(compare, check=False, capture_output=True, text=True)
    assert (same.returncode, same.stdout) == (0, "")
