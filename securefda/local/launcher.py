"""``securefda run``: enrol a throw-away federation, start one process per site, watch them, collect what they left.

The processes are the ones that people start by hand from startup kits, with the same command; nothing is shared
between them but this machine's loopback interface and the folder of each site. Each says over a socket what happens.

They are copies of one process that has imported torch and nothing that a site has of its own, where the system has such
copies: :mod:`securefda.local.fork_server` says why that keeps them apart. Else each starts by itself.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from securefda.errors import ConfigError, ExitCode, RunEnded, SecureFdaError
from securefda.local.fork_server import ForkedProcess, ForkServer, ForkServerError
from securefda.machine import usable_cores, without_collections
from securefda.operations.progress import Reporter
from securefda.operations.records import RoundLine, Summary
from securefda.operations.run_folder import SUMMARY, SUMMARY_FILE, RunFolder, read_object, replace_file
from securefda.parse import json_value, toml_table
from securefda.settings import read_toml
from securefda.site.config import FederationConfig, aggregator_toml, child_environment, site_policy, source_toml
from securefda.site.endpoints import Address, SiteSpec
from securefda.site.enrolment import init_federation
from securefda.site.kit import load_kit
from securefda.site.policy import default_policy_text

_HOST = "127.0.0.1"
_MODULE = "securefda.cli"
_PRELOADED = ("torch", "securefda.cli.app", "securefda.settings", "rich.console", "rich.progress")
"""What takes a site's process longest to import; without gRPC and ``cryptography``, which each imports by itself."""
_POLL_S = 0.1
_STOP_S = 10.0
_CAUSE_S = 10.0
"""How long a site's complaint about another one waits for that one's own words; an end in order takes five seconds."""
_KITS = "kits"
_RESULT, _LOG = "result.json", "log.txt"
_ENVELOPE_BYTES = 1 << 16
_READ_BYTES = 1 << 16


class ProcessFailed(SecureFdaError):
    """One of the processes of a run ended with an error; message, hint and exit code are that process's own."""

    def __init__(self, site: str, result: Mapping[str, Any]) -> None:
        super().__init__(f"{site}: {result['message'].removeprefix(f'{site}: ')}", hint=result["hint"])
        self.exit_code = ExitCode(result["exit_code"])
        self.name = str(result.get("error_code", ""))
        """The error's own name, where it has one."""

    @property
    def follows(self) -> bool:
        """Whether the process ended only because the aggregator did."""
        return self.name == RunEnded.__name__

    @property
    def blames_another(self) -> bool:
        """Whether the cause may be at another site: a peer that cannot be heard, or says what it should not."""
        return self.follows or self.exit_code in (ExitCode.CONNECTION, ExitCode.QUORUM)

    @property
    def is_a_refusal(self) -> bool:
        """Whether the site may not go on, and the others may without it."""
        return self.exit_code in (ExitCode.POLICY, ExitCode.BUDGET)


def run_processes(
    config: FederationConfig, out: Path, seed: int, reporter: Reporter, *, as_copies: bool = True
) -> Summary:
    """Run a federation on this machine, one process per site, and leave a run folder in ``out``.

    A folder in which such a run was interrupted goes on with it.

    Args:
        config: the federation.
        out: run folder; ``kits/`` and ``sites/SITE/`` in it hold what belongs to each site.
        seed: of the run.
        reporter: shows progress.
        as_copies: start the processes as copies of one that has imported torch, where the system has such copies.
            False starts each by itself: for whoever looks at their memory, of which copies share a part.

    Raises:
        ConfigError: the folder holds a run with other settings.
        ProcessFailed: the first cause that ended the run; the folder holds the rounds until then.
        SecureFdaError: whatever else did.
    """
    folder = RunFolder(out)
    target = config.federation.target
    kits = {site: folder.path / _KITS / site for site in (target, *config.federation.sources)}
    with closing(
        _Starter(_environment(len(kits)), as_copies)
    ) as starter:  # first: it imports torch while sites are enrolled
        if kits[target].exists():
            address = _enrolled(config, folder.path / _KITS)
            reporter.note(f"going on with the run in {folder.path}")
        else:
            address = free_address()
            _enrol(config, folder.path / _KITS, address)
        if config.training.target.with_noise or config.training.source.with_noise:
            with without_collections():
                from securefda.bootstrap import make_ledgers  # with torch, for which processes should not have to wait

            for note in make_ledgers(config, kits, seed):
                reporter.note(note)
        files = _write_settings(config, folder, address, seed)
        sites = [_Site.start(site, files[site], folder, target == site, starter) for site in files]
        try:
            _watch(sites, reporter)
        except ProcessFailed as error:
            _stop(sites)
            if error.exit_code == ExitCode.QUORUM:  # its own hint is for sites that are started one by one
                error.hint = f"give the same command with --out {out}: the run goes on after its last finished round"
            _name_cause(folder, error)
            raise
        finally:
            _stop(sites)
            for site in sites:
                site.link.close()
        return _summary(folder.path / SUMMARY_FILE)


def _summary(file: Path) -> Summary:
    return Summary(**read_object(file, 1, file.read_bytes(), SUMMARY))


def _name_cause(folder: RunFolder, error: ProcessFailed) -> None:
    """The aggregator, which was told to end, has written that it was interrupted; what ended the run is known here."""
    file = folder.path / SUMMARY_FILE
    if file.exists():
        named = {"code": error.name or error.code, "message": str(error), "hint": error.hint}
        folder.write_summary(replace(_summary(file), status="failed", error=named))


_Process = subprocess.Popen[bytes] | ForkedProcess


class _Starter:
    """Starts the processes of a run, all in one environment."""

    def __init__(self, environment: dict[str, str], as_copies: bool) -> None:
        self._environment = environment
        self._server: ForkServer | None = None
        if as_copies and sys.platform == "linux":
            self._server = ForkServer(
                _PRELOADED, environment, safe_path=True, grace_s=_STOP_S, stderr=subprocess.DEVNULL
            )

    def start(self, arguments: list[str], *, out: int, log: int, link: int) -> _Process:
        """Run ``securefda`` with these arguments and ``--launcher``, in a session of its own.

        Ctrl-C reaches this process first then, which ends the others in order. What lies in the folder that the command
        was typed in does not stand in for a module.
        """
        if self._server is not None:
            copied = [*arguments, "--launcher", "3"]
            try:
                with Path(os.devnull).open("rb") as nothing:
                    descriptors = (nothing.fileno(), out, log, link)
                    return self._server.start(
                        _MODULE, copied, cwd=Path.cwd(), env=self._environment, descriptors=descriptors
                    )
            except ForkServerError:  # what keeps it from copying itself does not keep a process from starting
                self.close()
        return subprocess.Popen(  # noqa: S603 - this interpreter, with arguments made here
            [sys.executable, "-P", "-m", _MODULE, *arguments, "--launcher", str(link)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            env=self._environment,
            pass_fds=(link,),
            start_new_session=True,
        )

    def close(self) -> None:
        """End what starts them; processes that still run have to end with it."""
        if self._server is not None:
            self._server.close()
            self._server = None


@dataclass(slots=True)
class _Site:
    """A running process of one site."""

    site: str
    process: _Process
    folder: Path
    link: socket.socket
    """What the process says; at its end once the process has ended."""
    failed: ProcessFailed | None = None
    """The error that the process said it ends with."""
    has_ended: bool = False
    _unread: bytearray = field(default_factory=bytearray)

    @classmethod
    def start(cls, site: str, file: Path, folder: RunFolder, is_target: bool, starter: _Starter) -> _Site:
        own = folder.site(site)
        link, theirs = socket.socketpair()
        command = ["aggregator" if is_target else "source", "start", "--config", str(file), "--format", "json"]
        with (own / _RESULT).open("wb") as result, (own / _LOG).open("ab") as log, theirs:
            process = starter.start(command, out=result.fileno(), log=log.fileno(), link=theirs.fileno())
        return cls(site, process, own, link)

    def events(self) -> list[dict[str, Any]]:
        """What the process has said since; called when there is something to read.

        Raises:
            SecureFdaError: it said what no process of this package says.
        """
        try:
            data = self.link.recv(_READ_BYTES)
        except ConnectionError:
            data = b""
        self.has_ended = not data
        self._unread += data
        *lines, rest = self._unread.split(b"\n")
        self._unread = bytearray(rest)
        try:
            events = [json_value(bytes(line)) for line in lines]
        except ValueError as error:
            raise SecureFdaError(f"{self.site}: its process says what cannot be read") from error
        found = [event for event in events if isinstance(event, dict)]
        for event in found:
            if (failed := event.get("failed")) is not None:
                self.failed = ProcessFailed(self.site, failed)
        return found

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
        """Why the process ends, as soon as it says so or has ended with an error."""
        if self.failed is None and self.process.poll() not in (None, 0):
            self.failed = ProcessFailed(self.site, self.result())
        return self.failed


def free_address() -> Address:
    """A port that is free now; should somebody take it before the aggregator does, that is a clear error."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return Address(_HOST, probe.getsockname()[1])


def _enrolled(config: FederationConfig, root: Path) -> Address:
    """Where the aggregator of a run that was interrupted listened, which its sites' kits name.

    Raises:
        ConfigError: the kits are those of other sites.
    """
    federation = config.federation
    kit = load_kit(root / federation.target, datetime.now(UTC), expected_role="target")
    found, asked = [entry.site_id for entry in kit.roster.sources], list(federation.sources)
    if found != asked:
        raise _other_run(root.parent, "federation.sources", found, asked)
    return kit.endpoints.aggregator


def _other_run(folder: Path, key: str, found: object, asked: object) -> ConfigError:
    hint = "give the settings of that run to go on with it, --fresh to start from the beginning, or another --out"
    return ConfigError(key, f"the run in {folder} has {found}, now it is {asked}", hint=hint)


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
    """Each site's settings file, the target's first.

    Raises:
        ConfigError: a file is there with other settings; none has changed.
    """
    transport = config.transport.model_copy(update={"listen": str(address)})
    config = config.model_copy(update={"transport": transport})
    target, kits = config.federation.target, folder.path / _KITS
    files = {target: folder.site(target) / "aggregator.toml"}
    texts = {target: aggregator_toml(config, kits / target, folder.path, seed)}
    for site in config.federation.sources:
        files[site] = folder.site(site) / "source.toml"
        texts[site] = source_toml(config, kits / site, folder.site(site), seed, site=site)
    for site, file in files.items():
        _require_same_settings(folder.path, file, texts[site])
    for site, file in files.items():
        replace_file(file, texts[site].encode())
    return files


def _require_same_settings(folder: Path, file: Path, text: str) -> None:
    """Refuse other settings than those of the run that ``folder`` holds; a file that is not there holds none."""
    if file.exists():
        _require_same(folder, read_toml(file), toml_table(text))


def _require_same(folder: Path, found: Mapping[str, Any], asked: Mapping[str, Any], table: str = "") -> None:
    for name in dict.fromkeys((*found, *asked)):
        key, before, now = f"{table}{name}", found.get(name), asked.get(name)
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            _require_same(folder, before, now, f"{key}.")
        elif before != now:
            raise _other_run(folder, key, before, now)


def _environment(processes: int) -> dict[str, str]:
    """The processes share this machine's cores; more threads than cores would only get in each other's way."""
    environment = child_environment(os.environ)
    environment.setdefault("OMP_THREAD_LIMIT", str(max(1, usable_cores() // processes)))
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's; as it is imported it would start the others at once
    return environment


class Failures:
    """The errors with which processes of a run ended, in the order in which they became known."""

    def __init__(self) -> None:
        self._known: list[ProcessFailed] = []
        self._first_complaint_at: float | None = None

    def add(self, failure: ProcessFailed, now: float) -> bool:
        """Keep an error; False where it is known already. ``now`` is in seconds."""
        if failure in self._known:
            return False
        self._known.append(failure)
        if self._first_complaint_at is None and self.complaints:
            self._first_complaint_at = now
        return True

    @property
    def complaints(self) -> list[ProcessFailed]:
        """Those that blame another site, which may yet say something of its own."""
        return [one for one in self._known if one.blames_another and not one.follows]

    def have_waited(self, now: float) -> bool:
        """Whether the sites that others blame have had their time to say what happened to them."""
        return self._first_complaint_at is not None and now - self._first_complaint_at > _CAUSE_S

    @property
    def first_cause(self) -> ProcessFailed:
        """What a site says of itself comes before what it says of another, and what only follows comes last."""
        own = [one for one in self._known if not one.blames_another]
        return [*own, *self.complaints, *self._known][0]


def _watch(sites: list[_Site], reporter: Reporter) -> None:
    """Show what the aggregator says until it ends; the first site that fails by itself ends the run.

    Raises:
        ProcessFailed: the cause. A site that blames another one is not it if the other says something of its own.
    """
    aggregator, failures, has_rounds = sites[0], Failures(), False
    reporter.phase("starting", [site.site for site in sites], len(sites))
    with selectors.DefaultSelector() as selector:
        for site in sites:
            selector.register(site.link, selectors.EVENT_READ, site)
        while True:
            for key, _ in selector.select(_POLL_S):
                site = cast(_Site, key.data)
                said = site.events()
                has_rounds |= any("round_finished" in event for event in said)
                if site is aggregator:
                    _show(said, reporter)
                if site.has_ended:
                    selector.unregister(site.link)
                    site.process.wait()
                if (failure := site.failure()) is None or not failures.add(failure, time.monotonic()):
                    continue
                if failure.is_a_refusal and has_rounds and site is not aggregator:
                    reporter.note(f"{failure}")
                elif not failure.blames_another:
                    raise failure
            if aggregator.has_ended and not aggregator.failed:
                for failure in failures.complaints:
                    reporter.note(f"{failure}")
                return
            if failures.have_waited(time.monotonic()) or all(site.has_ended for site in sites):
                raise failures.first_cause


def _show(events: list[dict[str, Any]], reporter: Reporter) -> None:
    for event in events:
        match event:
            case {"round_started": [int(number), int(rounds)]}:
                reporter.round_started(number, rounds)
            case {"phase": [str(name), list(sites), int(asked)]}:
                reporter.phase(name, [str(site) for site in sites], asked)
            case {"round_finished": dict(line)}:
                reporter.round_finished(cast(RoundLine, line))
            case {"note": str(text)}:
                reporter.note(text)


def _stop(sites: list[_Site]) -> None:
    """Let sources that heard the goodbye end by themselves; end the others."""
    deadline = time.monotonic() + _STOP_S
    if sites[0].process.poll() != 0:
        for site in sites:
            site.process.terminate()
    for site in sites:
        try:
            site.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            site.process.kill()
            site.process.wait()
