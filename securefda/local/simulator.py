"""A whole federation in one process: the services' round code over a network in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, cast

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.aggregator.finish import finish
from securefda.aggregator.run import AggregatorRun
from securefda.aggregator.site import TargetSite, run_settings, summary_of, target_site
from securefda.aggregator.store import AggregatorStore
from securefda.audit.journal import MessageRecorder
from securefda.bootstrap import Member, make_ledgers
from securefda.errors import ExitCode, PolicyRefusal, SecureFdaError
from securefda.operations.progress import Reporter
from securefda.operations.recording import ModelOrigin, RecordingReporter
from securefda.operations.records import RoundLine, SiteLine, Summary, refused_line
from securefda.operations.run_folder import SITES_FOLDER, RunFolder
from securefda.privacy.dp_events import TERMS
from securefda.protocol.messages import Body, Header, Parcel, Signed
from securefda.protocol.roster import Roster
from securefda.site.config import (
    AggregatorConfig,
    FederationConfig,
    ProcessSection,
    aggregator_config,
    site_policy,
    source_config,
)
from securefda.site.throwaway import throwaway_roster
from securefda.source.run_book import RunBook, run_book_file
from securefda.source.source_run import SourceRun
from securefda.source.source_site import SourceSite, source_site
from securefda.source.source_store import SourceStore
from securefda.text import said_of
from securefda.transport.in_memory import MemoryNetwork, Passed
from securefda.transport.observer import MessageObserver, TrafficMeter, ignore
from securefda.transport.wire import encode_signed

Delivers = Callable[[int, int, Signed[Body]], bool]
"""Tells whether a message from one roster index to another arrives; tests use it to lose messages."""


class SiteFailed(SecureFdaError):
    """A source cannot go on; message, hint and exit code are those of its own error, and its name comes first."""

    def __init__(self, message: str, hint: str, exit_code: ExitCode, code: str) -> None:
        super().__init__(message, hint=hint)
        self.exit_code, self._code = exit_code, code

    @classmethod
    def of(cls, site: str, error: SecureFdaError) -> Self:
        """Wrap a site's own error."""
        return cls(said_of(site, str(error)), error.hint, error.exit_code, error.code)

    @classmethod
    def all_of(cls, sources: Mapping[int, SourceRun], roster: Roster) -> dict[int, Self]:
        """Return what sources say of themselves, by roster index."""
        own = {index: source.standing.own_error for index, source in sources.items()}
        return {index: cls.of(roster.by_index(index).site_id, error) for index, error in own.items() if error}

    @property
    def code(self) -> str:
        """The code of the source's error."""
        return self._code

    def __reduce__(self) -> tuple[Any, ...]:  # it travels from the process in which the source is
        return SiteFailed, (str(self), self.hint, self.exit_code, self._code)


class Simulation(MemoryNetwork[AggregatorRun, SourceRun]):
    """The network of a run that ends with the first site that fails."""

    def __init__(
        self,
        run: AggregatorRun,
        sources: Mapping[int, SourceRun],
        observers: dict[int, MessageObserver],
        delivers: Delivers = lambda *_: True,
    ) -> None:
        super().__init__(run, sources, observers=observers)
        self._delivers = delivers

    def run(self) -> None:
        """Drive all sites until the aggregator is done and nothing is under way.

        Raises:
            SecureFdaError: whatever ends the run, or the failure of a source, with the name of that site. Where the
                aggregator only misses sources, what one of them says of itself comes first, as its policy's refusal.
        """
        self.open()
        while self.step():
            pass
        if (error := self.aggregator.error) is not None:
            own = [one for _, one in sorted(self.own_errors().items()) if not one.exit_code.blames_another]
            raise own[0] if own and error.exit_code.blames_another else error

    def own_errors(self) -> dict[int, SiteFailed]:
        """Return what sources say of themselves, by roster index."""
        return SiteFailed.all_of(self.sources, self.aggregator.site.roster)

    def on_the_way(self, passed: Passed) -> Iterable[Passed]:
        """Return what arrives: nothing if the message is lost."""
        return (passed,) if self._delivers(passed.sender, passed.to, passed.message) else ()

    def at_source(self, index: int, act: Callable[[], list[Parcel]]) -> None:
        """Let a source act, and end the run if it cannot go on."""
        super().at_source(index, act)
        if (failure := self.sources[index].standing.failure) is not None:
            raise SiteFailed.of(self.aggregator.site.name(index), failure) from failure


class _SiteRecorder:
    """Writes a source's own lines and shows its alarms."""

    def __init__(self, folder: RunFolder, site_id: str, shown: Reporter) -> None:
        self._folder, self._site_id, self._shown = folder, site_id, shown

    def round_started(self, round_number: int, visibility: str, rule: str) -> None:
        """Show nothing: the aggregator's reporter does."""

    def round_finished(self, record: SiteLine) -> None:
        """Append the line to the site's metrics."""
        self._folder.append_site_round(self._site_id, record)

    def refused(self, refusal: PolicyRefusal, header: Signed[Header]) -> None:
        """Keep the header and what was refused, and show it."""
        self._folder.keep_refused(self._site_id, refused_line(refusal, header), encode_signed(header))
        self.alarm(refusal)

    def alarm(self, error: SecureFdaError) -> None:
        """Show it with the site's name."""
        self._shown.note(f"{self._site_id}: {error}")


def simulate(
    config: FederationConfig, out: Path, seed: int, reporter: Reporter, *, delivers: Delivers = lambda *_: True
) -> Summary:
    """Run a federation in this process and leave a run folder in ``out``.

    Args:
        config: the federation.
        out: run folder.
        seed: of the run: data, first model and, unlike where sites are apart, training. Keys, masks and nonces are
            fresh every time.
        reporter: shows progress.
        delivers: which messages arrive; all of them by default.

    Raises:
        SecureFdaError: whatever ends the run; the folder holds the rounds until then.
    """

    def here(run: AggregatorRun, sites: SimulatedSites) -> Simulation:
        sources = {entry.index: sites.source(entry.site_id) for entry in sites.roster.sources}
        return Simulation(run, sources, sites.observers, delivers)

    return simulate_over(here, config, out, seed, reporter, where="all sites in one process")


def simulate_over(
    network: Callable[[AggregatorRun, SimulatedSites], Simulation],
    config: FederationConfig,
    out: Path,
    seed: int,
    reporter: Reporter,
    *,
    where: str,
) -> Summary:
    """Simulate as :func:`simulate` does, with the sources behind ``network``; ``where`` says in words where
    they run.
    """
    folder = RunFolder(out)
    recording = RecordingReporter(folder, reporter)
    meter = TrafficMeter()
    with ExitStack() as stores:
        federation = SimulatedSites.of(config, folder, seed, reporter, stores)
        run = federation.aggregator(recording, meter, where)
        origin = ModelOrigin(config.task.factory, run.run_id, run.site.trainer.architecture_digest)
        recording.model_bytes = lambda line: run.site.model_file(run.model, origin.after(line))
        folder.write_head(run.site.head_file(run.run_id))
        connected = network(run, federation)
        training = config.training
        if training.target.with_noise or training.source.with_noise:
            reporter.note(TERMS)
        try:
            connected.run()
        except BaseException as error:
            if ended := federation.store.records():  # the last of them may have ended just before, without a line
                recording.model_bytes = lambda line: run.site.model_file(federation.store.model(), origin.after(line))
                recording.catch_up(cast(list[RoundLine], ended))
            folder.write_summary(federation.summary(run, error))
            raise
        summary, records = federation.summary(run, None), federation.store.records()
        site, model, named = run.site, run.model, origin.after
        return finish(site, folder, summary, records=records, model=model, origin=named, reporter=reporter)


@dataclass(frozen=True, slots=True, repr=False)
class SimulatedSources:
    """Builds sources of one simulated federation, and remembers what sees their messages.

    Attributes:
        config: the federation.
        folder: of the run; each source has a folder in it.
        seed: of the run.
        reporter: hears of the sources.
        roster: of the federation.
        keys: site id -> its signing key; of those sources at least that are built.
        stores: closes what the sources open.
        observers: roster index -> what writes the site's log.
    """

    config: FederationConfig
    folder: RunFolder
    seed: int
    reporter: Reporter
    roster: Roster
    keys: Mapping[str, Ed25519PrivateKey]
    stores: ExitStack
    observers: dict[int, MessageObserver]

    def source(self, site_id: str) -> SourceRun:
        """Build a source.

        Raises:
            SecureFdaError: its rows, its policy or its disk do not allow it.
        """
        config, folder = self.config, self.folder.site(site_id)
        settings = source_config(config, site_id, ProcessSection(kit=folder, out=folder, seed=self.seed))
        policy = site_policy(config, site_id)
        runs = RunBook(run_book_file(folder), policy.release)
        store = self.stores.enter_context(closing(SourceStore(folder / "state.sqlite", runs)))
        site = source_site(settings, policy, self.member(site_id), store, secret=None)
        site.trainer.on_progress = partial(self.reporter.steps, site_id)
        self.show(site_id, site.notes)
        self.record(site)
        return SourceRun(site, _SiteRecorder(self.folder, site_id, self.reporter))

    def record(self, site: TargetSite | SourceSite, run: str | None = None, then: MessageObserver = ignore) -> None:
        """Have a site's messages recorded; ``run`` and ``then`` as :class:`MessageRecorder` has them."""
        journal, own = site.witness.journal, site.signer.index
        self.stores.callback(journal.close)
        self.observers[own] = MessageRecorder(journal, self.roster, own, run=run, then=then)

    def show(self, site_id: str, notes: Iterable[str]) -> None:
        """Report notes of a site, with its name."""
        for note in notes:
            self.reporter.note(f"{site_id}: {note}")

    def member(self, site_id: str) -> Member:
        """Return a site as a member of this federation."""
        return Member(self.roster, site_id, self.keys[site_id])


@dataclass(frozen=True, slots=True, repr=False)
class SimulatedSites(SimulatedSources):
    """Builds all sites of one simulated federation, the target among them."""

    settings: AggregatorConfig
    store: AggregatorStore

    @classmethod
    def of(cls, config: FederationConfig, folder: RunFolder, seed: int, reporter: Reporter, stores: ExitStack) -> Self:
        """Make keys, a roster and ledgers, and open the target's store."""
        target = config.federation.target
        keys = {site: Ed25519PrivateKey.generate() for site in (target, *config.federation.sources)}
        roster = throwaway_roster(config.federation.name, keys)
        sites = folder.path / SITES_FOLDER
        kits = {site: sites / site for site in (target, *config.federation.sources)}
        for note in make_ledgers(config, kits, seed):
            reporter.note(note)
        settings = aggregator_config(config, ProcessSection(kit=sites / target, out=folder.path, seed=seed))
        store = stores.enter_context(closing(AggregatorStore(folder.path / "state.sqlite")))
        return cls(config, folder, seed, reporter, roster, keys, stores, {}, settings, store)

    def aggregator(self, recording: RecordingReporter, meter: TrafficMeter, where: str) -> AggregatorRun:
        """Build the target with its aggregator; ``where`` says in words where the sites of this run are."""
        target = self.config.federation.target
        site = target_site(self.settings, self.member(target), meter.counts, self.store, secret=None)
        site.trainer.on_progress = partial(self.reporter.steps, target)
        self.show(target, (f"{where}, on {site.trains_on}", *site.notes))
        run = AggregatorRun(site, run_settings(self.settings, self.roster), self.store, recording)
        self.record(site, run.run_id, meter)
        return run

    def summary(self, run: AggregatorRun, error: BaseException | None) -> Summary:
        """Return the summary of the run."""
        return summary_of(self.settings, run.run_id, self.store, self.roster, error)
