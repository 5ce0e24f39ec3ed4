"""The locks: each package has a version and hashes, and none that pyproject.toml names is missing."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NEEDED = PROJECT["project"]["dependencies"]
LOCKS = {
    "requirements.lock": NEEDED,
    "requirements-dev.lock": [*NEEDED, *PROJECT["project"]["optional-dependencies"]["dev"]],
    "requirements-tools.lock": PROJECT["dependency-groups"]["tools"],
    "requirements-torch-cpu.lock": ["torch"],
    "requirements-torch-cuda.lock": ["torch"],
}
HASHES = r"(?: --hash=sha256:[0-9a-f]{64})+"


def entries(lock: str) -> list[str]:
    """The lines of a lock, those that go on joined, without comments and options."""
    text = (ROOT / lock).read_text().replace("\\\n", " ")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "--only-binary"))]


def versions(lock: str) -> dict[str, set[str]]:
    """Name -> the versions, without what a build adds to its own. A name has several where platforms differ."""
    found: dict[str, set[str]] = {}
    for entry in entries(lock):
        requirement = Requirement(entry.partition(" --hash")[0])
        (version,) = requirement.specifier
        found.setdefault(canonicalize_name(requirement.name), set()).add(version.version.partition("+")[0])
    return found


def names(requirements: Iterable[str]) -> set[str]:
    return {canonicalize_name(Requirement(requirement).name) for requirement in requirements}


def test_every_lock_is_known_here() -> None:
    assert {path.name for path in ROOT.glob("requirements*")} == set(LOCKS)


@pytest.mark.threat("T47")
@pytest.mark.parametrize("lock", LOCKS)
def test_every_package_has_one_version_and_hashes(lock: str) -> None:
    pinned = re.compile(rf"[a-z0-9._-]+==[\w.+]+(?: ; [^-]*)?{HASHES}")
    assert [entry for entry in entries(lock) if not pinned.fullmatch(entry)] == []
    assert [name for name, found in versions(lock).items() if len(found) > 1] == []
    assert "\n--only-binary :all:\n" in (ROOT / lock).read_text()  # pip checks no hash of what builds a source package


@pytest.mark.threat("T47")
@pytest.mark.parametrize("lock", LOCKS)
def test_what_pyproject_names_is_locked(lock: str) -> None:
    of_torch = set() if "torch" in lock else {"torch"}
    assert names(LOCKS[lock]) - of_torch <= set(versions(lock))
    assert of_torch.isdisjoint(versions(lock))  # each build of PyTorch has a lock of its own


def test_locks_agree_with_each_other() -> None:
    tried = versions("requirements-dev.lock")
    for lock in ("requirements.lock", "requirements-torch-cuda.lock"):
        assert [name for name, found in versions(lock).items() if tried.get(name, found) != found] == []
    assert set(versions("requirements.lock")) <= set(tried)
    assert versions("requirements-torch-cpu.lock")["torch"] == versions("requirements-torch-cuda.lock")["torch"]
    assert PROJECT["dependency-groups"]["torch"] == [f"torch=={min(versions('requirements-torch-cpu.lock')['torch'])}"]


def test_the_page_of_wheels_is_of_these_locks() -> None:
    page = (ROOT / "docs" / "reference" / "support.md").read_text().partition("<!-- wheels -->")[2]
    shown = dict(re.findall(r"^\| ([a-z0-9-]+) \| (\d[\w.]*) \|", page, re.MULTILINE))
    known = versions("requirements.lock") | versions("requirements-torch-cuda.lock")
    assert {name: {version} for name, version in shown.items()} == {name: known[name] for name in shown}
    assert {"torch", "numpy", "cryptography"} <= shown.keys()
    counted = re.search(r"The other (\d+) packages", page)
    assert counted is not None
    assert int(counted[1]) == len(versions("requirements.lock")) - len(shown.keys() - {"torch"})


def test_only_the_lock_of_the_build_for_gpus_has_what_cuda_needs() -> None:
    """A new name has its place in CUDA_ONLY of the Makefile."""
    of_cuda = re.compile("nvidia-|cuda-|triton")
    found = {lock for lock in LOCKS if any(of_cuda.match(name) for name in versions(lock))}
    assert found == {"requirements-torch-cuda.lock"}
