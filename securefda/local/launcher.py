"""``securefda run``: enrol a temporary federation, start and watch one process per site, and collect the results.

They are the processes that people start by hand from startup kits, with the same commands. They share only this
machine's loopback interface and the folder of each site. Each reports events over a socket.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from securefda.errors import ConfigError, ExitCode
from securefda.local.children import Child, ProcessFailed, Starter, stop
from securefda.machine import without_collections
from securefda.operations.progress import Reporter
from securefda.operations.records import RoundLine, Summary
from securefda.operations.run_folder import SUMMARY_FILE, RunFolder, finished_summary, replace_file
from securefda.operations.state import rename_cause
from securefda.parse import toml_table
from securefda.settings import read_toml
from securefda.site.config import FederationConfig, aggregator_toml, site_policy, source_toml
from securefda.site.config.effective import change_text, changes_between
from securefda.site.config.key_help import toml
from securefda.site.endpoints import Address, SiteSpec
from securefda.site.enrolment import init_federation
from securefda.site.kit import load_kit
from securefda.site.policy import default_policy_text

_HOST = "127.0.0.1"
_POLL_S = 0.1
_CAUSE_S = 10.0
"""How long a site's complaint about another one waits for that one's own words; an end in order takes five seconds."""
_KITS = "kits"


def run_processes(
    config: FederationConfig,
    out: Path,
    seed: int,
    reporter: Reporter,
    *,
    as_copies: bool = True,
    starter: Starter | None = None,
    modules: Sequence[Path] = (),
) -> Summary:
    """Run a federation on this machine, one process per site, and leave a run folder in ``out``.

    A folder in which such a run was interrupted goes on with it.

    Args:
        config: the federation.
        out: run folder; ``kits/`` and ``sites/SITE/`` in it hold what belongs to each site.
        seed: of the run.
        reporter: shows progress.
        as_copies: start the processes as copies of one that has imported torch, where the system has such copies.
            False starts each by itself, as where memory is measured: copies share a part of theirs.
        starter: what starts them, where the caller has one for more than this run.
        modules: further folders from which they import.

    Raises:
        ConfigError: the folder holds a run with other settings.
        ProcessFailed: the first cause that ended the run; the folder holds the rounds until then.
        SecureFdaError: whatever else did.
    """
    folder = RunFolder(out)
    target = config.federation.target
    kits = {site: folder.path / _KITS / site for site in (target, *config.federation.sources)}
    with ExitStack() as ours:
        if starter is None:  # first: it imports torch while sites are enrolled
            starter = ours.enter_context(closing(Starter(len(kits), as_copies=as_copies, modules=modules)))
        if goes_on := kits[target].exists():
            address = _enrolled(config, folder.path / _KITS)
        else:
            address = free_address()
            _enrol(config, folder.path / _KITS, address)
        files = _write_settings(config, folder, address, seed)
        if goes_on:
            reporter.note(f"going on with the run in {folder.path}")
        if config.training.target.with_noise or config.training.source.with_noise:
            with without_collections():
                from securefda.bootstrap import make_ledgers  # with torch, for which processes should not have to wait

            for note in make_ledgers(config, kits, seed):
                reporter.note(note)
        sites = [
            Child.start(
                site,
                ["aggregator" if site == target else "source", "start", "--config", str(file)],
                folder.site(site),
                starter,
            )
            for site, file in files.items()
        ]
        try:
            _watch(sites, reporter)
        except ProcessFailed as error:
            _stop(sites)
            if error.exit_code == ExitCode.QUORUM:  # its own hint is for sites that are started one by one
                error.hint = f"give the same command with --out {out}: the run goes on after its last finished round"
            _name_cause(folder, error)
            raise
        except KeyboardInterrupt:
            reporter.note("interrupted: the sites end in order, then the report is written")
            raise
        finally:
            _stop(sites)
        return finished_summary(folder.path)


def _stop(sites: list[Child]) -> None:
    """Let sources that received the goodbye end by themselves; end the others."""
    stop(sites, at_once=sites[0].process.poll() != 0)


def _name_cause(folder: RunFolder, error: ProcessFailed) -> None:
    """Correct the aggregator's state: it was told to end and wrote that it was interrupted; the cause is known here."""
    if (folder.path / SUMMARY_FILE).exists():
        named = {"code": error.name or error.code, "message": str(error), "hint": error.hint}
        folder.write_summary(replace(finished_summary(folder.path), status="failed", error=named))
    rename_cause(folder.path, str(error), error.hint)


def free_address() -> Address:
    """Find a port that is free now; if another process takes it before the aggregator does, that is a clear error."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return Address(_HOST, probe.getsockname()[1])


def _enrolled(config: FederationConfig, root: Path) -> Address:
    """Return the aggregator's address in an interrupted run, from its sites' kits.

    Raises:
        ConfigError: the kits are those of other sites.
    """
    federation = config.federation
    kit = load_kit(root / federation.target, datetime.now(UTC), expected_role="target")
    found, asked = [entry.site_id for entry in kit.roster.sources], list(federation.sources)
    if found != asked:
        raise _other_run(root.parent, [change_text("federation.sources", toml(found), toml(asked))])
    return kit.endpoints.aggregator


def _other_run(folder: Path, changes: Sequence[str]) -> ConfigError:
    hint = "give the settings of that run to go on with it, --fresh to start from the beginning, or another --out"
    named: list[str] = []
    for change in changes:
        if named and sum(map(len, named)) + len(change) > _CHARACTERS_OF_CHANGES:
            break
        named.append(change if len(change) <= _CHARACTERS_OF_CHANGES else f"{change[:_CHARACTERS_OF_CHANGES]}…")
    more = f" and {len(changes) - len(named)} more" if len(named) < len(changes) else ""
    return ConfigError(str(folder), f"this folder holds a run with other settings: {', '.join(named)}{more}", hint=hint)


_CHARACTERS_OF_CHANGES = 250
"""The longest list of settings that differ in an error: a file that was changed by hand may differ in all."""


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
    """Write each site's settings file, the target's first.

    Raises:
        ConfigError: a file is there with other settings; none has changed.
    """
    here = {"listen": str(address), "address": "", "proxy": ""}
    transport = config.transport.model_copy(update=here)
    config = config.model_copy(update={"transport": transport})
    target, kits = config.federation.target, folder.path / _KITS
    files = {target: folder.site(target) / "aggregator.toml"}
    texts = {target: aggregator_toml(config, kits / target, folder.path, seed)}
    for site in config.federation.sources:
        files[site] = folder.site(site) / "source.toml"
        texts[site] = source_toml(config, kits / site, folder.site(site), seed, site=site)
    changes: dict[str, str] = {}  # each once, though every source has it
    for site, file in files.items():
        if file.exists():
            before, now = (_as_given(table, site == target) for table in (read_toml(file), toml_table(texts[site])))
            changes |= changes_between(before, now)
    if changes:
        raise _other_run(folder.path, list(changes.values()))
    for site, file in files.items():
        replace_file(file, texts[site].encode())
    return files


def _as_given(table: dict[str, Any], is_target: bool) -> dict[str, Any]:
    """Return a site's settings under the names that a federation's file uses, without paths of the folder itself."""
    role, process = ("target", "aggregator") if is_target else ("source", "source")
    common = {name: section for name, section in table.items() if name not in (process, "training")}
    own, training = table.get(process), table.get("training")  # of a file that was changed by hand, perhaps nothing
    seed = own.get("seed") if isinstance(own, dict) else own
    return {"--seed": seed, **common, "training": {role: training}}


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
        """The errors that blame another site, which may yet report one of its own."""
        return [one for one in self._known if one.blames_another and not one.follows]

    def have_waited(self, now: float) -> bool:
        """Return whether the blamed sites have had enough time to report an error of their own."""
        return self._first_complaint_at is not None and now - self._first_complaint_at > _CAUSE_S

    @property
    def first_cause(self) -> ProcessFailed:
        """Return the likeliest cause: a site's error about itself comes first, one about another next, a consequence
        last.
        """
        own = [one for one in self._known if not one.blames_another]
        return [*own, *self.complaints, *self._known][0]


def _watch(sites: list[Child], reporter: Reporter) -> None:
    """Show the aggregator's reports and all sites' steps until it ends; the first site that fails itself ends the run.

    Raises:
        ProcessFailed: the cause. A site that blames another one is not it if the other says something of its own.
    """
    aggregator, failures, has_rounds = sites[0], Failures(), False
    reporter.phase("starting", [site.name for site in sites], len(sites))
    with selectors.DefaultSelector() as selector:
        for site in sites:
            selector.register(site.link, selectors.EVENT_READ, site)
        while True:
            for key, _ in selector.select(_POLL_S):
                site = cast(Child, key.data)
                events = site.events()
                has_rounds |= any("round_finished" in event for event in events)
                _show([event for event in events if site is aggregator or "steps" in event], reporter)
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
            case {"steps": [str(site), int(done), int(of)]}:
                reporter.steps(site, done, of)
            case {"round_finished": dict(line)}:
                reporter.round_finished(cast(RoundLine, line))
            case {"note": str(text)}:
                reporter.note(text)
