"""Commands that train nothing import nothing heavy: torch alone takes two seconds, and every start pays for it.

Not among them: what reads a site's rows, which are tensors (``budget`` and ``preflight`` with settings), builds a
model (``policy check`` of a configuration), or computes an epsilon by PRV: Opacus does that, and imports torch. By RDP
an epsilon takes SciPy alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from audit_party import Party
from free_ports import free_port
from typer.main import get_command

from securefda.cli import main
from securefda.cli.app import app
from securefda.protocol.messages import NO_CONTEXT, Signer
from securefda.samples import sample
from securefda.site.kit import load_kit
from securefda.transport.wire import encode, encode_signed

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("audit", "site")]

from policy_headers import header_at_every_limit
from run_builder import ROSTER, Run
from run_lies import Equivocates

REPOSITORY = Path(__file__).resolve().parents[2]
TRAINS = ("torch", "opacus", "sklearn", "scipy", "grpc", "matplotlib")
"""No command that trains nothing imports these."""

COMPUTES = ("numpy", "cryptography", "rich.progress")
"""Nor, to say what it would do, these."""


def paths_of(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command and group below this one."""
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from paths_of(inner, (*path, name))


HELPS = [[*path, "--help"] for path in paths_of(get_command(app))]

# In the order in which they run: some need what an earlier one has made. {...} are the places of `placed`.
COMMANDS = {
    "--version": 0,
    "run nowhere.toml": 4,
    "source start --config nowhere.toml": 4,
    "budget show --config nowhere.toml": 4,
    "budget init --config nowhere.toml": 4,
    "budget plan --rounds 3": 4,
    "budget advise --config nowhere.toml": 4,
    "budget advise --config nowhere.toml --epsilon foo": 4,
    "federation init {sample} --out {new}": 0,
    "federation add {kits} source-6 --config {sample}": 0,
    "federation renew {kits} source-2": 0,
    "federation revoke {kits} source-6": 0,
    "federation sign {away} {kits}/ca/roster.json --out {signed}": 0,
    "federation merge {kits} {signed}": 0,
    "kit package {kits}/source-2 --out {package}": 0,
    "kit inspect {package}": 0,
    "site init new --federation digits --out {made}": 0,
    "site show {made}/requested/request.json": 0,
    "site renew {bare}": 0,
    "federation renew {kits} target --request {bare}/requested/request.json": 0,
    "site join {bare} {kits}/target": 0,
    "policy template research-open --out {policy}": 0,
    "policy explain {policy} {sample} --site source-1": 0,
    "policy explain {away}": 0,
    "policy sign {away}": 0,
    "policy dossier {away} --out {dossier}": 0,
    "policy check {away} {header}": 10,
    "preflight {bare} --address 127.0.0.1:{port}": 0,
    "threats --register {register}": 0,
    "audit verify {log}": 0,
    "audit show {log}": 0,
    "audit tail {log}": 0,
    "audit reconcile {run} --roster {roster}": 0,
    "audit reconcile {lies} --roster {roster} --evidence {evidence}": 13,
    "audit verify-evidence {evidence} --roster {roster}": 0,
    "config show {sample}": 0,
    "config show {away}": 0,
    "config explain strategy.rounds": 0,
    "runs ls {new}": 0,
    "status {run}": 4,
    "audit report {run} --roster {roster} --out {page}": 0,
    "audit reconcile {noisy} --roster {roster}": 0,
    "audit report {noisy} --roster {roster} --out {noisy-page}": 0,
    "budget plan --rounds 3 --samples 100 --batch 10 --epsilon 4 --delta 1e-5": 0,
    "budget plan --rounds 3 --samples 100 --batch 10 --noise 1.5 --delta 1e-5": 0,
}
"""Command -> its exit code."""

MAY = {
    "audit reconcile {noisy} --roster {roster}": "scipy",
}
"""Command -> what it may import, and with it all that follow: an imported module cannot be refused any more."""


class WithoutNoise(Run):
    """A run in which no ledger is charged."""

    def charge(self, site: str, number: int, attempt: int) -> None:
        pass


class Equivocation(WithoutNoise, Equivocates):
    """One in which the target lies."""


def placed(folder: Path) -> dict[str, Any]:
    """Kits and logs for the commands, and where they put things."""
    kits = folder / "kits"
    port = free_port()
    assert main(["federation", "init", str(sample("digits")), "--out", str(kits)]) == 0
    away, bare = shutil.move(kits / "source-1", folder / "away"), shutil.copytree(kits / "target", folder / "bare")
    (bare / "local" / "settings.toml").unlink()
    (folder / "roster.json").write_bytes(ROSTER.canonical_bytes())
    (folder / "header").write_bytes(header_of(bare))
    made = {
        "sample": sample("digits"),
        "kits": kits,
        "away": away,
        "bare": bare,
        "dossier": folder / "dossier.html",
        "header": folder / "header",
        "port": port,
        "register": REPOSITORY / "threat_model",
        "log": Party(folder / "party").write(),
        "run": WithoutNoise(folder / "run").write(),
        "lies": Equivocation(folder / "lies").write(),
        "noisy": Run(folder / "noisy").write(),
        "roster": folder / "roster.json",
    }
    names = ("new", "made", "signed", "package", "policy", "page", "noisy-page", "evidence")
    return made | {name: folder / name for name in names}


def header_of(kit: Path) -> bytes:
    """A header that the target signs for its federation, and some source refuses."""
    target = load_kit(kit, datetime.now(UTC))
    header = replace(header_at_every_limit(), roster_digest=target.roster.digest())
    signer = Signer(target.entry.index, target.signing_key, encode)
    return encode_signed(signer.sign(bytes(32), NO_CONTEXT, header))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Command -> exit code, stderr and what heavy modules it came to; all in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        places = placed(tmp_path_factory.mktemp("light"))
    asked = {" ".join(words): [words, [*TRAINS, *COMPUTES]] for words in HELPS}
    refused = list(TRAINS)
    for command in COMMANDS:
        if command in MAY:
            refused = [name for name in refused if name != MAY[command]]
        asked[command] = [[word.format(**places) for word in command.split()], refused]
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("light_commands.py")],
        input="".join(json.dumps(one) + "\n" for one in asked.values()),
        cwd=tmp_path_factory.mktemp("elsewhere"),
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(asked, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize(("command", "code"), [*((" ".join(words), 0) for words in HELPS), *COMMANDS.items()], ids=str)
def test_command_imports_nothing_heavy(ran: dict[str, dict[str, Any]], command: str, code: int) -> None:
    chains = [f"\n{command} imports {name}:\n  " + "\n  ".join(way) for name, way in ran[command]["heavy"].items()]
    assert not chains, "".join(chains)
    assert ran[command]["code"] == code, ran[command]["err"]
