"""Whole sessions under an adversary who is drawn: whatever it does, what is claimed of the protocol holds.

``make test`` repeats the same examples every time; ``make test-deep`` draws many others. A failure prints the steps
that lead to it. Both machines have to find known attacks when one check is taken away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest
from depth import DEEP, at_depth
from equivocation_machine import EquivocationMachine
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from session_machine import SessionMachine
from session_network import SessionNetwork, received
from session_sites import Terms, Violation

from securefda.audit.witness import CheckpointError, Witness
from securefda.protocol import aggregator_session, header_checks, masking
from securefda.protocol import source_session as src
from securefda.protocol.aggregator_session import AggregatorSession
from securefda.protocol.encoding import N_STATISTICS
from securefda.protocol.messages import Advertise, Checkpoint, ShareBundle, Survivors, Visibility
from securefda.site.policy import verdict
from securefda.source import source_round, source_run
from securefda.source.source_site import SourceSite
from securefda.source.source_store import SourceStore

SESSIONS = at_depth(4, 300)
"""How many sessions are played against each adversary."""


def fuzz(machine: type[SessionMachine | EquivocationMachine], examples: int, *phases: Phase) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=machine.steps,
            phases=phases or tuple(Phase),
            derandomize=not DEEP,
            database=None,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_sums_are_exact_and_liars_accused_whatever_the_network_and_the_liars_do() -> None:
    events = SessionMachine.events = Counter()
    fuzz(SessionMachine, SESSIONS)
    # Hypothesis draws from the constants of all modules that are imported, so that these counts differ between runs of
    # the tests: what is asked for is far below what was seen, and below what a network that opens nothing would give.
    assert events["opened"] > SESSIONS
    assert sum(count for event, count in events.items() if event.startswith("lie in")) > 0
    assert len([event for event in events if event.startswith(("alarm", "end"))]) > 1
    if DEEP:
        assert min(events["opened sum beside 1"], events["opened cohort beside 1"]) > 0
        assert sum(count for event, count in events.items() if event.startswith("lie in")) > 10
        assert len([event for event in events if event.startswith(("alarm", "end"))]) > 5


def test_no_sum_over_too_few_opens_whatever_a_lying_aggregator_tells_whom() -> None:
    events = EquivocationMachine.events = Counter()
    fuzz(EquivocationMachine, SESSIONS)
    assert events["sum opens"] > SESSIONS
    if DEEP:
        assert events["heard Abort"] > 10


# Each control takes away one thing that the claims rest on, and a machine has to find what follows.


class OneColluderMore(EquivocationMachine):
    """The aggregator has one source more than policies expect."""

    extra = 1


class SmallCohorts(EquivocationMachine):
    """Five sources in a cohort of two and one of three, which open over two."""

    may_be_crude = False

    @staticmethod
    def terms_with(max_colluders: int) -> list[Terms]:
        return [Terms(5, 0, 1, 0, 3, 2)]


class SmallSums(EquivocationMachine):
    """Two sources in a sum that opens over two, beside a cohort of three."""

    may_be_crude = False

    @staticmethod
    def terms_with(max_colluders: int) -> list[Terms]:
        return [Terms(5, 2, 1, 0, 3, 2)]


class HalfAreEnough(EquivocationMachine):
    """The aggregator asks for thresholds at which two views of a session both have enough answers."""

    may_be_crude = False

    @staticmethod
    def terms_with(max_colluders: int) -> list[Terms]:
        return [Terms(5, 5, 1, 1, 3)]


def one_colluder_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the machine differs."""


def unsound_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source takes any threshold."""
    for module in (header_checks, verdict):
        monkeypatch.setattr(module, "threshold_is_sound", lambda *_: True)


def unseen_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A survivor need not show that it masked in the cohort in which others count it."""
    monkeypatch.setattr(src, "check_inputs", lambda *_, **__: None)


def signing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that has signed the lists goes on waiting for lists."""
    real = source_run.continue_round

    def go_on(site: SourceSite, current: source_round.SourceRound, message: Any) -> Any:
        following, answer = real(site, current, message)
        if isinstance(message.body, Survivors):
            following = replace(current, phase=replace(current.phase, secrets=following.phase.secrets))  # type: ignore
        return following, answer

    monkeypatch.setattr(source_run, "continue_round", go_on)


def fuse_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release is not written down."""
    monkeypatch.setattr(SourceStore, "burn_fuse", lambda *_: None)


def secrets_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is erased when a session dies."""
    monkeypatch.setattr(src, "erase", lambda _: None)


def inputs_that_count_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The opened sum holds every input twice, within the range."""
    real = masking.unmask

    def unmask(total: Any, **seeds: Any) -> None:
        real(total, **seeds)
        total[:-N_STATISTICS] *= 2

    monkeypatch.setattr(aggregator_session, "unmask", unmask)


def names_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The aggregator names another source than the one it means."""

    def name(session: AggregatorSession, index: int) -> str:
        return next(entry.site_id for entry in session.roster.sources if entry.index != index)

    monkeypatch.setattr(AggregatorSession, "name", name)


def nobody_waits_for_news(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint that was shown before its receiver had cosigned the last one is taken for a lie."""
    real = Witness._is_continued

    def strict(self: Witness, shown: Checkpoint, head: Any) -> bool:
        if shown.old_size != (self._memory.cosigned(head.origin) or (0, b""))[0]:
            raise CheckpointError("CHECKPOINT_OLD_SIZE", "another one")
        return real(self, shown, head)

    monkeypatch.setattr(Witness, "_is_continued", strict)


CONTROLS: list[tuple[type[SessionMachine | EquivocationMachine], Callable[[pytest.MonkeyPatch], None], str]] = [
    (OneColluderMore, one_colluder_more, "hides it among|both secrets"),
    (HalfAreEnough, unsound_thresholds, "both secrets"),
    (SmallCohorts, unseen_inputs, "hides it among"),
    (SmallSums, unseen_inputs, "hides it among"),
    (EquivocationMachine, signing_again, "second SurvivorSignature"),
    (EquivocationMachine, fuse_that_stays, "releases twice in a round"),
    (EquivocationMachine, secrets_that_stay, "secrets in Awaiting"),
    (SessionMachine, inputs_that_count_twice, "the sum over .* is wrong"),
    (SessionMachine, names_mixed_up, "accused"),
    (SessionMachine, nobody_waits_for_news, "CHECKPOINT_OLD_SIZE|of logs"),
]


@pytest.mark.parametrize(
    ("machine", "break_it", "found"), CONTROLS, ids=[f"{one.__name__} {where.__name__}" for where, one, _ in CONTROLS]
)
def test_machine_finds_what_follows_from(
    monkeypatch: pytest.MonkeyPatch,
    machine: type[SessionMachine | EquivocationMachine],
    break_it: Callable[[pytest.MonkeyPatch], None],
    found: str,
) -> None:
    break_it(monkeypatch)
    with pytest.raises(Violation, match=found):
        fuzz(machine, 2000, Phase.generate)


# What the machine found, in its shortest form.


def until(net: SessionNetwork, kind: type) -> None:
    """Go on until a message of this kind is under way from every source."""
    while not all(queue and isinstance(received(queue[0]).message.body, kind) for queue in net.up.values()):  # type: ignore[union-attr]
        net.wave(net.indices)


def test_a_source_that_left_in_r1_is_sent_nothing_of_the_session_when_it_is_back() -> None:
    with closing(SessionNetwork(Terms(4, 4, 1, 0, 3), (), Counter())) as net:
        until(net, ShareBundle)
        net.deliver_from(0, upwards=True)
        net.quiet = False
        net.at_target(lambda: net.run.left(0))
        net.at_source(0, net.sources[0].restart)
        net.finish()


@pytest.mark.parametrize("code", [0, 251, 252, 255])
def test_sum_is_that_of_all_parts_scaled_to_the_caps_of_a_row_that_is_not_true(code: int) -> None:
    """The network judges every opened sum by the caps that follow from the reports as they were said."""
    terms, liar = Terms(5, 2, 1, 0, 3, 2), 3
    assert terms.level_of(liar) is Visibility.SUM
    with closing(SessionNetwork(terms, (liar,), Counter())) as net:
        until(net, Advertise)
        net.quiet, net.liars[liar].claim = False, bytes([code])
        net.finish()
        assert net.events["capped"] == 3  # honest reports are rounded down as well
        assert net.finished == [frozenset(net.indices)] * 3


def none_accused(net: SessionNetwork) -> bool:
    return not any(source.alarms for source in net.sources.values()) and not net.run._cosigners.faulty


def test_a_source_that_is_shown_two_checkpoints_before_it_answers_accuses_nobody() -> None:
    with closing(SessionNetwork(Terms(3, 3, 1, 1, 3), (), Counter())) as net:
        net.quiet = False
        net.expire()  # nobody has cosigned in time: the run ends, and its last checkpoint is shown
        assert [len(queue) for queue in net.down.values()] == [3, 3, 3]  # the schedule, and two checkpoints
        net.finish()
        assert none_accused(net)
        assert net.run._cosigners.cosigned == set(net.indices)


def test_a_source_that_is_shown_one_checkpoint_twice_takes_part_in_every_round() -> None:
    with closing(SessionNetwork(Terms(3, 3, 1, 1, 3), (), Counter())) as net:
        net.at_target(lambda: net.run.left(0))
        net.at_target(lambda: net.run.returned(0))
        assert len(net.down[0]) == 3  # the schedule, and one checkpoint twice
        net.finish()
        assert none_accused(net)
        assert net.finished == [frozenset(net.indices)] * 3


def test_a_source_that_answers_a_round_late_is_in_the_next_and_accused_of_nothing() -> None:
    with closing(SessionNetwork(Terms(4, 4, 1, 0, 3), (), Counter())) as net:
        net.quiet = False
        others = net.indices[1:]
        for _ in range(40):
            if len(net.finished) == 1 and len(net.down[0]) == 2:
                break
            if not any(net.up[index] or net.down[index] for index in others):
                net.expire()
            net.wave(others)
        net.finish()
        assert none_accused(net)
        assert net.finished == [frozenset(others), frozenset(net.indices), frozenset(net.indices)]
