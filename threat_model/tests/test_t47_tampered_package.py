"""T47: pip installs no package that differs from the locked one, and every installation asks pip for that."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from threat_model.adversaries.tampered_package import NAME, VERSION, TamperedPackage
from threat_model.register import ROOT

PINNED = f"{NAME}=={VERSION}"
INSTALLATIONS = (
    "Makefile",
    ".ci/run",
    "docs/how-to/several-machines.md",
    "docs/how-to/verify-what-you-install.md",
    "services/aggregator/Containerfile",
    "services/source/Containerfile",
)
CALLS_PIP = r"^(?!INSTALL :=|install=).*(?:pip (?:install|download) -|\$\(INSTALL\) |\$into |\$\{install\[@\]\}\" )"


@pytest.fixture
def attacker(tmp_path: Path) -> TamperedPackage:
    folder = tmp_path / "index"
    folder.mkdir()
    return TamperedPackage(folder)


@pytest.mark.threat("T47")
def test_tampered_package_is_not_installed_and_the_authors_is(attacker: TamperedPackage, tmp_path: Path) -> None:
    lock = f"{PINNED} --hash=sha256:{attacker.locked}\n"
    assert "authors" in attacker.attack(tmp_path / "before", lock, "--require-hashes")[0]
    attacker.tamper()
    installed, printed = attacker.attack(tmp_path / "after", lock, "--require-hashes")
    assert installed == ""
    assert "THESE PACKAGES DO NOT MATCH THE HASHES" in printed


@pytest.mark.threat("T47")
@pytest.mark.control
def test_tampered_package_is_installed_where_only_its_version_is_locked(
    attacker: TamperedPackage, tmp_path: Path
) -> None:
    attacker.tamper()
    assert "attacker" in attacker.attack(tmp_path / "site", f"{PINNED}\n")[0]


@pytest.mark.threat("T47")
@pytest.mark.parametrize("file", INSTALLATIONS)
def test_every_installation_asks_for_hashes(file: str) -> None:
    """Except of the package itself, or of what lies in a folder of files that pip has compared."""
    text = (ROOT / file).read_text().replace("\\\n", " ")
    commands = [line for line in re.split(r"\n|&&", text) if re.search(CALLS_PIP, line)]
    assert commands
    for line in commands:
        wanted = "--require-hashes" if re.search(" (-r|--requirement) ", line) else "--no-deps|--no-index"
        assert re.search(wanted, line), line
