"""The aggregator's run as a table: what each report does in each phase, and which phase follows which."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rounds_federation import TARGET, AnySigned, Federation, signer, until

from securefda.aggregator.phases import (
    AskingCosigners,
    AttemptOver,
    AwaitingCosignatures,
    BetweenRounds,
    CatchingUp,
    Closing,
    Ended,
    Ending,
    Gathering,
    InAttempt,
    NotOpened,
    Opening,
    Phase,
)
from securefda.aggregator.run import AggregatorRun
from securefda.audit.log_files import AuditError
from securefda.errors import RunEnded
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Abort,
    Advertise,
    Checkpoint,
    Cosigned,
    Goodbye,
    Join,
    Parcel,
    Result,
    Send,
    Step,
    Unmask,
    Visibility,
)

VICTIM = 2
"""With three sources, fewer than three cannot make an attempt."""
Change = tuple[type[Phase], type[Phase]]


def no_cosigning_with_the_victim(sender: int, to: int, message: AnySigned) -> AnySigned | None:
    return None if VICTIM in (sender, to) and isinstance(message.body, Checkpoint | Cosigned) else message


def until_phase(federation: Federation, phase: type[Phase]) -> Federation:
    while not isinstance(federation.run.phase, phase):
        assert federation.step(), f"the run ends before {phase.__name__}"
    return federation


def at_rest(folder: Path, phase: type[Phase]) -> Federation:
    """A run that waits in a phase; where it waits for cosignatures or joins, for those of the victim alone."""
    federation = Federation(folder, rounds=1 if phase in (Closing, Ended) else 2)
    if phase is NotOpened:
        return federation
    if phase is Gathering:
        federation.link = no_cosigning_with_the_victim
    federation.open()
    if phase is Gathering:
        federation.deliver_all()
        return federation
    if phase is InAttempt:
        return until_phase(federation, InAttempt)
    until_phase(federation, BetweenRounds).deliver_all()
    federation.link = no_cosigning_with_the_victim
    if phase is not BetweenRounds:
        federation.expire()
        federation.deliver_all()
    if phase in (CatchingUp, AwaitingCosignatures, Ended):
        federation.expire()
    if phase is AwaitingCosignatures:
        federation.expire()
    return federation


def join(federation: Federation) -> list[Send]:
    digest = federation.run._site.trainer.architecture_digest
    body = Join(digest, Visibility.SUM, metrics=True, known=0)
    return federation.run.receive(Parcel(signer(VICTIM).sign(NO_SESSION, NO_CONTEXT, body)))


def cosign(federation: Federation) -> list[Send]:
    """The victim shows its log and cosigns the aggregator's; before there is a run, it can only send what is wrong."""
    run = federation.run
    if not run.opened:
        return run.receive(Parcel(signer(VICTIM).sign(NO_SESSION, NO_CONTEXT, Cosigned(1, "no signature"))))
    answers = federation.sources[VICTIM].handle(run._site.witness.show(VICTIM))
    assert {type(answer.message.body) for answer in answers} == {Checkpoint, Cosigned}
    return [send for answer in answers for send in run.receive(answer)]


def abort(federation: Federation) -> list[Send]:
    """The victim aborts the attempt that is under way, or one that never was."""
    session, context = NO_SESSION, NO_CONTEXT
    if federation.attempt is not None:
        header = federation.attempt.header
        session, context = header.envelope.session_id, header.digest()
    return federation.run.receive(Parcel(signer(VICTIM).sign(session, context, Abort(Step.SHARES, "DECRYPT", None))))


EVENTS: dict[str, Callable[[Federation], list[Send]]] = {
    "open": lambda federation: federation.run.open(),
    "join": join,
    "cosign": cosign,
    "abort": abort,
    "left": lambda federation: federation.run.left(VICTIM),
    "replaced": lambda federation: federation.run.replaced(VICTIM, "it is new"),
    "returned": lambda federation: federation.run.returned(VICTIM),
    "misbehaved": lambda federation: federation.run.misbehaved(VICTIM, "WIRE", "too long"),
    "expire": lambda federation: federation.run.expire(),
    "fail": lambda federation: federation.run.fail(RunEnded("the disk is full", hint="free space")),
}
STAYS, RAISES = "stays", "raises"
Outcome = type[Phase] | str
OUTCOMES: dict[type[Phase], dict[str, Outcome]] = {
    NotOpened: {"open": Gathering, "join": RAISES, "fail": RAISES},
    AskingCosigners: {
        "open": RAISES,
        "cosign": CatchingUp,  # the last one, so that the target trains at once
        "left": Gathering,
        "expire": CatchingUp,
        "fail": Closing,
    },
    CatchingUp: {"open": RAISES, "expire": AwaitingCosignatures, "fail": Closing},
    AwaitingCosignatures: {
        "open": RAISES,
        "cosign": InAttempt,
        "left": Gathering,
        "expire": Gathering,
        "fail": Closing,
    },
    Gathering: {"open": RAISES, "cosign": CatchingUp, "expire": Closing, "fail": Closing},
    InAttempt: {
        "open": RAISES,
        "join": InAttempt,  # the next one, as with the two below: every source is still there
        "abort": InAttempt,
        "expire": InAttempt,
        "left": Gathering,
        "replaced": Gathering,
        "fail": Closing,
    },
    BetweenRounds: {"open": RAISES, "expire": AskingCosigners, "fail": Closing},
    Closing: {"open": RAISES, "cosign": Ended, "left": Ended, "expire": Ended, "fail": Ended},
    Ended: {"open": RAISES},
}
"""What an event leads to; where none is named, the run stays in the very phase."""


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("phase", OUTCOMES, ids=lambda phase: phase.__name__)
def test_each_event_in_each_phase_has_its_outcome(tmp_path: Path, phase: type[Phase], event: str) -> None:
    federation = at_rest(tmp_path, phase)
    before = federation.run.phase
    assert type(before) is phase
    outcome = OUTCOMES[phase].get(event, STAYS)
    if outcome == RAISES:
        with pytest.raises((RuntimeError, AuditError)):
            EVENTS[event](federation)
    else:
        EVENTS[event](federation)
    after = federation.run.phase
    if isinstance(outcome, str):
        assert after is before
    else:
        assert type(after) is outcome
        assert after is not before
    federation.close()


@pytest.mark.parametrize("phase", OUTCOMES, ids=lambda phase: phase.__name__)
def test_what_a_driver_reads_follows_from_the_phase(tmp_path: Path, phase: type[Phase]) -> None:
    federation = at_rest(tmp_path, phase)
    run = federation.run
    waits_for = {
        AskingCosigners: ("source-2",),
        CatchingUp: ("source-2",),
        AwaitingCosignatures: ("source-2",),
        Gathering: ("source-2",),
        InAttempt: ("source-1", "source-2", "source-3"),
        Closing: ("source-2",),
    }
    assert run.opened == (phase is not NotOpened)
    assert run.done == (phase is Ended)
    assert (run.deadline is None) == (phase in (NotOpened, Ended))
    assert run.error is None
    assert run.waiting_for() == waits_for.get(phase, ())
    run.fail(error := RunEnded("the disk is full", hint="free space")) if phase is Closing else None
    assert run.error is (error if phase is Closing else None)
    federation.close()


# Every transition, in a run.


def failing(phase: type[Phase]) -> Callable[[Path], Federation]:
    """The driver meets an error while the run is in a phase."""

    def scenario(folder: Path) -> Federation:
        federation = at_rest(folder, phase)
        federation.at_target(lambda: federation.run.fail(RunEnded("the disk is full", hint="free space")))
        return federation.go()

    return scenario


def undisturbed(folder: Path) -> Federation:
    return Federation(folder, rounds=2).open().go()


def target_alone(folder: Path) -> Federation:
    return Federation(folder, rule="target_only", rounds=2).open().go()


def a_silent_source(folder: Path) -> Federation:
    """One whose cosignature does not come holds a round up until the deadline."""
    federation = at_rest(folder, AwaitingCosignatures)
    federation.expire()
    return federation.go()


def nobody_connected(folder: Path) -> Federation:
    federation = at_rest(folder, BetweenRounds)
    for index in (1, 2, 3):
        federation.kill(index)
    return federation.go()


def a_lost_attempt(folder: Path) -> Federation:
    federation = at_rest(folder, InAttempt)
    federation.kill(VICTIM)
    federation.restart(VICTIM)
    return federation.go()


def another_question(folder: Path) -> Federation:
    """The second attempt would ask for something else, as if training at the target had not given the same again."""
    federation = Federation(folder, rounds=2)
    until(federation.open(), TARGET, Advertise)
    current = federation.round_in_progress
    assert current is not None
    assert current.request is not None
    current.request = replace(current.request, terms=bytes(32))
    federation.kill(VICTIM)
    federation.restart(VICTIM)
    return federation.go()


def three_lost_rounds(folder: Path) -> Federation:
    federation = Federation(folder, rounds=9)
    federation.link = lambda sender, to, message: None if isinstance(message.body, Unmask) else message
    return federation.open().go()


def killed_before_the_last_word(folder: Path) -> Federation:
    federation = Federation(folder, rounds=1)
    until(federation.open(), 1, Result)
    return federation.restart_aggregator().go()


def started_again_when_complete(folder: Path) -> Federation:
    return Federation(folder, rounds=1).open().go().restart_aggregator().go()


def no_log(folder: Path) -> Federation:
    """The log cannot be written any more, not even the end."""
    federation = at_rest(folder, InAttempt)
    federation.run._site.witness.journal.close()
    federation.at_target(lambda: federation.run.fail(RunEnded("the disk is full", hint="free space")))
    assert federation.run.done
    return federation


def no_store_while_closing(folder: Path) -> Federation:
    """Cosignatures of the end cannot be kept: they are not asked for again, and the first cause counts."""
    federation = at_rest(folder, InAttempt)
    federation.run.fail(first := RunEnded("the disk is full", hint="free space"))
    assert isinstance(federation.run.phase, Closing)
    sends = federation.run.fail(RunEnded("the disk is still full", hint="free space"))
    assert {type(send.parcel.message.body) for send in sends} == {Goodbye}
    assert federation.run.error is first
    return federation


SCENARIOS: dict[Change, Callable[[Path], Federation]] = {
    (NotOpened, Opening): undisturbed,
    (Opening, Gathering): undisturbed,
    (Opening, BetweenRounds): target_alone,
    (Opening, Ending): killed_before_the_last_word,
    (Opening, Ended): started_again_when_complete,
    (AskingCosigners, CatchingUp): a_silent_source,
    (AskingCosigners, Gathering): undisturbed,
    (AskingCosigners, Ending): failing(AskingCosigners),
    (CatchingUp, AwaitingCosignatures): undisturbed,
    (CatchingUp, Ending): failing(CatchingUp),
    (AwaitingCosignatures, Gathering): a_silent_source,
    (AwaitingCosignatures, Ending): failing(AwaitingCosignatures),
    (Gathering, CatchingUp): undisturbed,
    (Gathering, InAttempt): undisturbed,
    (Gathering, AttemptOver): another_question,
    (Gathering, Ending): nobody_connected,
    (InAttempt, InAttempt): undisturbed,
    (InAttempt, AttemptOver): undisturbed,
    (InAttempt, Ending): failing(InAttempt),
    (AttemptOver, Gathering): a_lost_attempt,
    (AttemptOver, BetweenRounds): undisturbed,
    (AttemptOver, Ending): three_lost_rounds,
    (BetweenRounds, AskingCosigners): undisturbed,
    (BetweenRounds, Gathering): nobody_connected,
    (BetweenRounds, BetweenRounds): target_alone,
    (BetweenRounds, Ending): undisturbed,
    (Ending, Closing): undisturbed,
    (Ending, Ended): no_log,
    (Closing, Ended): no_store_while_closing,
}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The changes of phase in each scenario; the runs do what they do without a record of it."""
    enter, changes = AggregatorRun._enter, {}

    def recording(run: AggregatorRun, phase: Phase) -> None:
        before = run.phase
        enter(run, phase)
        changes[scenario].append((before, run.phase))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AggregatorRun, "_enter", recording)
        for scenario in dict.fromkeys(SCENARIOS.values()):
            changes[scenario] = []
            scenario(tmp_path_factory.mktemp("scenario")).close()
    return changes


def named(change: Change) -> str:
    return "-".join(phase.__name__ for phase in change)


@pytest.mark.parametrize("change", SCENARIOS, ids=named)
def test_a_real_run_goes_through_each_transition(played: Any, change: Change) -> None:
    assert change in {(type(left), type(entered)) for left, entered in played[SCENARIOS[change]]}


def test_no_run_takes_another_transition(played: Any) -> None:
    taken = {(type(left), type(entered)) for changes in played.values() for left, entered in changes}
    assert taken == SCENARIOS.keys()
