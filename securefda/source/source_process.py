"""A source's process: it builds the source, dials the aggregator, and answers one message at a time.

Long work such as training runs in a thread beside the event loop, so that heartbeats continue.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from securefda.audit.journal import MessageRecorder
from securefda.bootstrap import Member, credentials_of, endpoint_of, notes_of_left, transport_settings
from securefda.errors import ConfigError, FaultyAggregatorError, PolicyRefusal, SecureFdaError
from securefda.machine import give_free_memory_back, map_large_blocks, raise_descriptor_limit
from securefda.operations import SourceWatch, watch_source
from securefda.operations.notes import Note
from securefda.operations.progress import Reporter
from securefda.operations.records import SiteLine, refused_line
from securefda.operations.run_folder import METRICS_FILE, MODEL_FILE, append_line, keep_refused
from securefda.operations.state import StateWriter, round_of
from securefda.operations.summary_text import ANALYTIC, apart_words, work_phase
from securefda.privacy.dp_events import TERMS
from securefda.protocol.messages import Header, Parcel, Signed
from securefda.site.config import SourceConfig
from securefda.site.kit import Kit, load_kit, use_kit
from securefda.site.policy import SourcePolicy, parse_policy
from securefda.site.training_secret import secret_of_site
from securefda.source.run_book import RunBook, run_book_file
from securefda.source.source_round import SourceRound
from securefda.source.source_run import SourceRun
from securefda.source.source_site import source_site
from securefda.source.source_store import SourceStore
from securefda.source.standing import HINT
from securefda.text import bound_text, counted, phase_words
from securefda.training.team import Team
from securefda.transport.client import AggregatorRestarted, LostConnection, SourceChannel
from securefda.transport.dialer import UploadRefusedError
from securefda.transport.event_loop import in_thread, run_interruptibly
from securefda.transport.wire import encode_signed

STATE_FILE = "state.sqlite"
LOCK_FILE = "source.lock"
INTERRUPTED_GRACE_S = 1.0
ANOTHER_RUN = "to take part in another one, name a new folder: --out FOLDER"


def main(config: SourceConfig, reporter: Reporter, *, accept_run: bool = False, team: Team | None = None) -> None:
    """Take part as a source until the aggregator ends the run; return at once if the run is complete already.

    ``accept_run`` is the operator's consent, see :class:`RunBook`. ``team`` are processes that train together with this
    one, which leads them.

    Raises:
        ConfigError: the folder belongs to another run, or another process of this site is running.
        PolicyRefusal: this site's policy allowed none of the rounds, or not this run.
        FaultyAggregatorError: the aggregator failed a check, and no round was finished.
        RunEnded: the aggregator ended the run early.
        SecureFdaError: this site cannot go on.
    """
    map_large_blocks()
    raise_descriptor_limit()
    kit = load_kit(config.source.kit, datetime.now(UTC), expected_role="source")
    use_kit(kit)
    # Read once: the policy in force is the one whose digest the audit log will hold.
    policy_path, policy_file = kit.signed_policy()
    policy = parse_policy(policy_file, policy_path)
    # Where the policy allows one run, a second process can only be there by mistake.
    alone = _only_process(kit.local, config.source.out) if policy.release.max_runs <= 1 else nullcontext()
    with alone:
        _take_part(config, kit, policy, policy_file, reporter, accept_run=accept_run, team=team)


def _take_part(
    config: SourceConfig,
    kit: Kit,
    policy: SourcePolicy,
    policy_file: bytes,
    reporter: Reporter,
    *,
    accept_run: bool,
    team: Team | None,
) -> None:
    """The life of the process, once nothing speaks against a second one of its site."""
    member = Member.of(kit)
    runs = RunBook(run_book_file(kit.root), policy.release, accept_run=accept_run)
    store = SourceStore(config.source.out / STATE_FILE, runs)
    out, site_id = config.source.out, kit.site_id
    watching = watch_source(
        reporter,
        config.logging,
        config.metrics,
        out=out,
        roster=kit.roster,
        site=site_id,
        certificate_ends=kit.certificate_ends,
    )
    with closing(store), watching as watch:
        limit = policy.dp.budget.epsilon if config.training.with_noise else None
        watch.state.know(epsilon_limit=limit)
        if (run := store.complete_run()) is not None:  # there is nothing to join: its aggregator has ended
            watch.note(f"{site_id}: run {run.hex()[:12]} is complete already; {ANOTHER_RUN}")
            return
        shown = _SourceReporter(kit.site_id, out, reporter, watch.state)
        secret, about_secret = secret_of_site(config.source, config.training, kit.local)
        site = source_site(config, policy, member, store, secret=secret, policy_file=policy_file, team=team)
        site.trainer.on_progress = partial(watch.steps, site_id)
        watch.note(f"{site_id} trains on {site.trains_on}")
        if accept_run:
            watch.note("--accept-run: one run beyond release.max-runs may begin; rounds without a result are forgiven")
        for note in (
            *about_secret,
            *notes_of_left(kit.roster),
            *site.notes,
            *([TERMS] if config.training.with_noise else []),
        ):
            watch.note(note)
        rounds = SourceRun(site, watch.rounds(shown))
        with closing(site.witness.journal) as journal:
            recorder = MessageRecorder(journal, kit.roster, member.index, then=watch.hear)
            run_interruptibly(_serve(config, kit, rounds, recorder, watch))
        if (kept := rounds.standing.kept_round) is not None:
            watch.note(f"{site_id}: the final model, of round {kept}, is {out / MODEL_FILE}")
        rounds.standing.require_success()


@contextmanager
def _only_process(local: Path, out: Path) -> Iterator[None]:
    """Hold the lock of a kit's folder ``local``; ``out`` is this process's run folder, for others to name.

    An aggregator lets a new process of a site take the place of the old one: a second one, with another run folder,
    would end the first.
    """
    descriptor = os.open(local / LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            folder = os.read(descriptor, 4096).decode(errors="replace") or "another folder"
            raise ConfigError(
                str(local.parent),
                f"another process of this site is running, with the run folder {folder}",
                hint="let it go on, or stop it first",
            ) from None
        os.truncate(descriptor, 0)
        os.write(descriptor, str(out).encode())
        yield
    finally:
        os.close(descriptor)


class _SourceReporter:
    """Writes this site's metrics and shows its progress; ``state`` knows the number of rounds and the limit of ε."""

    def __init__(self, site_id: str, out: Path, shown: Reporter, state: StateWriter) -> None:
        self._site_id, self._out, self._shown, self._state = site_id, out, shown, state

    def _place(self, round_number: int) -> str:
        return f"{self._site_id}: round {round_of(round_number, self._state.now.rounds)}"

    def round_started(self, round_number: int, visibility: str, rule: str) -> None:
        """Show for which round this site trains or adds up, and at which visibility."""
        work = phase_words(work_phase(rule))
        self._shown.note(f"{self._place(round_number)}: {work} for {rule} at visibility {visibility}")

    def round_finished(self, record: SiteLine) -> None:
        """Append the line to this site's metrics, and show what left, how, and the spent ε."""
        append_line(self._out / METRICS_FILE, record)
        summed = record.get("summed", 1)
        what = "update"
        if record["rule"] == ANALYTIC:
            noise = "with" if "epsilon" in record else "without"
            what = f"second moments (sums over {counted(record['samples'], 'row')} of features, {noise} noise)"
        sent = f"{what} sent in clear" if summed == 1 else f"{what} sent inside a sum of {summed}"
        limit = self._state.now.epsilon_limit
        if "epsilon" in record and limit is not None:
            sent += f"; ε {bound_text(record['epsilon'])} of {limit:g}"
        if "apart_from_target" in record:
            sent += f"; {apart_words(record['apart_from_target'])}"
        self._shown.note(f"{self._place(record['round'])}: {sent}")

    def refused(self, refusal: PolicyRefusal, header: Signed[Header]) -> None:
        """Keep the refused header and the refusal beside this site's metrics, and show the refusal."""
        keep_refused(self._out, refused_line(refusal, header), encode_signed(header))
        self.alarm(refusal)

    def alarm(self, error: SecureFdaError) -> None:
        """Show a refusal or a failure."""
        self._shown.note(f"{self._site_id}: {error}")


async def _serve(
    config: SourceConfig, kit: Kit, rounds: SourceRun, recorder: MessageRecorder, reporter: SourceWatch
) -> None:
    """Dial the aggregator and take part until it says goodbye or this site cannot go on."""
    endpoint = endpoint_of(kit, config.transport)

    def on_lost(lost: LostConnection | None) -> None:
        if lost is None:
            reporter.connected(endpoint.address)
        else:
            reporter.unreachable(lost.what, time.time() + lost.left_s)

    reporter.connecting(endpoint.address)
    channel = SourceChannel(
        endpoint,
        credentials_of(kit),
        max_vector_bytes=rounds.vector_bytes(),
        settings=transport_settings(config.transport),
        observer=recorder,
        on_lost=on_lost,
    )
    await channel.open()
    grace_s = None
    try:
        idle_deadline_s = config.transport.idle_deadline_s
        await SourceDriver(rounds, channel, reporter, idle_deadline_s, trained=reporter.trained).drive()
    except asyncio.CancelledError:
        grace_s = INTERRUPTED_GRACE_S
        raise
    finally:
        await channel.close(grace_s)


class SourceDriver:
    """Passes messages between a source's rounds and an open channel; the caller opens and closes the channel.

    Between rounds the aggregator can be silent for ``idle_deadline_s`` seconds; None means for ever. Within a round
    each step has its deadline. A message that does not advance the step does not extend the deadline; otherwise an
    aggregator could make a source hold its session's secrets for ever.
    """

    def __init__(
        self,
        rounds: SourceRun,
        channel: SourceChannel,
        reporter: Reporter,
        idle_deadline_s: float | None = None,
        *,
        trained: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rounds = rounds
        self._channel = channel
        self._reporter = reporter
        self._idle_deadline_s = idle_deadline_s
        self._trained = trained
        self._clock = clock
        self._joined = False
        self._step: SourceRound | None = None
        self._step_began = 0.0

    async def drive(self) -> None:
        """Join, and take part until the run is over.

        Raises:
            SecureFdaError: the aggregator did not come back, it refuses this site, or it broke the protocol.
        """
        try:
            while not self._rounds.standing.is_over:
                await self.answer_one()
        except FaultyAggregatorError as error:
            error.place, error.hint = error.place or self._rounds.place(), error.hint or HINT
            raise

    async def answer_one(self) -> None:
        """Join if not done yet; then wait for one message or the deadline, and answer."""
        try:
            if not self._joined:
                await self._channel.send(await in_thread(partial(self._rounds.join, self._channel.run_id.hex())))
                self._joined = True
            await self._send(await self._answers())
            if self._rounds.has_to_train:  # while the keys that were sent travel
                await self._send(await in_thread(self._rounds.train))
                if self._rounds.current is not None:
                    self._trained()
        except AggregatorRestarted:
            self._reporter.note(Note("the aggregator has restarted; joining again", "warning"))
            self._rounds.forget()
            self._joined = False

    async def _answers(self) -> list[Parcel]:
        now, step = self._clock(), self._rounds.current
        if step is not self._step:
            self._step, self._step_began = step, now
        patience_s = self._idle_deadline_s if step is None else self._step_began + step.deadline_s - now
        if patience_s is not None and patience_s <= 0:  # even if a message is waiting
            return self._rounds.expire()
        try:
            async with asyncio.timeout(patience_s):
                parcel = await self._channel.receive()
        except TimeoutError:
            if step is None:
                detail = f"no message from the aggregator for {self._idle_deadline_s:g} s"
                raise FaultyAggregatorError("DEADLINE", detail) from None
            return self._rounds.expire()
        if parcel.vectors:
            give_free_memory_back()  # before training, which needs the most memory
        return await in_thread(partial(self._rounds.handle, parcel))

    async def _send(self, parcels: list[Parcel]) -> None:
        for parcel in parcels:
            try:
                await self._channel.send(parcel)
            except UploadRefusedError as error:
                # The aggregator has closed the phase: this source is dropped, and what it sent stays masked.
                self._reporter.note(Note(f"too late for this round: {error}", "warning"))
                self._rounds.forget()
