"""What must hold of a run whatever befalls its sites: a small model beside the real sites, fed by what leaves them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from rounds_definition import Trained, update_by_definition
from rounds_disk import EndingFederation, FullDisk, entries_of, is_all_logged, logs_below
from rounds_federation import TARGET, signer, site_id
from rounds_liars import KEPT, SAMPLES, Liar
from rounds_private import PrivateFederation
from source_stores import NO_LIMITS

from securefda.audit.log_files import AuditError
from securefda.audit.reconcile.reconciled_runs import reconcile_folder
from securefda.audit.signed_notes import LogName
from securefda.audit.verify import verify_log
from securefda.errors import FaultyAggregatorError, ProtocolError, QuorumLost, RunEnded
from securefda.protocol.messages import (
    Abort,
    Advertise,
    Checkpoint,
    Cosigned,
    Header,
    MaskedInput,
    Parcel,
    Refusal,
    Result,
    ShareDelivery,
    Survivors,
    SurvivorSignature,
    Unmask,
    Update,
    Visibility,
)
from securefda.protocol.transcript import round_terms_digest
from securefda.rules import align_update
from securefda.source.source_run import SourceRun
from securefda.training import LocalResult
from securefda.transport.in_memory import Passed, UnderWay

ROUNDS, ATTEMPTS, MOST_LOST = 4, 2, 3
RULE = "fedda"
NEEDED = {Visibility.SUM: 3, Visibility.COHORT: 3, Visibility.INDIVIDUAL: 1}
"""So many of the four sources must answer."""
ONCE = (Advertise, MaskedInput, Update, SurvivorSignature, Unmask)
"""A source sends each of them once in a session, and what it cannot take back once in a round."""
RELEASES = (MaskedInput, Update, SurvivorSignature, Unmask)


class DiskOfOne(FullDisk):
    """All sites have space, until the log of one has not."""

    def fill(self, folder: Path) -> None:
        self._folder, self._space = str(folder), 0


class WrongSum(Liar):
    """A source whose numbers of rows no honest sum can have; the masks hide which source it is."""

    def __init__(self, honest: SourceRun, check: str) -> None:
        super().__init__(honest, self._misstate)
        self.__dict__ |= {**vars(honest), "_lie": self._misstate}
        self._statistics = {"RANGE": (0, 2**32 - 2**29), "SUM": (2**28, 1)}[check]

    def _misstate(self, encoded: Any, _: Header) -> None:
        encoded[[KEPT, SAMPLES]] = self._statistics

    def handle(self, parcel: Parcel) -> list[Parcel]:
        return (super() if isinstance(parcel.message.body, ShareDelivery) else super(Liar, self)).handle(parcel)


class ModelledFederation(PrivateFederation, EndingFederation):
    """Real sites that write everything down, and what is known of their run from outside.

    Attributes:
        models: the global model that each round begins with.
        touched: sources that something has happened to in this round or the last.
        liars: sources that have lied; no other source may be accused.
        lies: digest of each wrong message, which fails the check CONTEXT.
        repeated: sources of which a message has come again; their logs have sent it once.
        saved: sites that have a checkpoint of their log on the disk.
        planned: the type of message with which a source will lie next.
        masked_lie: whether one lies about its vector in this round.
        lost_in_a_row: rounds that this process of the aggregator has lost since one was finished.
        fate: "lost" or an attempt with which a round that the target's death interrupted goes on; None for neither.
        unsure: whether a full disk has hidden how far the target had got.
    """

    def __init__(self, folder: Path, visibility: Visibility, private: Collection[int]) -> None:
        self.silent: set[int] = set()
        self.late: list[UnderWay] = []
        self.slow: set[tuple[int, int]] = set()
        self.touched: dict[int, int] = {}
        self.liars: set[int] = set()
        self.lies: set[bytes] = set()
        self.repeated: set[str] = set()
        self.saved = {TARGET}
        self.planned: dict[int, type] = {}
        self.masked_lie, self.unsure, self.opening = False, False, False
        self.lost_in_a_row, self.steps = 0, 0
        self.fate: int | str | None = None
        self.headers: dict[bytes, Header] = {}
        self.sent: Counter[Any] = Counter()
        self.asked: dict[Any, Any] = {}
        self.in_time: dict[bytes, frozenset[int]] = {}
        self.trained: dict[tuple[int, int], LocalResult] = {}
        self.trainings: dict[int, Counter[int]] = {}
        self.disk = DiskOfOne(folder / "no site")
        settings = {"attempts": ATTEMPTS, "kappa": 0.0}  # no norm cap: the plain definition knows none
        more = {"visibility": visibility, "settings": settings, "rule": RULE, "rounds": ROUNDS, "private": private}
        super().__init__(folder, **({"n": 4} | more))  # type: ignore[arg-type]
        self.models = {1: self.run.site.trainer.initial_model()}

    # How the real sites are put together

    def new_aggregator(self) -> Any:
        run = super().new_aggregator()
        self.record(TARGET, run.site.witness, run.run_id)
        return run

    def policy(self, index: int, **changes: Any) -> Any:
        return super().policy(index, **({"release": NO_LIMITS} | changes))

    def trainer_of(self, index: int) -> Any:
        """The real trainer of a new process, which is listened to."""
        trainer = super().trainer_of(index)
        train, before = trainer.train, set()

        def listening(received: Any, number: int, *more: Any, **named: Any) -> LocalResult:
            assert np.array_equal(received, self.models[number]), f"{site_id(index)} trains from another model"
            again = index == TARGET and ("attempt", number) in self.asked and number not in before
            assert not (again and TARGET in self.private), "a second noisy update of the target in a round"
            self.trainings.setdefault(index, Counter())[number] += number not in before
            before.add(number)
            self.trained[index, number] = train(received, number, *more, **named)
            return self.trained[index, number]

        object.__setattr__(trainer, "train", listening)
        return trainer

    # What befalls them

    @property
    def number(self) -> int:
        """The round that is under way or comes next."""
        return len(self.watch.lines) + 1

    def touch(self, index: int) -> None:
        self.touched[index] = self.number

    def submit(self, index: int, parcel: Parcel) -> None:
        message = parcel.message
        if self.planned.get(index) is type(message.body):
            del self.planned[index]
            message = signer(index).sign(message.envelope.session_id, b"w" * 32, message.body)
            self.liars.add(index)
            self.lies.add(message.digest())
            self.touch(index)
        super().submit(index, Parcel(message, parcel.vectors))

    def on_the_way(self, passed: Passed) -> Iterable[Passed]:
        """A source that hangs hears nothing until the target begins anew with it."""
        if passed.to in self.silent and isinstance(passed.message.body, Header | Checkpoint):
            self.silent.discard(passed.to)
        if (passed.sender, passed.to) in self.slow:
            self.late.append(UnderWay.of(passed.sender, passed.to, passed.parcel))
            return ()
        return () if {passed.sender, passed.to} & self.silent else super().on_the_way(passed)

    def expire(self) -> None:
        """What was slow arrives right after a deadline, before what was sent at it."""
        super().expire()
        self.under_way.extendleft(reversed(self.late))
        self.late.clear()
        self.slow.clear()

    def cut_off(self, index: int) -> None:
        """What was under way on a source's connection is lost."""
        self.under_way = deque(one for one in self.under_way if index not in (one.sender, one.to))
        self.late = [one for one in self.late if index not in (one.sender, one.to)]
        self.slow -= {(index, TARGET), (TARGET, index)}
        self.silent.discard(index)

    def source_comes(self, index: int) -> None:
        """As a new process, which is honest."""
        self.touch(index)
        self.disk.free()
        self.ended.pop(index, None)
        self.planned.pop(index, None)
        self._do(lambda: self.restart(index))

    def all_come_back(self) -> None:
        """All processes are new ones, and nothing of what was drawn befalls them any more."""
        self.disk.free()
        self.reached |= set(self.sources)
        for index in self.sources:
            self.sources[index] = self.source(index)
        self.planned.clear()
        self.touched.clear()
        self.target_dies()

    def mask_a_lie(self, index: int) -> None:
        """What fails SUM at ``sum``, because more is kept than there are rows, is a plausible lie in a cohort."""
        check = "RANGE" if index % 2 or self.settings.visibility is Visibility.COHORT else "SUM"
        self.sources[index] = WrongSum(self.sources[index], check)
        self.liars.add(index)
        self.masked_lie = True

    def target_dies(self) -> None:
        """Its next process takes the round up again only if no input can have left, and it asks for the same."""
        attempt = self.asked.get(("attempt", self.number), 0)
        too_late = ("released", self.number) in self.asked or attempt == ATTEMPTS or TARGET in self.private
        self.fate = None if not attempt else "lost" if too_late else attempt + 1
        self.unsure |= bool(self.ended.get(TARGET) or self.run.error)
        self.lost_in_a_row = 0
        self.disk.free()
        self.silent.clear()
        self.late.clear()
        self.slow.clear()
        run, self.opening = self.run.run_id, True
        self.start_anew()
        self.opening = False
        assert self.run.run_id == run, "another run in the folder of the first"

    # What must hold of everything that leaves a site

    def put(self, parcel: UnderWay) -> None:
        super().put(parcel)
        message, sender, to = parcel.read().message, parcel.sender, parcel.to
        body, session = message.body, message.envelope.session_id
        number = self.headers[session].round if session in self.headers else 0
        if isinstance(body, ONCE):
            name = type(body).__name__
            self.once(sender, name, session)
            began_late = isinstance(body, Advertise) and self.sent[sender, "input", number]
            assert not began_late, f"{site_id(sender)} begins anew after a release"
            if isinstance(body, RELEASES):
                self.once(sender, "input" if isinstance(body, MaskedInput | Update) else name, number)
        if isinstance(body, MaskedInput | Update):
            history = self.stores[sender].history(session, bytes.fromhex(self.run.run_id), number)
            assert history.released, "an input leaves before its fuse is burnt"
        match body:
            case Header():
                assert body.round == self.number, "a header of a round that is over"
                self.once(TARGET, "header", session, to)
                self.same(("terms", body.round), round_terms_digest(body))
                self.headers[session] = body
                self.asked["attempt", body.round] = body.attempt
                if body.at(Visibility.INDIVIDUAL):
                    self.asked["released", body.round] = True
            case ShareDelivery():
                self.asked["released", number] = True
            case Survivors():
                self.same(("lists", number), body)
                self.in_time[session] = self.inputs(session, MaskedInput)
            case Result():
                self.once(TARGET, "result", number, to)
                self.same(("result", number), body)
                assert self.watch.lines[number - 1]["status"] == "finished", "a result of a lost round"
            case Abort():
                assert sender == TARGET, f"{site_id(sender)} accuses the target: {body}"
                assert body.accused in {None} | self.liars, f"the target accuses: {body}"
            case Refusal():  # of one that was away when a result came, which too few others confirm
                assert body.key == "HEADER_CHAIN", f"{site_id(sender)} refuses {body.key}"
                self.touch(sender)

    def hand_over(self, passed: Passed) -> None:
        message, attempt = passed.message, self.attempt
        is_open = attempt is not None and message.envelope.session_id == attempt.header.envelope.session_id
        is_awaited = is_open and site_id(passed.sender) in self.run.waiting_for()
        super().hand_over(passed)
        if isinstance(message.body, Cosigned):
            self.saved.add(passed.to)
        if message.digest() in self.lies and is_awaited and not self.run.error:
            aborts = [one.message.body for one in map(UnderWay.read, self.under_way) if one.to == passed.sender]
            assert ("CONTEXT", passed.sender) in {(one.check, one.accused) for one in aborts if isinstance(one, Abort)}

    def inputs(self, session: bytes, kind: type) -> frozenset[int]:
        """Whose honest inputs of a session have arrived."""
        return frozenset(
            sender
            for sender, _, one in self.passed
            if (one.envelope.session_id, type(one.body)) == (session, kind) and one.digest() not in self.lies
        )

    def once(self, sender: int, *what: Any) -> None:
        self.sent[sender, *what] += 1
        assert self.sent[sender, *what] == 1, f"{site_id(sender)} sends twice: {what}"

    def same(self, what: Any, value: Any) -> None:
        assert self.asked.setdefault(what, value) == value, f"the target says two things: {what}"

    # What must hold of each round, and of the run

    def _do(self, step: Any) -> None:
        """What a process does next, and what must hold of a round that this ends."""
        self.steps += 1
        assert self.steps < 10_000, f"the run does not end; it waits for {self.run.waiting_for()}"
        super()._do(step)
        while len(self.models) < self.number:
            self.round_is_over(dict(self.watch.lines[len(self.models) - 1]))

    def round_is_over(self, line: dict[str, Any]) -> None:
        number, model, before = line["round"], self.run.model, self.models[line["round"]]
        assert number == self.number - 1
        assert line["model_digest"] == sha256(np.asarray(model, "<f4").tobytes()).hexdigest()
        finished = line["status"] == "finished"
        survivors = {self.roster.by_id(name).index for name in line["survivors"]}
        if finished:
            self.round_is_sound(line, survivors)
            wrong = np.max(np.abs(model - self.expected(line)))
            assert wrong < 1e-5, f"not the model of its survivors, {wrong}"
            assert self.fate != "lost", "taken up again when inputs could have left"
            self.lost_in_a_row = 0
        else:
            assert not survivors
            assert np.array_equal(model, before), "a lost round changes the model"
            self.lost_in_a_row += not self.opening
        touched = {index for index, when in self.touched.items() if when >= number - 1}
        touched |= set(range(1, self.n + 1)) - self.reached
        spared = set(range(1, self.n + 1)) - touched
        if len(spared) >= NEEDED[self.settings.visibility] and not self.masked_lie and not self.unsure:
            assert finished == (self.fate != "lost"), f"a round is lost, and only {touched} were disturbed"
            assert not finished or spared <= survivors
            assert not finished or line["attempts"] == (self.fate or 1)
        assert (self.lost_in_a_row >= MOST_LOST) <= (self.run.error is not None)
        self.models[number + 1] = model.copy()
        self.masked_lie = any(isinstance(source, WrongSum) for source in self.sources.values())
        self.unsure, self.fate = False, None

    def round_is_sound(self, line: dict[str, Any], survivors: set[int]) -> None:
        """The survivors are those whose inputs had come, and enough; who is not among them is named as dropped."""
        session, header = list(self.headers.items())[-1]
        clear = self.settings.visibility is Visibility.INDIVIDUAL
        assert (header.round, header.attempt) == (line["round"], line["attempts"])
        assert survivors == (self.inputs(session, Update) if clear else self.in_time[session])
        assert len(survivors) >= NEEDED[self.settings.visibility]
        assert set(line["dropped"]) == {site_id(index) for index in set(header.participants) - survivors}

    def expected(self, line: dict[str, Any]) -> Any:
        """The model by the plain definition of the rule, over the line's survivors, from what they trained."""
        number, before, target = line["round"], self.models[line["round"]], self.trained[TARGET, line["round"]]
        groups = [[self.roster.by_id(name).index for name in seen["members"]] for seen in line["seen"]]
        if self.settings.visibility is Visibility.SUM:  # each source evaluates the rule itself
            groups = [[index] for group in groups for index in group]
        results = {index: self.trained[index, number] for group in groups for index in group}
        aligned = {
            index: align_update(
                one.update,
                target_steps=target.steps,
                source_steps=one.steps,
                learning_rate_ratio=target.learning_rate / one.learning_rate,
            )
            for index, one in results.items()
        }
        samples = {index: one.samples for index, one in results.items()}
        g_t = target.update.astype(np.float64)
        sites = Trained(before, g_t, g_t[None], samples, {}, aligned, {}, {}, ())
        return before + update_by_definition(RULE, sites, groups)

    def end(self) -> None:
        """The run goes on until its process has nothing left to do, and says why."""
        while self.under_way or not (self.run.done or TARGET in self.ended):
            self._do(self.step)
        error, statuses = self.ended.get(TARGET) or self.run.error, self.watch.statuses
        if error is None:
            assert len(statuses) == ROUNDS
            assert "finished" in statuses
        elif not isinstance(error, AuditError):
            touched = {index for index, when in self.touched.items() if when >= self.number - 1}
            too_few = self.n - len(touched | set(self.sources) - self.reached) < NEEDED[self.settings.visibility]
            assert isinstance(error, ProtocolError | QuorumLost | RunEnded)
            all_lost = statuses == ["lost"] * ROUNDS
            assert too_few or self.lost_in_a_row == MOST_LOST or all_lost, f"the run ends for no reason: {error}"

    def agrees(self) -> None:
        """Who is there knows that the run is over; what operators read, the logs and the ledgers agree with it."""
        assert len(self.watch.lines) == ROUNDS
        for index in self.reached - self.silent - self.liars:
            assert self.sources[index].standing.goodbye is not None, f"{site_id(index)} waits for ever"
        names = {site_id(index) for index in self.liars}
        unnamed = {""} if names else set()  # of a lie that masks hide
        named = [note for note in self.watch.filed if note.alarm + note.abort and note.peer not in names | unnamed]
        assert not named, f"an alarm of an honest source, or of nothing: {named[0]}"
        told = [error for alarms in self.watch.alarms.values() for error in alarms]
        assert not [str(error) for error in told if isinstance(error, FaultyAggregatorError) and error.blames]
        assert all(self.is_charged(index) for index in self.private)
        keys = {entry.site_id: entry.signing_key for entry in self.roster.entries}
        for index in range(self.n + 1):
            assert is_all_logged(self, index), f"{site_id(index)} did not write everything down"
            entries = entries_of(self, index)
            assert {name for one in entries for name in one.facts.get("accused", [])} <= names
            for log in logs_below(self.logs_of(index)) if index in self.saved else ():
                name = LogName("study", log.party, log.run)
                found = verify_log(log.folder, name, keys, witnesses_needed=0).finding
                assert found is None, f"{site_id(index)}: {found}"
        for one in reconcile_folder(self.folder).outcome.findings:
            is_repeated = one.kind == "never-sent" and self.repeated & set(one.accused)
            died_uncosigned = one.kind == "unverified-log" and "missing-cosignature" in one.what
            if one.kind == "unverified-log" and "there is no checkpoint" in one.what:
                died_uncosigned = not {site_id(index) for index in self.saved} & set(one.accused)
            assert is_repeated or died_uncosigned or set(one.accused) & names, f"{one.kind} {one.accused}: {one.what}"

    def is_charged(self, index: int) -> bool:
        """Every release was paid for, and a process pays once for a round, however often it is tried."""
        charged = Counter(number for number, _ in self.charged(index))
        released = {number for number in range(1, ROUNDS + 1) if self.sent[index, "input", number]}
        return released <= charged.keys() and charged <= self.trainings.get(index, Counter())
