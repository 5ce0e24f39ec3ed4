"""T07: no lists of survivors make an honest source give away both kinds of shares of one owner.

Lists in which one id stands twice, with shares of both kinds as the answer, were a fault of an implementation of secure
aggregation in use elsewhere; here it cannot happen, and the control shows what it would have cost.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from depth import at_depth

from securefda.errors import FaultyAggregatorError
from securefda.protocol import source_session as steps
from securefda.protocol.agreement import SharePair
from securefda.protocol.messages import (
    Consistency,
    MaskedInput,
    MasterShare,
    SelfMaskShare,
    Signed,
    Survivor,
    Survivors,
    SurvivorSignature,
    Unmask,
)
from securefda.protocol.secret import Secret
from securefda.protocol.transcript import survivors_digest
from securefda.transport import wire
from threat_model.adversaries.base import MaliciousAggregator
from threat_model.adversaries.sources import ColludingSource
from threat_model.adversaries.survivor_lists import InBothLists, fuzzed_lists
from threat_model.scores import NOTHING_LEARNT_COSINE, cosine, is_recovered
from threat_model.sites import TARGET, signer_of
from threat_model.stage import MakesStage
from threat_model.switches import ONE_KIND_PER_OWNER, ONE_SHARE_PER_OWNER, Switch, checks_off, switched_off

VICTIM, ALL = 2, [1, 2, 3, 4, 5]
MESSAGES, SEED = at_depth(2_000, 10_000), 7
LIST_CHECKS = ("SURVIVOR_REPEAT", "SURVIVOR_OVERLAP", "SURVIVOR_UNION", "SURVIVOR_SELF", "SURVIVOR_QUORUM")


@pytest.mark.threat("T07")
def test_one_id_in_both_lists_of_the_unmask_step_is_refused_by_every_source(staged: MakesStage) -> None:
    stage = staged(aggregator=partial(InBothLists, victim=VICTIM)).play()
    for index in ALL:
        assert stage.alarms(index) == ["SURVIVOR_OVERLAP"]
        assert stage.said(index, SurvivorSignature) == []
        assert stage.said(index, Unmask) == []
    assert abs(cosine(stage.adversary.attack(), stage.update(VICTIM))) < NOTHING_LEARNT_COSINE


@pytest.mark.threat("T07")
@pytest.mark.control
def test_one_id_in_both_lists_opens_its_input_where_an_owner_may_have_both_kinds(staged: MakesStage) -> None:
    stage = staged(aggregator=partial(InBothLists, victim=VICTIM))
    with switched_off(ONE_KIND_PER_OWNER, roster=stage.roster):
        stage.play()
    assert is_recovered(stage.adversary.attack(), stage.update(VICTIM), stage.precision(VICTIM))


# Lists and answers are two places of that one mitigation: either is enough.


@pytest.mark.threat("T07")
def test_one_id_in_both_lists_opens_nothing_though_answers_could_hold_both_kinds(staged: MakesStage) -> None:
    stage = staged(aggregator=partial(InBothLists, victim=VICTIM))
    with switched_off(ONE_SHARE_PER_OWNER, roster=stage.roster):
        stage.play()
    assert [stage.alarms(index) for index in ALL] == [["SURVIVOR_OVERLAP"]] * 5
    assert not any(stage.said(index, Unmask) for index in ALL)


@pytest.mark.threat("T07")
def test_one_id_in_both_lists_has_no_answer_though_lists_could_overlap(staged: MakesStage) -> None:
    stage = staged(aggregator=partial(InBothLists, victim=VICTIM))
    with (
        switched_off(checks_off("SURVIVOR_OVERLAP"), roster=stage.roster),
        pytest.raises(ValueError, match="one share per owner"),
    ):
        stage.play()
    assert not any(stage.said(index, Unmask) for index in ALL)
    assert abs(cosine(stage.adversary.attack(), stage.update(VICTIM))) < NOTHING_LEARNT_COSINE


class AtTheLists(MaliciousAggregator):
    """Stops before R3, with every source waiting for its lists."""

    def survivors_for(self, index: int) -> Survivors | None:
        self.phases = {one: source.phase for one, source in self.colluders.items()}
        return None


class WaitingSources:
    """Five sources of one session that all wait for the lists: the real phases, as often as they are needed."""

    def __init__(self, staged: MakesStage) -> None:
        stage = staged(aggregator=AtTheLists, sources=dict.fromkeys(ALL, ColludingSource)).play()
        adversary = stage.adversary
        self.roster = stage.roster
        self.phases: dict[int, steps.AwaitingSurvivors] = adversary.phases
        self.digests = {index: signed.body.digest for index, signed in adversary.heard.inputs.items()}
        self._session_id = adversary.heard.session_id
        self._length_bytes = adversary.heard.inputs[1].body.length_bytes
        self._shares = {i: one.secrets_of(self._session_id).shares for i, one in adversary.colluders.items()}

    def fresh(self, index: int) -> steps.AwaitingSurvivors:
        """The phase of a source as it is before the lists come."""
        shares = {
            owner: SharePair(Secret(pair.master.reveal()), Secret(pair.self_secret.reveal()))
            for owner, pair in self._shares[index].items()
        }
        phase = self.phases[index]
        return replace(phase, secrets=replace(phase.secrets, shares=shares))

    def signed(self, sender: int, body: object) -> Signed:
        """A message as it arrives."""
        message = signer_of(sender).sign(self._session_id, self.phases[1].ctx2, body)
        return wire.decode_signed(wire.encode_signed(message))

    def inputs_of(self, lists: Survivors) -> tuple[Signed[MaskedInput], ...]:
        """An input of everyone on the lists, with the digest that they name."""
        named = [(item.index, MaskedInput(item.input_digest, self._length_bytes)) for item in lists.survivors]
        return tuple(self.signed(index, body) for index, body in named)

    def answer(self, phase: steps.AwaitingSurvivors, lists: Survivors) -> Unmask:
        """Return what the source gives away if all on the lists sign whatever the aggregator wants."""
        lists = replace(lists, reports_digest=phase.reports_digest)
        waiting, _ = steps.receive_survivors(phase, self.signed(TARGET, lists))
        view = SurvivorSignature(survivors_digest(phase.ctx2, lists))
        signers = sorted({item.index for item in lists.survivors} & set(ALL))
        consistency = Consistency(tuple(self.signed(index, view) for index in signers), self.inputs_of(lists))
        _, answer = steps.receive_consistency(waiting, self.signed(TARGET, consistency))
        return answer.body


def gives_too_much(answer: Unmask, holder: int) -> bool:
    """Whether an answer holds both kinds for one owner, or the master of the one who answers."""
    of_self = {share.owner for share in answer.shares if isinstance(share, SelfMaskShare)}
    of_master = {share.owner for share in answer.shares if isinstance(share, MasterShare)}
    return bool(of_self & of_master) or holder in of_master or len(of_self) + len(of_master) < len(answer.shares)


@pytest.mark.threat("T07")
def test_of_thousands_of_fuzzed_lists_none_gets_both_share_kinds_of_one_owner(staged: MakesStage) -> None:
    sources, numbers, refused, answered = WaitingSources(staged), Random(SEED), Counter(), 0
    phases = {index: sources.fresh(index) for index in ALL}
    for _ in range(MESSAGES):
        index, lists = numbers.choice(ALL), fuzzed_lists(numbers, sources.digests)
        try:
            answer = sources.answer(phases[index], lists)
        except FaultyAggregatorError as error:
            refused[error.check] += 1
            continue
        assert not gives_too_much(answer, index)
        assert {share.owner for share in answer.shares} == set(ALL)
        answered += 1
        phases[index] = sources.fresh(index)
    assert set(refused) == set(LIST_CHECKS)
    assert min(refused.values()) > MESSAGES / 100
    assert answered > MESSAGES / 20
    # What was refused changed nothing: every source still accepts the truth.
    truth = Survivors(tuple(Survivor(index, digest) for index, digest in sources.digests.items()), ())
    assert all(len(sources.answer(phases[index], truth).shares) == 5 for index in ALL)


def answers_with_too_much(staged: MakesStage, switch: Switch) -> int:
    """Return how many of a thousand fuzzed lists get more than they should."""
    sources, numbers, too_much = WaitingSources(staged), Random(SEED), 0
    with switched_off(switch, roster=sources.roster):
        for _ in range(1000):
            index, lists = numbers.choice(ALL), fuzzed_lists(numbers, sources.digests)
            try:
                too_much += gives_too_much(sources.answer(sources.fresh(index), lists), index)
            except FaultyAggregatorError:
                continue
            except ValueError as error:
                if str(error) != "one share per owner":
                    raise
    return too_much


@pytest.mark.threat("T07")
@pytest.mark.parametrize("half", [checks_off("SURVIVOR_OVERLAP"), ONE_SHARE_PER_OWNER], ids=["lists", "answers"])
def test_fuzzed_lists_get_no_answer_with_both_share_kinds_though_one_half_is_off(
    staged: MakesStage, half: Switch
) -> None:
    assert answers_with_too_much(staged, half) == 0


@pytest.mark.threat("T07")
@pytest.mark.control
def test_fuzzed_lists_get_both_share_kinds_where_an_owner_may_have_both(staged: MakesStage) -> None:
    assert answers_with_too_much(staged, ONE_KIND_PER_OWNER) > 40
