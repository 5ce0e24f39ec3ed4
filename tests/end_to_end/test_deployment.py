"""``federation init --deploy``: what is written beside the kits, held against the processes that it starts."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_processes import Process
from fork_server import REPOSITORY
from free_ports import free_port

from securefda.cli import main
from securefda.errors import ExitCode

SITES = ("clinic", "hospital-a", "hospital-b", "hospital-c")
INIT = ("federation", "init", "three_hospitals")
EXPOSED = 20
"""Tenths: how much of the machine ``systemd-analyze security`` may call exposed, of 10.0."""

needs_systemd_analyze = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


Start = Callable[[list[str]], Process]


def deploy(out: Path, kind: str, *more: str) -> dict[str, Path]:
    """Each site's folder."""
    assert main([*INIT, "--out", str(out), "--deploy", kind, *more]) == 0
    return {site: out / f"{site}.deploy" for site in SITES}


def units(out: Path, *more: str) -> dict[str, Path]:
    return {site: folder / f"securefda-{site}.service" for site, folder in deploy(out, "systemd", *more).items()}


def option(unit: str, name: str) -> list[str]:
    return re.findall(rf"(?m)^{name}=(.*)$", unit)


def command_of(unit: str, kits: Path) -> list[str]:
    """What ExecStart= starts, from kits that lie elsewhere."""
    (line,) = option(unit, "ExecStart")
    program, *arguments = shlex.split(line.replace("/var/lib/securefda", str(kits)))
    assert program == "/opt/securefda/bin/securefda"
    return arguments


@needs_systemd_analyze
@pytest.mark.parametrize("address", ["192.0.2.7:8443", "clinic.example.org:8443"])
def test_every_unit_passes_systemds_own_checks_and_exposes_little(tmp_path: Path, address: str) -> None:
    for unit in units(tmp_path / "kits", "--address", address).values():
        here = tmp_path / unit.name
        here.write_text(unit.read_text().replace("/opt/securefda/bin/securefda", sys.executable))
        verified = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", here], check=False, capture_output=True, text=True
        )
        assert (verified.returncode, verified.stdout + verified.stderr) == (0, "")
        assert exposure_is_low(here)


def exposure_is_low(unit: Path) -> bool:
    command = ["systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSED}", unit]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@needs_systemd_analyze
def test_a_unit_without_its_protection_exposes_too_much(tmp_path: Path) -> None:
    unit = units(tmp_path / "kits")["hospital-a"]
    bare = tmp_path / unit.name
    bare.write_text(re.sub(r"(?m)^Protect.*\n", "", unit.read_text()))
    assert not exposure_is_low(bare)


def test_a_unit_starts_its_site_and_calls_what_sigterm_ends_a_success(tmp_path: Path, start: Start) -> None:
    port = free_port()
    found = units(tmp_path / "kits", "--address", f"127.0.0.1:{port}")
    for site, line in (("hospital-a", "cannot reach"), ("clinic", "listens on")):
        unit = found[site].read_text().replace("metrics.port=9464", f"metrics.port={free_port()}")
        process = start(command_of(unit, tmp_path / "kits")).until(line)
        process.interrupt(signal.SIGTERM)
        assert option(unit, "SuccessExitStatus") == [str(process.end())]


def test_a_unit_does_not_start_again_what_needs_a_person(tmp_path: Path) -> None:
    (codes,) = option(units(tmp_path / "kits")["clinic"].read_text(), "RestartPreventExitStatus")
    repeated = {ExitCode.CONNECTION, ExitCode.QUORUM}
    assert set(map(int, codes.split())) == set(ExitCode) - repeated - {ExitCode.OK, ExitCode.TERMINATED}


def test_a_unit_lets_its_process_bind_what_it_listens_on_alone(tmp_path: Path) -> None:
    found = units(tmp_path / "kits", "--address", "192.0.2.7:8443", "--set", "metrics.port=9500")
    allowed = {site: option(unit.read_text(), "SocketBindAllow") for site, unit in found.items()}
    probes = {site: f"ipv4:tcp:{9500 + number}" for number, site in enumerate(SITES)}
    assert allowed == {site: [probes[site], *(["tcp:8443"] if site == "clinic" else [])] for site in SITES}
    dials = {site: option(unit.read_text(), "IPAddressAllow") for site, unit in found.items()}
    assert dials == {site: [] if site == "clinic" else ["192.0.2.7 localhost"] for site in SITES}


def test_probes_on_the_port_for_sources_are_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "kits"
    wrong = ("--deploy", "systemd", "--address", "127.0.0.1:8443", "--set", "metrics.port=8443")
    assert main([*INIT, "--out", str(out), *wrong]) == ExitCode.CONFIG
    assert capsys.readouterr().err.splitlines() == [
        "error: metrics.port: 8443 is the port on which clinic listens for sources",
        "hint: set another port",
    ]
    assert not out.exists()


def test_what_is_deployed_holds_nothing_secret(tmp_path: Path) -> None:
    out = tmp_path / "kits"
    folders = deploy(out, "systemd")
    keys = [file.read_text().splitlines()[1] for file in out.glob("*/startup/*.key")]
    assert len(keys) == 2 * len(SITES)
    texts = [file.read_text() for folder in folders.values() for file in folder.rglob("*") if file.is_file()]
    assert len(texts) >= len(SITES)
    assert [key for key in keys if any(key in text for text in texts)] == []


SLURM = REPOSITORY / "services/source/source.sbatch"


def test_slurms_script_starts_a_source_and_hands_it_the_signal(tmp_path: Path) -> None:
    assert main([*INIT, "--out", str(tmp_path / "kits")]) == 0
    program = tmp_path / "securefda"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m securefda.cli "$@"\n')
    program.chmod(0o755)
    env = {**os.environ, "KIT": str(tmp_path / "kits/hospital-a"), "SECUREFDA": str(program)}
    job = subprocess.Popen(["bash", SLURM], env=env, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    try:
        assert job.stderr is not None
        assert any("cannot reach" in line for line in job.stderr)
        job.send_signal(signal.SIGTERM)
        assert job.wait(60) == ExitCode.TERMINATED
    finally:
        job.kill()
