"""A whole federation in one process: the round code of the services, with a queue in place of the network.

Every message is serialised, passed as bytes and parsed again by the same wire code; what does not exist here is TLS,
time and loss. Deadlines pass when nothing moves any more.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from securefda.config import AggregatorConfig, FederationConfig, ProcessSection, SourceConfig, site_policy
from securefda.errors import PolicyRefusal, SecureFdaError
from securefda.rounds.accounts import TERMS
from securefda.rounds.attempts import Send
from securefda.rounds.composition import Member, make_ledgers, run_settings, source_site, summary_of, target_site
from securefda.rounds.progress import Reporter
from securefda.rounds.recording import RecordingReporter, model_file
from securefda.rounds.records import SiteLine, Summary, refused_line
from securefda.rounds.run import AggregatorRun
from securefda.rounds.run_folder import SITES_FOLDER, RunFolder
from securefda.rounds.run_settings import TargetSite
from securefda.rounds.source import SourceRounds
from securefda.rounds.source_site import SourceSite
from securefda.rounds.store import AggregatorStore, SourceStore
from securefda.secagg.messages import Body, Header, Parcel, Signed
from securefda.secagg.roster import PIN_BYTES, Roster, RosterEntry
from securefda.transport.attachments import digests_beside
from securefda.transport.meter import TrafficMeter
from securefda.transport.observer import Direction, MessageObserver, ignore, wire_size
from securefda.transport.recorder import MessageRecorder
from securefda.transport.wire import decode_signed, encode, encode_signed

_FOR_EVER = 2**37  # Unix time; in a few thousand years
Delivers = Callable[[int, int, Signed[Body]], bool]
"""Whether a message from one roster index to another arrives; tests lose messages with it."""


class MemoryNetwork:
    """Passes messages between one aggregator and its sources until the run is done."""

    def __init__(
        self,
        run: AggregatorRun,
        sources: dict[int, SourceRounds],
        observers: dict[int, MessageObserver],
        delivers: Delivers = lambda *_: True,
    ) -> None:
        """``observers`` see each site's messages, by roster index; sites without one are not observed."""
        self._run = run
        self._sources = sources
        self._observers = observers
        self._delivers = delivers
        self._target = next(index for index in observers if index not in sources)
        self._queue: deque[tuple[int, int, bytes, tuple[Any, ...]]] = deque()

    def run(self) -> None:
        """Drive all sites until the aggregator is done and nothing is under way.

        Raises:
            SecureFdaError: whatever ends the run, or a site's own failure.
        """
        self._post(self._run.open())
        for source in self._sources.values():
            self._submit(source.join(self._run.run_id))
        while True:
            while self._queue:
                self._deliver(*self._queue.popleft())
            if self._run.done:
                break
            self._post(self._run.expire())
        if self._run.error is not None:
            raise self._run.error

    def _deliver(self, sender: int, to: int, data: bytes, vectors: tuple[Any, ...]) -> None:
        message = decode_signed(data)
        if not self._delivers(sender, to, message):
            return
        self._observe(to, Direction.RECEIVED, sender, message, vectors)
        parcel = Parcel(message, vectors)
        if to == self._target:
            self._post(self._run.receive(parcel))
            return
        for answer in self._sources[to].handle(parcel):
            self._submit(answer)
        if (failure := self._sources[to].failure) is not None:
            raise failure

    def _post(self, sends: list[Send]) -> None:
        self._send(self._target, [(send.to, send.parcel) for send in sends])

    def _submit(self, parcel: Parcel) -> None:
        self._send(parcel.message.sender, [(self._target, parcel)])

    def _send(self, sender: int, sends: list[tuple[int, Parcel]]) -> None:
        """As the network of processes: all are shown before one leaves, and none has vectors that it does not name."""
        for _, parcel in sends:
            digests_beside(parcel.message.body, len(parcel.vectors))
        for number, (to, parcel) in enumerate(sends, 1):
            more = number < len(sends)
            self._observe(sender, Direction.SENT, to, parcel.message, parcel.vectors, more=more)
        self._queue.extend((sender, to, encode_signed(parcel.message), parcel.vectors) for to, parcel in sends)

    def _observe(
        self,
        site: int,
        direction: Direction,
        peer: int,
        message: Signed[Body],
        vectors: tuple[Any, ...],
        *,
        more: bool = False,
    ) -> None:
        observer = self._observers.get(site, ignore)
        observer(direction, peer, message, wire_size(message, sum(len(vector) for vector in vectors)), more=more)


class _SiteRecorder:
    """Writes a source's own lines and shows its alarms."""

    def __init__(self, folder: RunFolder, site_id: str, shown: Reporter) -> None:
        self._folder, self._site_id, self._shown = folder, site_id, shown

    def round_started(self, round_number: int, visibility: str, rule: str) -> None:
        """Nothing to show: the aggregator's reporter does."""

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
        seed: of the run: data, first model and training. Keys, masks and nonces are fresh every time.
        reporter: shows progress.
        delivers: which messages arrive; all of them by default.

    Raises:
        SecureFdaError: whatever ends the run; the folder holds the rounds until then.
    """
    folder = RunFolder(out)
    recording = RecordingReporter(folder, reporter)
    meter = TrafficMeter()
    with ExitStack() as stores:
        federation = _Federation.of(config, folder, seed, reporter, stores)
        run = federation.aggregator(recording, meter)
        recording.model_bytes = lambda: model_file(run.layers, run.model)
        sources = {entry.index: federation.source(entry.site_id) for entry in federation.roster.sources}
        training = config.training
        if training.target.dp.noise_multiplier or training.source.dp.noise_multiplier:
            reporter.note(TERMS)
        network = MemoryNetwork(run, sources, federation.observers, delivers)
        try:
            network.run()
        except BaseException as error:
            folder.write_summary(federation.summary(run, error))
            raise
        summary = federation.summary(run, None)
        folder.write_summary(summary)
        return summary


@dataclass(frozen=True, slots=True, repr=False)
class _Federation:
    """Builds the sites of one simulated federation."""

    config: FederationConfig
    folder: RunFolder
    seed: int
    reporter: Reporter
    roster: Roster
    keys: dict[str, Ed25519PrivateKey]
    settings: AggregatorConfig
    store: AggregatorStore
    stores: ExitStack
    observers: dict[int, MessageObserver]

    @classmethod
    def of(cls, config: FederationConfig, folder: RunFolder, seed: int, reporter: Reporter, stores: ExitStack) -> Self:
        roster, keys = _throwaway_roster(config)
        target = config.federation.target
        sites = folder.path / SITES_FOLDER
        kits = {site: sites / site for site in (target, *config.federation.sources)}
        for note in make_ledgers(config, kits, seed):
            reporter.note(note)
        settings = AggregatorConfig(
            aggregator=ProcessSection(kit=sites / target, out=folder.path, seed=seed),
            task=config.task,
            strategy=config.strategy,
            training=config.training.target,
            privacy=config.privacy,
            session=config.session,
            transport=config.transport,
        )
        store = stores.enter_context(closing(AggregatorStore(folder.path / "state.sqlite")))
        return cls(config, folder, seed, reporter, roster, keys, settings, store, stores, {})

    def aggregator(self, recording: RecordingReporter, meter: TrafficMeter) -> AggregatorRun:
        site = target_site(self.settings, self._member(self.config.federation.target), meter.counts, self.store)
        self._show(self.config.federation.target, (f"all sites in one process, on {site.trains_on}", *site.notes))
        run = AggregatorRun(site, run_settings(self.settings, self.roster), self.store, recording)
        self._record(site, run.run_id, meter)
        return run

    def summary(self, run: AggregatorRun, error: BaseException | None) -> Summary:
        return summary_of(self.settings, run, self.store, self.roster, error)

    def source(self, site_id: str) -> SourceRounds:
        config = self.config
        settings = SourceConfig(
            source=self.settings.aggregator.model_copy(update={"kit": self.folder.site(site_id)}),
            task=config.task,
            training=config.training.source,
            transport=config.transport,
        )
        store = self.stores.enter_context(closing(SourceStore(self.folder.site(site_id) / "state.sqlite")))
        site = source_site(settings, site_policy(config, site_id), self._member(site_id), store)
        self._show(site_id, site.notes)
        self._record(site)
        return SourceRounds(site, _SiteRecorder(self.folder, site_id, self.reporter))

    def _record(self, site: TargetSite | SourceSite, run: str | None = None, then: MessageObserver = ignore) -> None:
        journal, own = site.witness.journal, site.signer.index
        self.stores.callback(journal.close)
        self.observers[own] = MessageRecorder(journal, self.roster, own, run=run, then=then)

    def _show(self, site_id: str, notes: Iterable[str]) -> None:
        for note in notes:
            self.reporter.note(f"{site_id}: {note}")

    def _member(self, site_id: str) -> Member:
        return Member(self.roster, site_id, self.keys[site_id], encode)


def _throwaway_roster(config: FederationConfig) -> tuple[Roster, dict[str, Ed25519PrivateKey]]:
    """Identities that live as long as this run; no certificate exists, so the pins are random."""
    names = (config.federation.target, *config.federation.sources)
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    entries = tuple(
        RosterEntry(
            index=index,
            site_id=name,
            role="target" if index == 0 else "source",
            legal_entity=name,
            signing_key=keys[name].public_key().public_bytes_raw(),
            tls_pin=os.urandom(PIN_BYTES),
            not_before=0,
            not_after=_FOR_EVER,
        )
        for index, name in enumerate(names)
    )
    return Roster(config.federation.name, 1, entries), keys
