"""``securefda run``: enrol a throw-away federation, start one process per site, watch them, collect what they left.

The processes are the ones that people start by hand from startup kits, with the same command; nothing is shared
between them but this machine's loopback interface and the folder of each site.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from securefda.bootstrap import make_ledgers
from securefda.cores import usable_cores
from securefda.errors import ExitCode, RunEnded, SecureFdaError
from securefda.operations.progress import Reporter
from securefda.operations.records import RoundLine, Summary
from securefda.operations.run_folder import (
    METRICS_FILE,
    ROUND,
    SUMMARY,
    SUMMARY_FILE,
    RunFolder,
    read_object,
    replace_file,
)
from securefda.parse import json_value
from securefda.site.config import FederationConfig, aggregator_toml, child_environment, site_policy, source_toml
from securefda.site.endpoints import Address, SiteSpec
from securefda.site.enrolment import init_federation
from securefda.site.policy import default_policy_text

_HOST = "127.0.0.1"
_POLL_S = 0.1
_STOP_S = 10.0
_KITS = "kits"
_RESULT, _LOG = "result.json", "log.txt"
_ENVELOPE_BYTES = 1 << 16


class ProcessFailed(SecureFdaError):
    """One of the processes of a run ended with an error; message, hint and exit code are that process's own."""

    def __init__(self, site: str, result: Mapping[str, Any]) -> None:
        super().__init__(f"{site}: {result['message'].removeprefix(f'{site}: ')}", hint=result["hint"])
        self.exit_code = ExitCode(result["exit_code"])
        self.follows = result.get("error_code") == RunEnded.__name__
        """Whether the process ended only because the aggregator did."""


def run_processes(config: FederationConfig, out: Path, seed: int, reporter: Reporter) -> Summary:
    """Run a federation on this machine, one process per site, and leave a run folder in ``out``.

    Args:
        config: the federation.
        out: run folder; ``kits/`` and ``sites/SITE/`` in it hold what belongs to each site.
        seed: of the run.
        reporter: shows progress.

    Raises:
        SecureFdaError: whatever ended the run; the folder holds the rounds until then.
    """
    folder = RunFolder(out)
    target, address = config.federation.target, free_address()
    _enrol(config, folder.path / _KITS, address)
    kits = {site: folder.path / _KITS / site for site in (target, *config.federation.sources)}
    for note in make_ledgers(config, kits, seed):
        reporter.note(note)
    files = _write_settings(config, folder, address, seed)
    environment = _environment(len(files))
    processes = [_Site.start(site, files[site], folder, target == site, environment) for site in files]
    try:
        _watch(processes, config, folder.path / METRICS_FILE, reporter)
    finally:
        _stop(processes)
    return _summary(folder.path / SUMMARY_FILE)


def _summary(file: Path) -> Summary:
    return Summary(**read_object(file, 1, file.read_bytes(), SUMMARY))


@dataclass(frozen=True, slots=True)
class _Site:
    """A running process of one site."""

    site: str
    process: subprocess.Popen[bytes]
    folder: Path

    @classmethod
    def start(cls, site: str, file: Path, folder: RunFolder, is_target: bool, environment: dict[str, str]) -> _Site:
        own = folder.site(site)
        # -P: what lies in the folder that the command was typed in must not stand in for a module.
        command = [sys.executable, "-P", "-m", "securefda.cli", "aggregator" if is_target else "source", "start"]
        with (own / _RESULT).open("wb") as result, (own / _LOG).open("wb") as log:
            process = subprocess.Popen(  # noqa: S603 - this interpreter, with arguments made here
                [*command, "--config", str(file), "--format", "json"],
                stdin=subprocess.DEVNULL,
                stdout=result,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches this process first, which then ends the others in order
            )
        return cls(site, process, own)

    def trains_on(self) -> str:
        """The line in which the process says what it trains on; empty until it does."""
        lines = (self.folder / _LOG).read_text(encoding="utf-8", errors="replace").splitlines()
        return next((line for line in lines if line.startswith(f"{self.site} trains on ")), "")

    def result(self) -> dict[str, Any]:
        """The envelope that the process printed; of one that was killed, an envelope that says so."""
        try:
            envelope = json_value((self.folder / _RESULT).read_bytes())
        except ValueError:
            envelope = None
        if isinstance(envelope, dict):
            return envelope
        message, hint = f"ended without a result (exit code {self.process.returncode})", f"see {self.folder / _LOG}"
        if shutil.disk_usage(self.folder).free < _ENVELOPE_BYTES:
            message, hint = f"{self.folder}: the disk is full", "free disk space, then start again"
        return {"exit_code": int(ExitCode.FAILED), "message": message, "hint": hint}

    def failure(self) -> ProcessFailed | None:
        """Why the process ended, where it ended with an error."""
        if self.process.poll() in (None, 0):
            return None
        return ProcessFailed(self.site, self.result())


def free_address() -> Address:
    """A port that is free now; should somebody take it before the aggregator does, that is a clear error."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return Address(_HOST, probe.getsockname()[1])


def _enrol(config: FederationConfig, root: Path, address: Address) -> None:
    federation = config.federation
    sources = [SiteSpec(site, "source", site) for site in federation.sources]
    init_federation(
        root,
        federation.name,
        [SiteSpec(federation.target, "target", federation.target, (_HOST,)), *sources],
        aggregator=address,
        policy_text=lambda site: default_policy_text(site, site_policy(config, site)),
        settings_text=None,
        now=datetime.now(UTC),
    )


def _write_settings(config: FederationConfig, folder: RunFolder, address: Address, seed: int) -> dict[str, Path]:
    """Each site's settings file, the target's first."""
    transport = config.transport.model_copy(update={"listen": str(address)})
    config = config.model_copy(update={"transport": transport})
    target, kits = config.federation.target, folder.path / _KITS
    files = {target: folder.site(target) / "aggregator.toml"}
    replace_file(files[target], aggregator_toml(config, kits / target, folder.path, seed).encode())
    for site in config.federation.sources:
        files[site] = folder.site(site) / "source.toml"
        text = source_toml(config, kits / site, folder.site(site), seed, site=site)
        replace_file(files[site], text.encode())
    return files


def _environment(processes: int) -> dict[str, str]:
    """The processes share this machine's cores; more threads than cores would only get in each other's way."""
    environment = child_environment(os.environ)
    environment.setdefault("OMP_THREAD_LIMIT", str(max(1, usable_cores() // processes)))
    return environment


def _watch(processes: list[_Site], config: FederationConfig, metrics: Path, reporter: Reporter) -> None:
    """Report rounds as they are written, until the aggregator ends.

    Raises:
        ProcessFailed: the aggregator failed, or a source did before the first round was over.
    """
    aggregator, sources = processes[0], processes[1:]
    reporter.phase("starting", [site.site for site in processes])
    shown, failures, trains_on = 0, dict[str, ProcessFailed](), ""
    while True:
        ended = aggregator.process.poll() is not None
        if not trains_on and (trains_on := aggregator.trains_on()):
            reporter.note(trains_on)
        shown += _report_rounds(metrics, shown, config.strategy.rounds, reporter)
        for failure in _new_failures(sources, failures):
            if shown == 0:
                raise failure
            reporter.note(f"{failure}")
        if ended:
            break
        time.sleep(_POLL_S)
    if (failed := aggregator.failure()) is not None:
        raise failed


def _new_failures(sources: list[_Site], known: dict[str, ProcessFailed]) -> list[ProcessFailed]:
    """Failures of sources that are not ``known`` yet, but for those that merely follow the aggregator's; adds them."""
    found = {source.site: failure for source in sources if source.site not in known and (failure := source.failure())}
    known.update(found)
    return [failure for failure in found.values() if not failure.follows]


def _report_rounds(metrics: Path, shown: int, rounds: int, reporter: Reporter) -> int:
    """Report the lines behind the first ``shown``; returns how many there were."""
    if not metrics.exists():
        return 0
    whole = metrics.read_bytes().split(b"\n")[:-1]
    lines = [cast(RoundLine, read_object(metrics, number, line, ROUND)) for number, line in enumerate(whole, start=1)]
    for line in lines[shown:]:
        reporter.round_started(line["round"], rounds)
        reporter.round_finished(line)
    return len(lines) - shown


def _stop(processes: list[_Site]) -> None:
    """Let sources that heard the goodbye end by themselves; end the others."""
    deadline = time.monotonic() + _STOP_S
    if processes[0].process.poll() != 0:
        for site in processes:
            site.process.terminate()
    for site in processes:
        try:
            site.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            site.process.kill()
            site.process.wait()
