"""T33: what a policy forbids the source itself refuses, by the name of the key, and nothing leaves it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefda.protocol.messages import (
    Advertise,
    AttentionTerms,
    Granularity,
    Header,
    KeyAgreement,
    MaskedInput,
    Refusal,
    SourcesKeep,
    TargetTerms,
    Update,
    Visibility,
)
from securefda.settings import known_keys
from securefda.site.policy import SourcePolicy, default_policy, default_policy_text, load_policy
from securefda.transport.in_memory import Passed
from threat_model.adversaries.above_policy import AbovePolicy, Change, in_clear
from threat_model.sites import CLIP, MAX_SAMPLES, N_PARAMS
from threat_model.stage import MakesStage, Stage
from threat_model.switches import POLICY, switched_off

VICTIM = 2


@dataclass(frozen=True)
class Case:
    """A header above one key: what the victim's policy says, and how its header differs from everyone's."""

    key: str
    change: Change
    policy: dict[str, Any] = field(default_factory=dict)
    policy_alone: bool = True
    """Whether nothing but the policy stands in the way."""

    def make_policy(self) -> SourcePolicy:
        permits = default_policy("sum", 2, 0, 2, clip=CLIP, max_samples=MAX_SAMPLES)
        return changed(permits, self.policy)


def changed(policy: SourcePolicy, values: Mapping[str, Any]) -> SourcePolicy:
    """A policy with other values of these dotted keys; nothing validates the whole."""
    for key, value in values.items():
        table, _, leaf = key.replace("-", "_").rpartition(".")
        new = getattr(policy, table).model_copy(update={leaf: value}) if table else value
        policy = policy.model_copy(update={table or leaf: new})
    return policy


def asks(**changes: Any) -> Change:
    return lambda header, _: replace(header, **changes)


def clipped_at(clip: float) -> Change:
    return lambda header, _: replace(
        header, layers=tuple(replace(layer, clip=clip, range=clip) for layer in header.layers)
    )


def ruled(**changes: Any) -> Change:
    return lambda header, _: replace(header, rule=replace(header.rule, **changes))


def rated(learning_rate: float) -> Change:
    return lambda header, _: replace(ruled(rule="fedgp")(header, _), target=TargetTerms(4, learning_rate, bytes(32)))


def with_norms(**changes: Any) -> Change:
    return lambda header, _: replace(header, norm_cap=replace(header.norm_cap, **changes))


def all_in_cohorts(header: Header, _: int) -> Header:
    levels = (Visibility.COHORT,) * len(header.levels)
    return replace(header, levels=levels, cohort_size=4, cohort_quorum=3, sum_quorum=0, norm_cap=None)


def unfiltered(header: Header, index: int) -> Header:
    return replace(ruled(rule="fedgp", filter=False)(header, index), target=TargetTerms(4, 0.1, bytes(32)))


def attending(bound: float) -> Change:
    terms = AttentionTerms("first-order", 0.01, bound)
    return lambda header, index: replace(
        ruled(rule="fada_attention", attention=terms)(header, index), gap_gradient_digest=bytes(32)
    )


CASES = [
    Case("max-visibility", in_clear),
    Case("max-visibility", all_in_cohorts),
    Case("min-others", asks(sum_quorum=3), {"min-others": 3}, policy_alone=False),
    Case("max-colluders", asks(threshold=3, sum_quorum=3), {"min-others": 1, "max-colluders": 1}, policy_alone=False),
    Case(
        "max-colluders", asks(), {"min-others": 1, "max-colluders": 1}, policy_alone=False
    ),  # norms of three others count
    Case("trusted-peers", asks(), {"trusted-peers": ("source-1",)}, policy_alone=False),
    Case("allowed-rules", asks(), {"allowed-rules": ("fedavg",)}),
    Case("allowed-rules", ruled(select=True), {"allowed-rules": ("source_only",)}, policy_alone=False),
    Case("key-agreements", asks(key_agreement=KeyAgreement.X25519)),
    Case("architectures", asks(), {"architectures": ("00" * 32,)}),
    Case("norm-cap.kappa", asks(), {"norm-cap.kappa": 1.1}),
    Case("norm-cap.kappa", asks(norm_cap=None)),
    Case("norm-cap.granularity", with_norms(granularity=Granularity.MODEL)),
    Case("norm-cap.reports", with_norms(others=2), {"min-others": 1, "max-colluders": 1}),
    Case("norm-cap.unfiltered-projection", unfiltered, policy_alone=False),
    Case("quantisation.modulus-bits-min", asks(modulus_bits=16), {"quantisation.modulus-bits-min": 20}),
    Case("quantisation.clip-min", clipped_at(0.48), {"quantisation.clip-min": 0.5}),
    Case("quantisation.clip-max", clipped_at(10 * CLIP + 0.1)),
    Case("quantisation.n-max", asks(n_max=1025)),
    Case("quantisation.max-samples-min", asks(max_samples=MAX_SAMPLES - 1)),
    Case("quantisation.max-samples-max", asks(max_samples=10 * MAX_SAMPLES + 1)),
    Case("limits.model-bytes-max", asks(), {"limits.model-bytes-max": 4 * N_PARAMS - 1}),
    Case("limits.learning-rate-max", rated(0.11), {"limits.learning-rate-max": 0.1}, policy_alone=False),
    Case("limits.learning-rate-min", rated(0.09), {"limits.learning-rate-min": 0.1}, policy_alone=False),
    Case("limits.attention-bound-max", attending(1.01), policy_alone=False),
    Case("limits.attention-bound-max", attending(0.5), {"limits.attention-bound-max": 0.4}, policy_alone=False),
    Case("limits.training-deadline-s-max", asks(), {"limits.training-deadline-s-max": 599.9}),
    Case("limits.phase-deadline-s-max", asks(), {"limits.phase-deadline-s-max": 29.9}),
    Case("model.keep", asks(sources_keep=SourcesKeep.FINAL), {"model.keep": "none"}),
    Case("release.max-attempts", asks(attempt=3), {"release.max-attempts": 2}),
    Case("release.max-rounds", asks(round=51), {"release.max-rounds": 50}),
]
NOT_IN_A_HEADER = {
    *("allowed-tasks", "metadata.may-leave", "release.max-runs", "release.max-unfinished", "release.min-rows"),
    *("moments.min-rows", "moments.min-rows-per-class", "moments.min-rows-per-category"),
} | {key for key in known_keys(SourcePolicy) if key.startswith(("dp.", "agreement."))}
"""No header can exceed these: they concern the site's tasks, its noise, its rows, its own messages, people and days,
or count over rounds and runs."""
OF_THE_MODEL = {"model.initial", "limits.model-step"}
"""Keys that the vectors beside a header are compared with: T40."""


def played(staged: MakesStage, case: Case) -> Stage:
    adversary = partial(AbovePolicy, victim=VICTIM, change=case.change)
    return staged(aggregator=adversary, policies={VICTIM: case.make_policy()}, settings={"kappa": 1.0})


def fuse_is_burnt(stage: Stage) -> bool:
    """Whether the victim's state file says that an update of the round may have left."""
    header = stage.adversary.heard.views[VICTIM].header
    return stage.store(VICTIM).history(bytes(32), header.body.run_id, header.body.round).released


def assert_only_a_refusal_left_the_victim(stage: Stage, name: str) -> None:
    assert stage.refusals(VICTIM) == stage.alarms(VICTIM) == [name]
    assert not any(stage.said(VICTIM, kind) for kind in (Advertise, MaskedInput, Update))
    assert stage.said(VICTIM, Refusal)[0].message.body == Refusal(name)
    assert stage.accepted(VICTIM) == 0
    assert not fuse_is_burnt(stage)
    assert stage.adversary.attack() is None


@pytest.mark.threat("T33")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_header_above_one_key_is_refused_under_its_name(staged: MakesStage, case: Case) -> None:
    stage = played(staged, case).play()
    assert_only_a_refusal_left_the_victim(stage, case.key)


@pytest.mark.threat("T33")
def test_every_key_of_a_policy_that_a_header_can_be_above_has_been_asked_for_too_much_of() -> None:
    assert {case.key for case in CASES} == set(known_keys(SourcePolicy)) - NOT_IN_A_HEADER - OF_THE_MODEL


@pytest.mark.threat("T33")
def test_header_within_the_same_policy_is_taken_part_in(staged: MakesStage) -> None:
    stage = played(staged, Case("none", asks())).play()
    assert stage.alarms(VICTIM) == []
    assert len(stage.said(VICTIM, MaskedInput)) == 1


@pytest.mark.threat("T33")
@pytest.mark.control
def test_update_leaves_in_clear_where_headers_are_not_compared_with_the_policy(staged: MakesStage) -> None:
    stage = played(staged, CASES[0])
    with switched_off(POLICY, roster=stage.roster):
        stage.play()
    np.testing.assert_array_equal(stage.adversary.attack(), stage.update(VICTIM))
    assert fuse_is_burnt(stage)


@pytest.mark.threat("T33")
@pytest.mark.control
@pytest.mark.parametrize("case", [case for case in CASES[2:] if case.policy_alone], ids=lambda case: case.key)
def test_source_takes_part_in_what_the_policy_alone_forbids_where_it_is_not_compared(
    staged: MakesStage, case: Case
) -> None:
    stage = played(staged, case)
    with switched_off(POLICY, roster=stage.roster):
        stage.play()
    assert stage.refusals(VICTIM) == []
    assert len(stage.said(VICTIM, Advertise)) == 1


def edited_under_way(path: Path, passed: Passed) -> Iterable[Passed]:
    """The insider's edit falls between the header's leaving the aggregator and its arriving."""
    if isinstance(passed.message.body, Header):
        path.write_text(default_policy_text("victim", default_policy("individual")))
    return (passed,)


@pytest.mark.threat("T33")
def test_file_that_is_edited_while_the_source_runs_permits_no_more(staged: MakesStage, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(default_policy_text("victim", Case("", asks()).make_policy()))
    stage = staged(
        aggregator=partial(AbovePolicy, victim=VICTIM),
        policies={VICTIM: load_policy(path)},
        settings={"kappa": 1.0},
        network=partial(edited_under_way, path),
    ).play()
    assert load_policy(path).max_visibility == "individual"
    assert_only_a_refusal_left_the_victim(stage, "max-visibility")
