"""Builds what a release consists of, the same bytes on any machine, and prints the notes of a version.

    python .ci/release.py notes [VERSION]              the section of the changelog: of the version of the last commit
    python .ci/release.py build FOLDER [--sign KEY]    of the last commit: the files below

FOLDER gets the wheel, the sdist, the locks, ``sbom.cdx.json`` (CycloneDX: the locked packages with their hashes),
``provenance.json`` (in-toto and SLSA: commit, locks and tools), ``NOTES.md``, and ``SHA256SUMS`` of these. With a key
of OpenSSH, ``SHA256SUMS.sig`` signs the sums; that is refused unless the changelog dates the version and its tag is at
the commit. Nothing but the commit and the tools counts: no other file, clock, time zone or umask.
``make release`` sets up what this needs.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tarfile
import tempfile
import zlib
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
IN_SBOM = ("requirements.lock", "requirements-torch-cpu.lock")
LOCKS = (*IN_SBOM, "requirements-torch-cuda.lock")
SUMS = "SHA256SUMS"
NAMESPACE = "securefda-release"
"""Of the signature, so that it counts for nothing else that the key signs."""


def git(*arguments: str) -> bytes:
    """What a command of git prints."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout


def committed(name: str) -> str:
    """A file as the last commit has it."""
    return git("show", f"HEAD:{name}").decode()


def version_of_commit() -> str:
    """The version, which stands in one place."""
    found = re.search(r'^__version__ = "(.+)"$', committed("securefda/__init__.py"), re.MULTILINE)
    if found is None:
        sys.exit("error: securefda/__init__.py names no __version__")
    return found[1]


def section(changelog: str, version: str) -> tuple[str, str]:
    """The date of a version, or what stands in its place, and its notes."""
    parts = re.findall(rf"^## {re.escape(version)} \((.+)\)\n((?:(?!## ).*\n)*)", changelog, re.MULTILINE)
    if len(parts) != 1 or not parts[0][1].strip():
        sys.exit(
            f"error: CHANGELOG.md needs one section '## {version} (DATE)' with notes, and has {len(parts)}: write it"
        )
    date, notes = parts[0]
    return date, notes.strip() + "\n"


def require_released(version: str, date: str) -> None:
    """Refuse to sign what the changelog does not date, or what cannot be checked out by its tag."""
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        sys.exit(
            f"error: CHANGELOG.md says '{date}' for {version}: give the date of the release as YYYY-MM-DD, and commit"
        )
    if f"v{version}" not in git("tag", "--points-at", "HEAD").decode().split():
        sys.exit(f"error: the last commit has no tag v{version}: sign one with `git tag -s v{version}`")


def sha256(path: Path) -> str:
    """The digest of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def build(folder: Path, epoch: int) -> list[Path]:
    """Write sdist and wheel of the last commit."""
    os.umask(0o022)  # the modes of files are in a wheel
    with tempfile.TemporaryDirectory() as scratch:
        tree, made = Path(scratch) / "tree", Path(scratch) / "made"
        tree.mkdir()
        files = git("-c", "tar.umask=0022", "archive", "HEAD")
        subprocess.run(["tar", "-xp", "-C", str(tree)], input=files, check=True)
        done = subprocess.run(
            [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(made), str(tree)],
            env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONPATH": ""},
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{done.stdout}error: the last commit does not build: see above")
        (sdist,), (wheel,) = made.glob("*.tar.gz"), made.glob("*.whl")
        repack(sdist, folder / sdist.name, epoch)
        (folder / wheel.name).write_bytes(wheel.read_bytes())
        return [folder / sdist.name, folder / wheel.name]


def repack(source: Path, to: Path, epoch: int) -> None:
    """Write a ``.tar.gz`` again: sorted, of one time, without owners. As setuptools writes it, it shows the builder."""
    with (
        tarfile.open(source) as old,
        to.open("wb") as file,
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as new,
    ):
        for member in sorted(old, key=lambda one: one.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member))


def sbom(version: str) -> str:
    """CycloneDX of the locked packages, from ``cyclonedx-py``."""
    command = ["cyclonedx-py", "requirements", "-", "--output-reproducible", "--output-format", "JSON"]
    locked = "".join(map(committed, IN_SBOM))
    try:
        done = subprocess.run(command, input=locked, text=True, check=True, stdout=subprocess.PIPE)
    except FileNotFoundError:
        sys.exit("error: cyclonedx-py is not on the path: run `make release`, which installs it")
    found = json.loads(done.stdout)
    found["metadata"]["component"] = {
        "type": "library",
        "name": "securefda",
        "version": version,
        "purl": f"pkg:pypi/securefda@{version}",
    }
    return json.dumps(found, indent=1, sort_keys=True) + "\n"


def provenance(version: str, subjects: list[Path]) -> dict[str, Any]:
    """Of what and with what the files were built: a statement of in-toto with SLSA's predicate."""
    commit = git("rev-parse", "HEAD").decode().strip()
    tools = {name: installed(name) for name in ("build", "setuptools")}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": path.name, "digest": {"sha256": sha256(path)}} for path in subjects],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:securefda:release.py",
                "externalParameters": {"version": version},
                "resolvedDependencies": [{"name": "securefda", "digest": {"gitCommit": commit}}],
            },
            "runDetails": {
                "builder": {
                    "id": "urn:securefda:release.py",
                    "version": {"python": platform.python_version(), "zlib": zlib.ZLIB_RUNTIME_VERSION, **tools},
                }
            },
        },
    }


def sign(sums: Path, key: Path) -> None:
    """Write ``SHA256SUMS.sig`` beside the sums."""
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(sums)], check=True)


def release(folder: Path, key: Path | None) -> None:
    """Build everything of the last commit."""
    version = version_of_commit()
    date, notes = section(committed("CHANGELOG.md"), version)
    if key is not None:
        require_released(version, date)
    folder.mkdir(parents=True, exist_ok=True)
    made = build(folder, int(git("log", "-1", "--format=%ct")))
    texts = {name: committed(name) for name in LOCKS} | {"sbom.cdx.json": sbom(version), "NOTES.md": notes}
    for name, text in texts.items():
        made.append(folder / name)
        made[-1].write_text(text)
    statement = folder / "provenance.json"
    statement.write_text(json.dumps(provenance(version, made), indent=1) + "\n")
    sums = folder / SUMS
    sums.write_text("".join(f"{sha256(path)}  {path.name}\n" for path in [*made, statement]))
    if key is not None:
        sign(sums, key)
    print(sums.read_text(), end="")


def main() -> None:
    """Parse, and do it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    of_notes = commands.add_parser("notes", help="print the notes of a version")
    of_notes.add_argument("version", nargs="?", help="of the last commit if left out")
    of_build = commands.add_parser("build", help="build the files of a release")
    of_build.add_argument("folder", type=Path)
    of_build.add_argument(
        "--sign", type=Path, metavar="KEY", help="a private key of OpenSSH, or the public one of an agent's"
    )
    given = parser.parse_args()
    if given.command == "notes":
        print(section(committed("CHANGELOG.md"), given.version or version_of_commit())[1], end="")
    else:
        release(given.folder, given.sign)


if __name__ == "__main__":
    main()
