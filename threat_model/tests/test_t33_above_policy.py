"""T33: what a policy forbids the source itself refuses, by the name of the key, and nothing leaves it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefda.policy import ReleaseLimits, SourcePolicy, default_policy, default_policy_text, load_policy
from securefda.secagg.messages import Advertise, Header, MaskedInput, Refusal, Update, Visibility
from threat_model.adversaries.above_policy import AbovePolicy, Change, in_clear
from threat_model.sites import CLIP, MAX_SAMPLES
from threat_model.stage import MakesStage, Passed, Stage
from threat_model.switches import POLICY, switched_off

VICTIM = 2


@dataclass(frozen=True)
class Case:
    """A header above one key: what the victim's policy says, and how its header differs from everyone's."""

    key: str
    change: Change
    policy: dict[str, Any] = field(default_factory=dict)
    bounds: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    """The refusal, where it is not the key's."""
    policy_alone: bool = True
    """Whether nothing but the policy stands in the way."""

    def make_policy(self) -> SourcePolicy:
        permits = default_policy("sum", 2, 0, 2, clip=CLIP, max_samples=MAX_SAMPLES)
        bounds = permits.quantisation.model_copy(update=self.bounds)
        return permits.model_copy(update={"quantisation": bounds, **self.policy})


def asks(**changes: Any) -> Change:
    return lambda header: replace(header, **changes)


def clipped_at(clip: float) -> Change:
    return lambda header: replace(header, layers=tuple(replace(layer, clip=clip) for layer in header.layers))


def ruled(**changes: Any) -> Change:
    return lambda header: replace(header, rule=replace(header.rule, **changes))


CASES = [
    Case("max-visibility", in_clear),
    Case("max-visibility", asks(visibility=Visibility.COHORT, cohort_size=4, cohort_quorum=3)),
    Case("k-min", asks(threshold=3), {"k_min": 3}, policy_alone=False),
    Case("n-c", asks(threshold=3), {"k_min": 1, "n_c": 1}, policy_alone=False),
    Case("trusted-peers", asks(), {"trusted_peers": ("source-1",)}, name="HEADER_QUORUM", policy_alone=False),
    Case("allowed-rules", asks(), {"allowed_rules": ("fedavg",)}),
    Case("filtered-projection", ruled(rule="fedgp", filter=True), policy_alone=False),
    Case("architectures", asks(), {"architectures": ("00" * 32,)}),
    Case("quantisation.modulus-bits-min", asks(), bounds={"modulus_bits_min": 64}),
    Case("quantisation.clip-min", clipped_at(0.48), bounds={"clip_min": 0.5}),
    Case("quantisation.clip-max", clipped_at(10 * CLIP + 0.1)),
    Case("quantisation.n-max", asks(n_max=1025)),
    Case("quantisation.max-samples-min", asks(max_samples=MAX_SAMPLES - 1)),
    Case("quantisation.max-samples-max", asks(max_samples=10 * MAX_SAMPLES + 1)),
    Case("release.max-attempts", asks(attempt=3), {"release": ReleaseLimits(max_attempts=2)}),
]


def keys_of_a_policy() -> set[str]:
    """Every key of the file, those of its tables behind a dot."""
    tables = ("quantisation", "release")
    keys = set(SourcePolicy.model_fields) - set(tables)
    for table in tables:
        keys |= {f"{table}.{name}" for name in type(getattr(SourcePolicy(), table)).model_fields}
    return {key.replace("_", "-") for key in keys}


def played(staged: MakesStage, case: Case) -> Stage:
    adversary = partial(AbovePolicy, victim=VICTIM, change=case.change)
    return staged(aggregator=adversary, policies={VICTIM: case.make_policy()})


def assert_only_a_refusal_left_the_victim(stage: Stage, name: str) -> None:
    assert stage.refusals(VICTIM) == stage.alarms(VICTIM) == [name]
    assert not any(stage.said(VICTIM, kind) for kind in (Advertise, MaskedInput, Update))
    assert stage.said(VICTIM, Refusal)[0].message.body == Refusal(name)
    assert stage.accepted(VICTIM) == 0
    assert stage.adversary.attack() is None


@pytest.mark.threat("T33")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_header_above_one_key_is_refused_under_its_name(staged: MakesStage, case: Case) -> None:
    stage = played(staged, case).play()
    assert_only_a_refusal_left_the_victim(stage, case.name or case.key)


@pytest.mark.threat("T33")
def test_every_key_of_a_policy_has_been_asked_for_too_much_of() -> None:
    assert {case.key for case in CASES} == keys_of_a_policy()


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
    adversary = partial(AbovePolicy, victim=VICTIM)
    stage = staged(
        aggregator=adversary, policies={VICTIM: load_policy(path)}, network=partial(edited_under_way, path)
    ).play()
    assert load_policy(path).max_visibility == "individual"
    assert_only_a_refusal_left_the_victim(stage, "max-visibility")


@pytest.mark.threat("T33")
@pytest.mark.control
def test_whoever_can_write_the_file_decides_from_the_next_start_on(staged: MakesStage, tmp_path: Path) -> None:
    """The mitigation is that the aggregator has no access to the site; here it has."""
    path = tmp_path / "policy.toml"
    loose = default_policy("individual", 2, clip=CLIP, max_samples=MAX_SAMPLES)
    path.write_text(default_policy_text("victim", loose))
    stage = staged(aggregator=partial(AbovePolicy, victim=VICTIM), policies={VICTIM: load_policy(path)}).play()
    np.testing.assert_array_equal(stage.adversary.attack(), stage.update(VICTIM))
