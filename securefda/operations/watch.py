"""Reporters that log and count the reports of a site's process before they reach the console."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securefda import __version__
from securefda.errors import ConfigError, FaultyAggregatorError, PolicyRefusal, ProtocolError, SecureFdaError
from securefda.operations.notes import Level, Note
from securefda.operations.progress import PassingReporter, Reporter, SourceReporter
from securefda.operations.records import RoundLine, SiteLine, round_seconds
from securefda.operations.state import StateWriter, retrying_text, round_of, state_file
from securefda.operations.summary_text import ANALYTIC, work_phase
from securefda.protocol.messages import (
    Advertise,
    Body,
    Consistency,
    Header,
    Join,
    MaskedInput,
    NeighbourConsistency,
    Nonce,
    Roll,
    Schedule,
    ShareBundle,
    ShareDelivery,
    Signed,
    Survivors,
    SurvivorSignature,
    Unmask,
    Update,
)
from securefda.protocol.roster import Roster
from securefda.site.certificates import RENEW, validity
from securefda.site.config import LoggingSection, MetricsSection
from securefda.text import bound_text, counted, duration, phase_words

if TYPE_CHECKING:
    from securefda.operations.logs import OperationalLog
    from securefda.operations.metrics import SourceMetrics, TargetMetrics

_NO_WORD = "no error of this package"
_DOING: Mapping[type, str] = {
    Join: "waiting for {target} to begin a round",
    Header: "checking what {target} asks for",
    Advertise: "waiting for the keys of the other sources",
    Nonce: "waiting for who its neighbours are",
    ShareBundle: "waiting for the key shares of the other sources",
    ShareDelivery: "masking its {sent}",
    MaskedInput: "sending its masked {sent}, then waiting for those of the other sources",
    SurvivorSignature: "waiting for the signatures of the other sources",
    Unmask: "waiting for the result",
    Update: "sending its {sent} in clear, then waiting for the result",
}
"""Message type -> the source's activity once it has received, or as it sends, such a message."""

_PHASES: Mapping[type, str] = {
    Update: "update",
    Advertise: "R0 advertise",
    Roll: "R0 nonces",
    ShareBundle: "R1 shares",
    ShareDelivery: "R2 masked input",
    Survivors: "R3 survivors",
    Consistency: "R4 unmask",
    NeighbourConsistency: "R4 unmask",
}
"""Message type -> the source's phase after it, in the words of the aggregator's phases."""


@dataclass(slots=True)
class _RunLog:
    """The log, if one is kept, and the state of the run. ``peers`` are the site ids that a line may name."""

    log: OperationalLog | None
    peers: Collection[str]
    run_id: Callable[[], str] = str
    round_over: Callable[[RoundLine], None] = field(default=lambda _line: None)
    """Takes the line of a round to trackers, where the site has any."""
    round: int = 0
    phase: str = ""

    def run(self) -> str:
        """The id of the run; empty until it is known."""
        return self.run_id()

    def write(self, level: Level, text: str, peer: str = "") -> None:
        if self.log is None:
            return
        from securefda.operations.logs import Place

        self.log.write(level, text, Place(self.run_id(), self.round, self.phase, peer))

    def note(self, note: Note | str) -> Note:
        filed = Note.of(note)
        self.write(filed.level, filed.text, filed.peer if filed.peer in self.peers else "")
        return filed

    @contextmanager
    def process(self, site: str, role: str) -> Iterator[None]:
        """Log the start and the end of the process; errors propagate."""
        self.write("info", f"securefda {__version__}: the {role}{f' {site}' if site != role else ''} starts")
        try:
            yield
        except SecureFdaError as error:
            self.write("error", f"ends: {error.code}: {error}")
            raise
        except KeyboardInterrupt:
            self.write("warning", "ends: interrupted")
            raise
        except BaseException as error:
            self.write("error", f"ends: {type(error).__name__}, {_NO_WORD}")  # its text may hold anything
            raise
        self.write("info", "ends: the run is over")


class TargetWatch(PassingReporter):
    """The aggregator's reporter: passes everything on to ``shown``, logs and counts it, and keeps ``state`` true.

    The one that listens for sources sets ``ready`` while this is so; probes ask for it.
    """

    def __init__(
        self,
        shown: Reporter,
        run_log: _RunLog,
        metrics: TargetMetrics | None,
        state: StateWriter,
        *,
        ready: threading.Event,
    ) -> None:
        super().__init__(shown)
        self._run_log, self._metrics, self.state, self.ready = run_log, metrics, state, ready

    def follow(self, run_id: Callable[[], str], connected: Callable[[], Collection[int]]) -> None:
        """Set the sources of what reports lack: the run's id (empty before there is one), and who is connected."""
        self._run_log.run_id = run_id
        if self._metrics is not None:
            self._metrics.watch_connections(connected)

    def round_started(self, round_number: int, rounds: int) -> None:
        """A round begins."""
        if self._metrics is not None:  # first: a reader of the line finds the metrics so
            self._metrics.round_started(round_number)
            self._metrics.planned(rounds)
        self._shown.round_started(round_number, rounds)
        self._run_log.round, self._run_log.phase = round_number, ""
        self._run_log.write("info", f"round {round_number} of {rounds} begins")
        self.state.set("beginning a round", round=round_number, rounds=rounds, run=self._run_log.run_id())

    def phase(self, name: str, waiting_for: Sequence[str] = (), asked: int = 0) -> None:
        """The run enters a phase, or goes on waiting in it."""
        self._shown.phase(name, waiting_for, asked)
        self._run_log.phase = name
        self._run_log.write("debug", f"waiting for {', '.join(waiting_for)}" if waiting_for else "waiting for no site")
        self.state.set(phase_words(name), waiting_for=waiting_for, waiting_of=asked, run=self._run_log.run_id())

    def steps(self, site: str, done: int, of: int) -> None:
        """The target trains."""
        self._shown.steps(site, done, of)
        self.state.know(steps=done, steps_of=of)

    def round_finished(self, line: RoundLine) -> None:
        """A round is over."""
        self._shown.round_finished(line)
        self._run_log.round_over(line)
        self._run_log.write("warning" if line.get("status") == "lost" else "info", _text_of(line))
        self._run_log.phase = ""
        if line.get("status") != "lost":
            self.state.know(error="")
        if "target_epsilon" in line:
            self.state.know(epsilon=line["target_epsilon"])
        if self._metrics is not None:
            self._metrics.round_finished(line)

    def note(self, note: Note | str) -> None:
        """Something an operator should read."""
        self._shown.note(note)
        filed = self._run_log.note(note)
        if self._metrics is not None:
            self._metrics.noted(filed)


class SourceWatch(PassingReporter):
    """A source's reporter of notes, of its connection, and with :meth:`rounds` of its rounds; ``state`` follows all.

    ``ready`` is set while the source is connected to an aggregator that it has joined; probes ask for it.
    """

    def __init__(
        self,
        shown: Reporter,
        run_log: _RunLog,
        metrics: SourceMetrics | None,
        target: str,
        state: StateWriter,
        *,
        ready: threading.Event,
    ) -> None:
        super().__init__(shown)
        self._run_log, self._metrics, self._target = run_log, metrics, target
        self.state, self._ready = state, ready
        self._run, self._was_connected, self._has_joined, self._sent = "", False, False, "update"
        self._trains_after_keys = False
        run_log.run_id = lambda: self._run

    def hear(self, direction: object, peer: int, message: Signed[Body], wire_bytes: int, *, more: bool = False) -> None:
        """Observe a message: a header tells run and rule, and the message type the phase. Nothing else is used."""
        del direction, peer, wire_bytes, more
        if isinstance(message.body, Advertise) and self._trains_after_keys:
            return  # it does what it has done since the header
        if isinstance(message.body, Schedule):
            self.state.know(rounds=message.body.rounds)
        if isinstance(message.body, Header):
            rule = message.body.rule.rule
            self._run, self._run_log.phase = message.body.run_id.hex(), work_phase(rule)
            self._sent = "second moments" if rule == ANALYTIC else "update"
            self._trains_after_keys = message.body.graph is None
        else:
            self._run_log.phase = _PHASES.get(type(message.body), self._run_log.phase)
        if isinstance(message.body, Join):
            self._has_joined = True
            self._ready.set()  # first: a reader of the line finds the process so
            self.note(f"joined; waiting for {self._target} to begin a round")
        if doing := _DOING.get(type(message.body)):
            self.does(doing.format(target=self._target, sent=self._sent), waits="waiting" in doing)

    def does(self, doing: str, *, waits: bool = False, **facts: Any) -> None:
        """Record what this source does from now on; ``waits`` says that it waits for the aggregator."""
        self.state.set(doing, waiting_for=[self._target] if waits else [], run=self._run, **facts)
        self._show_state()

    def trained(self) -> None:
        """Record that this source has trained since its keys left."""
        self._run_log.phase = _PHASES[Advertise]
        self.does(_DOING[Advertise], waits=True)

    def connecting(self, address: str) -> None:
        """Record that the process starts to connect."""
        self.does(f"connecting to {address}", waits=True)

    def connected(self, address: str) -> None:
        """Record a connection, the first or a later one."""
        again = " again" if self._was_connected else ""
        self._was_connected = True
        if self._has_joined:
            self._ready.set()
        self.state.know(retrying="", retrying_until=None)
        self.note(Note(f"connected{again} to the aggregator at {address}", peer=self._target))
        self._show_state()

    def unreachable(self, what: str, until: float) -> None:
        """Record that the process has no connection and tries until then, in Unix time; logged once per reason."""
        self._ready.clear()
        if what == self.state.now.retrying:
            return
        self.state.know(retrying=what, retrying_until=until)
        self.note(Note(retrying_text(what, until, time.time()), "warning"))
        self._show_state()

    def _show_state(self) -> None:
        now = self.state.now
        place = f"round {round_of(now.round, now.rounds)}: " if now.round else ""
        trying = retrying_text(now.retrying, now.retrying_until, time.time()) if now.retrying else ""
        self._shown.phase(place + (trying or now.doing))

    def rounds(self, shown: SourceReporter) -> SourceReporter:
        """Return a reporter that logs and counts everything and passes it on to ``shown``."""
        return _SourceRounds(shown, self._run_log, self._metrics, self._target, self)

    def note(self, note: Note | str) -> None:
        """Something an operator should read."""
        self._shown.note(note)
        self._run_log.note(note)

    def steps(self, site: str, done: int, of: int) -> None:
        """This source trains."""
        self._shown.steps(site, done, of)
        self.state.know(steps=done, steps_of=of)


class _SourceRounds:
    """Logs and counts the rounds of a source. Whatever ends a session ends its phase."""

    def __init__(
        self, shown: SourceReporter, run_log: _RunLog, metrics: SourceMetrics | None, target: str, watch: SourceWatch
    ) -> None:
        self._shown, self._run_log, self._metrics, self._target, self._watch = shown, run_log, metrics, target, watch

    def round_started(self, round_number: int, visibility: str, rule: str) -> None:
        """A header was accepted."""
        if self._metrics is not None:
            self._metrics.round_started(round_number)
        self._shown.round_started(round_number, visibility, rule)
        self._run_log.round = round_number
        self._run_log.write("info", f"round {round_number} begins: {rule}, visibility {visibility}", self._target)
        self._watch.does(phase_words(work_phase(rule)), round=round_number)

    def round_finished(self, record: SiteLine) -> None:
        """A result was accepted."""
        self._shown.round_finished(record)
        spent = f"; epsilon {bound_text(record['epsilon'])} is spent" if "epsilon" in record else ""
        self._run_log.write("info", f"round {record['round']} is over{spent}", self._target)
        self._run_log.phase = ""
        spent_now = {"epsilon": record["epsilon"]} if "epsilon" in record else {}
        self._watch.does(f"waiting for {self._target} to begin the next round", waits=True, error="", **spent_now)
        if self._metrics is not None:
            self._metrics.round_finished(record)

    def refused(self, refusal: PolicyRefusal, header: Signed[Header]) -> None:
        """The policy refused a header."""
        self._shown.refused(refusal, header)
        self._run_log.write("warning", f"round {header.body.round} refused: {refusal}", self._target)
        self._failed(refusal)
        if self._metrics is not None:
            self._metrics.refusal(refusal.key)
            self._metrics.round_ended("refused", None)

    def alarm(self, error: SecureFdaError) -> None:
        """A check failed, the aggregator ended a session, or the policy refused to go on with one."""
        self._shown.alarm(error)
        self._run_log.write("warning" if isinstance(error, PolicyRefusal) else "error", str(error), self._target)
        self._failed(error)
        if self._metrics is not None:
            if isinstance(error, PolicyRefusal):
                self._metrics.refusal(error.key)
            elif isinstance(error, FaultyAggregatorError):
                self._metrics.alarm(error.check)
            elif isinstance(error, ProtocolError):
                self._metrics.abort(error.check)

    def _failed(self, error: SecureFdaError) -> None:
        self._run_log.phase = ""
        self._watch.does(f"waiting for what {self._target} asks for next", waits=True, error=str(error))


@contextmanager
def watch_target(
    shown: Reporter,
    logging: LoggingSection,
    metrics: MetricsSection,
    *,
    out: Path,
    roster: Roster,
    certificate_ends: datetime | None = None,
) -> Iterator[TargetWatch]:
    """Log and count the aggregator's reports until the block ends, and how the process ends.

    Args:
        shown: the console's reporter; everything goes on to it, and warnings about a log's file.
        logging: which logs are kept, if any.
        metrics: the port, if any, and where it is opened.
        out: the site's run folder.
        roster: of the federation.
        certificate_ends: when the site's certificate ends, with a time zone; None says nothing about it.

    Raises:
        ConfigError: a log cannot be written, the port cannot be opened, or the package of a tracker is missing.
    """
    target, sources = roster.target.site_id, [entry.site_id for entry in roster.sources]
    with ExitStack() as stack:
        run_log = _RunLog(_log(stack, logging, out, target, shown), frozenset(sources))
        meters, ready = None, threading.Event()
        if metrics.port:
            from securefda.operations.metrics import TargetMetrics, served

            meters = TargetMetrics(results=metrics.results)
            stack.enter_context(served(meters.registry, metrics.host, metrics.port, ready.is_set))
        if metrics.tensorboard or metrics.mlflow:
            from securefda.operations.tracking import tracked

            names = {"federation": roster.federation_id, "site": target}
            places = tracked(metrics, out=out, run_id=run_log.run, note=shown.note, **names)
            run_log.round_over = stack.enter_context(places).round_finished
        stack.enter_context(run_log.process(target, "target"))
        state = stack.enter_context(state_file(out, site=target, role="target"))
        watch = TargetWatch(shown, run_log, meters, state, ready=ready)
        _tell_of_certificate(watch, meters, certificate_ends)
        yield watch


@contextmanager
def watch_source(
    shown: Reporter,
    logging: LoggingSection,
    metrics: MetricsSection,
    *,
    out: Path,
    roster: Roster,
    site: str,
    certificate_ends: datetime | None = None,
) -> Iterator[SourceWatch]:
    """Log and count the reports of source ``site``, as :func:`watch_target` does.

    Raises:
        ConfigError: likewise; also a key of ``[metrics]`` that means something at a target alone.
    """
    target = roster.target.site_id
    for key in ("results", "tensorboard", "mlflow"):
        if getattr(metrics, key):
            hint = "remove it: a source's own figures are in the metrics.jsonl of its run folder"
            raise ConfigError(f"metrics.{key}", "applies only to the target", hint=hint)
    with ExitStack() as stack:
        run_log = _RunLog(_log(stack, logging, out, site, shown), frozenset((target,)))
        meters, ready = None, threading.Event()
        if metrics.port:
            from securefda.operations.metrics import SourceMetrics, served

            meters = SourceMetrics()
            stack.enter_context(served(meters.registry, metrics.host, metrics.port, ready.is_set))
        stack.enter_context(run_log.process(site, "source"))
        state = stack.enter_context(state_file(out, site=site, role="source"))
        watch = SourceWatch(shown, run_log, meters, target, state, ready=ready)
        _tell_of_certificate(watch, meters, certificate_ends)
        yield watch


def _tell_of_certificate(
    watch: TargetWatch | SourceWatch, metrics: TargetMetrics | SourceMetrics | None, ends: datetime | None
) -> None:
    """Pass on when the site's certificate ends, and warn where that is soon."""
    if ends is None:
        return
    if metrics is not None:
        metrics.certificate(ends)
    watch.state.know(certificate_ends=ends.timestamp())
    words, is_soon = validity(ends, datetime.now(UTC))
    if is_soon:
        watch.note(Note(f"this site's certificate is {words}; {RENEW}", "warning"))


def _log(stack: ExitStack, settings: LoggingSection, out: Path, site: str, shown: Reporter) -> OperationalLog | None:
    if not settings.is_on:
        return None
    from securefda.operations.logs import OperationalLog

    return stack.enter_context(closing(OperationalLog(settings, out, site, shown.note)))


def _text_of(line: RoundLine) -> str:
    """Return one line about a round that is over."""
    parts = [
        f"round {line['round']} is {line.get('status', 'lost')}",
        counted(len(line.get("survivors", [])), "source"),
    ]
    if line.get("dropped"):
        parts.append(f"dropped {', '.join(line['dropped'])}")
    if line.get("attempts", 0) > 1:
        parts.append(f"{line['attempts']} attempts")
    if "target_epsilon" in line:
        parts.append(f"epsilon {bound_text(line['target_epsilon'])} is spent")
    if seconds := round_seconds(line):
        parts.append(duration(seconds))
    return "; ".join(parts)
