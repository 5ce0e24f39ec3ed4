"""The files of a release: what is refused, what is signed, and that the changelog has what releases are made of."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import release

import securefda

ROOT = Path(__file__).parents[1]
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()


def git(folder: Path, *arguments: str) -> None:
    who = [
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@example.org",
        "-c",
        "commit.gpgSign=false",
        "-c",
        "tag.gpgSign=false",
    ]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def repository(folder: Path, version: str, changelog: str) -> Path:
    """A repository with one commit, which has what is read before anything is built."""
    (folder / "securefda").mkdir(parents=True)
    (folder / "securefda" / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(changelog)
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "release.py", folder / ".ci")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "All")
    return folder


def refused(folder: Path, *arguments: str) -> str:
    """The error line of a command that makes nothing."""
    command = [sys.executable, ".ci/release.py", *arguments]
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert not (folder / "dist").exists()
    return done.stderr


def test_a_version_without_a_section_of_its_own_is_not_built(tmp_path: Path) -> None:
    for number, changelog in enumerate(
        ("# Changelog\n\n## 1.2.3 (2030-01-02)\n- New.\n", "## 1.2.4 (2030-01-02)\n\n## 1.2.3 (2030-01-02)\n- New.\n")
    ):
        folder = repository(tmp_path / str(number), "1.2.4", changelog)
        assert "CHANGELOG.md needs one section '## 1.2.4 (DATE)' with notes" in refused(folder, "build", "dist")


def test_a_version_is_signed_once_it_has_a_date_and_a_tag(tmp_path: Path) -> None:
    undated = repository(tmp_path / "undated", "1.2.3", "## 1.2.3 (not released)\n- New.\n")
    git(undated, "tag", "v1.2.3")
    assert "says 'not released' for 1.2.3" in refused(undated, "build", "dist", "--sign", "key")
    untagged = repository(tmp_path / "untagged", "1.2.3", "## 1.2.3 (2030-01-02)\n- New.\n")
    git(untagged, "tag", "v1.2.30")
    assert "has no tag v1.2.3:" in refused(untagged, "build", "dist", "--sign", "key")


def test_the_notes_of_a_version_end_where_the_next_one_begins(tmp_path: Path) -> None:
    text = "# Changelog\n\n## 2.0 (2030-01-02)\n\n### Runs\n- New.\n\n## 1.0 (2029-01-02)\n- Old.\n"
    folder = repository(tmp_path, "2.0", text)
    for version, notes in {"2.0": "### Runs\n- New.\n", "1.0": "- Old.\n"}.items():
        command = [sys.executable, ".ci/release.py", "notes", version]
        assert subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout == notes


def test_the_changelog_has_one_section_for_each_version_the_newest_first() -> None:
    headings = [line for line in CHANGELOG.splitlines() if line.startswith("## ")]
    versions = [re.fullmatch(r"## (\d+\.\d+\.\d+) \((?:\d{4}-\d\d-\d\d|not released)\)", line) for line in headings]
    assert None not in versions
    numbers = [tuple(map(int, found[1].split("."))) for found in versions if found]
    assert numbers == sorted(set(numbers), reverse=True)
    assert headings[0].split()[1] == securefda.__version__


def test_an_sdist_does_not_show_who_built_it_and_when(tmp_path: Path) -> None:
    made = []
    for name, mode, when in (("first", 0o644, 1), ("second", 0o600, 2)):
        folder = tmp_path / name / "x-1"
        (folder / "sub").mkdir(parents=True)
        for file in ("b", "a", "sub/c") if name == "first" else ("sub/c", "a", "b"):
            (folder / file).write_text(file)
            (folder / file).chmod(mode)
        with tarfile.open(tmp_path / f"{name}.tar.gz", "w:gz") as packed:
            for path in sorted(folder.rglob("*"), reverse=name == "first"):
                member = packed.gettarinfo(path, path.relative_to(folder.parent))
                member.mtime, member.uid, member.uname = when, when, name
                packed.addfile(member, path.open("rb") if path.is_file() else None)
        made.append(tmp_path / f"{name}.again")
        release.repack(tmp_path / f"{name}.tar.gz", made[-1], 1_900_000_000)
    assert made[0].read_bytes() == made[1].read_bytes()
    with tarfile.open(made[0]) as packed:
        assert packed.getnames() == ["x-1/a", "x-1/b", "x-1/sub", "x-1/sub/c"]
        assert packed.extractfile("x-1/sub/c").read() == b"sub/c"  # type: ignore[union-attr]


@pytest.mark.threat("T47")
@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="OpenSSH is not installed")
def test_a_signature_is_of_these_sums_by_this_key_and_for_a_release(tmp_path: Path) -> None:
    sums, key, other = tmp_path / "SHA256SUMS", tmp_path / "key", tmp_path / "other"
    sums.write_text("00  a file\n")
    for one in (key, other):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(one)], check=True)
    release.sign(sums, key)

    def verified(signer: Path, namespace: str, signed: bytes) -> bool:
        signers = tmp_path / "signers"
        signers.write_text(f"securefda {signer.with_suffix('.pub').read_text()}")
        command = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", "securefda", "-n", namespace]
        done = subprocess.run([*command, "-s", f"{sums}.sig"], input=signed, check=False, capture_output=True)
        return done.returncode == 0

    assert verified(key, "securefda-release", sums.read_bytes())
    assert not verified(key, "securefda-release", b"01  a file\n")
    assert not verified(other, "securefda-release", sums.read_bytes())
    assert not verified(key, "git", sums.read_bytes())
