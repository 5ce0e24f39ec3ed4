"""T15: no header that a source accepts has weaker numbers than its policy and the protocol allow."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from securefda.adaptation import Strategy, round_plan
from securefda.policy import SourcePolicy, default_policy, verdict
from securefda.rounds.headers import Place, make_header
from securefda.rounds.site import vector_to_wire
from securefda.rounds.source import SourceRounds, SourceSite
from securefda.rounds.store import SourceStore
from securefda.secagg.messages import (
    NO_CONTEXT,
    Advertise,
    Header,
    MaskedInput,
    Parcel,
    Refusal,
    TargetTerms,
    Visibility,
)
from securefda.secagg.transcript import architecture_digest
from threat_model.adversaries.sign_header import LayerSigns, SignHeader
from threat_model.scores import cosine
from threat_model.sites import (
    CLIP,
    MAX_SAMPLES,
    N_PARAMS,
    TARGET,
    KnownUpdates,
    SiteWatch,
    known_update,
    roster_of,
    samples_of,
    signer_of,
    target_site,
)
from threat_model.stage import MakesStage, Stage, run_settings
from threat_model.switches import POLICY, UPDATE_AT_THE_CLIP, switched_off

N = 3
CLIPS = (1e-9, 1e-4, 0.05, 0.1, 0.2, 0.3, 0.4, 0.46, 0.48, 1.0)
"""From bare signs to all of the update, whose coordinates are uniform in [-0.5, 0.5]: 1 in 8 is beyond 0.4375."""


def sign_stage(staged: MakesStage) -> Stage:
    rows = {index: samples_of(index) for index in range(1, N + 1)}
    adversary = partial(SignHeader, rows=rows, clips=CLIPS)
    return staged(N, aggregator=adversary, settings={"strategy": Strategy(rule="source_only", rounds=len(CLIPS))})


def true_signs(stage: Stage, index: int) -> np.ndarray:
    return np.sign(stage.update(index, len(stage.adversary.sessions)))


def assert_bare_signs_were_not_had(stage: Stage) -> None:
    """Of the worst header that was accepted: signs of fewer than 1 in 8^n coordinates are certain."""
    assert stage.adversary.clip == 0.46
    assert np.mean(stage.adversary.attack().certain) < 0.125**N
    for index in range(1, N + 1):
        assert len(stage.said(index, MaskedInput)) == 1


@pytest.mark.threat("T15")
def test_search_for_the_worst_clip_ends_where_seven_eighths_of_every_layer_are_within_it(staged: MakesStage) -> None:
    stage = sign_stage(staged).play()
    for index in range(1, N + 1):
        by_key, by_clip = ["quantisation.clip-min"] * 3, ["CLIPPED"] * 4
        assert stage.refusals(index) == stage.alarms(index) == by_key + by_clip
    assert_bare_signs_were_not_had(stage)


@pytest.mark.threat("T15")
def test_update_at_its_clip_is_kept_back_where_the_policy_lets_any_clip_pass(staged: MakesStage) -> None:
    stage = sign_stage(staged)
    with switched_off(POLICY, roster=stage.roster):
        stage.play()
    assert stage.refusals(1) == ["CLIPPED"] * 7
    assert_bare_signs_were_not_had(stage)


@pytest.mark.threat("T15")
@pytest.mark.control
def test_sum_under_a_tiny_clip_tells_every_sign_of_every_source(staged: MakesStage) -> None:
    stage = sign_stage(staged)
    with switched_off(POLICY, UPDATE_AT_THE_CLIP, roster=stage.roster):
        stage.play()
    assert stage.adversary.clip == CLIPS[0]
    signs = stage.adversary.attack()
    assert np.all(signs.certain)
    for index in range(1, N + 1):
        np.testing.assert_array_equal(signs.of[index], true_signs(stage, index))


# One layer alone.

HALVES = (("body", (2048,)), ("head", (2048,)))
LEAST_CLIP, GREATEST_CLIP, RATE = CLIP / 10, CLIP * 10, 150.0
"""The clips that a policy permits. Updates within 0.05, times the rate, are within the greater one."""


@pytest.fixture
def layer_stage(staged: MakesStage, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """All sites train a model of two equal layers, and the second is driven to its clip."""
    monkeypatch.setattr(KnownUpdates, "layers", HALVES)
    monkeypatch.setattr(KnownUpdates, "sizes", (2048, 2048))
    monkeypatch.setattr(KnownUpdates, "architecture_digest", architecture_digest(HALVES))
    rows = {index: samples_of(index) for index in range(1, N + 1)}
    adversary = partial(LayerSigns, rows=rows, layer="head", clips=(LEAST_CLIP, GREATEST_CLIP), rate=RATE)
    strategy = Strategy(rule="fedda", beta=1.0, rounds=1)
    return staged(N, aggregator=adversary, updates=small_update, settings={"strategy": strategy})


def small_update(index: int, round_number: int, received: Any) -> Any:
    return np.float32(0.1) * known_update(index, round_number, received)


@pytest.mark.threat("T15")
def test_layer_at_its_clip_keeps_the_whole_update_back_though_half_of_it_is_not(layer_stage: Stage) -> None:
    stage = layer_stage.play()
    for index in range(1, N + 1):
        assert stage.refusals(index) == stage.alarms(index) == ["CLIPPED"]
        assert not stage.said(index, Advertise)
    assert stage.adversary.attack() is None


@pytest.mark.threat("T15")
@pytest.mark.control
def test_layer_at_its_clip_tells_the_signs_of_every_source_in_it(layer_stage: Stage) -> None:
    with switched_off(UPDATE_AT_THE_CLIP, roster=layer_stage.roster):
        stage = layer_stage.play()
    signs = stage.adversary.attack()
    assert np.mean(signs.certain) > 0.9
    for index in range(1, N + 1):
        update = stage.update(index)[2048:]
        np.testing.assert_array_equal(signs.of[index][signs.certain], np.sign(update)[signs.certain])
        assert cosine(signs.of[index], update) > 0.8  # bare signs of a uniform update have sqrt(3) / 2


# Every header: what the victim accepts, against inequalities that are written down here once more.

ME, SITES = 2, 7
PERMITS = default_policy("cohort", 2, 1, 2, clip=CLIP, max_samples=MAX_SAMPLES).model_copy(
    update={"trusted_peers": tuple(f"source-{index}" for index in range(1, SITES))}  # all but the last
)
G_T = vector_to_wire(np.full(N_PARAMS, 0.1, np.float32))
PUBLISHED = TargetTerms(5, 0.1, sha256(G_T).digest(), 1.0, 0.5)
EXAMPLES = 800


@dataclass
class Victim:
    """A source with its state in a folder, which is asked one header after another, each of another run."""

    folder: Path

    def __post_init__(self) -> None:
        self.roster, self.numbers, self.answers = roster_of(SITES), count(1), Counter()
        store = SourceStore(self.folder / "state")
        self.close = store.close
        site = SourceSite(
            signer=signer_of(ME),
            roster=self.roster,
            limits=PERMITS.session_limits(self.roster),
            check_policy=lambda header: verdict.check_header(PERMITS, header),
            trainer=KnownUpdates(ME, known_update),
            store=store,
            random_bytes=os.urandom,
            software_version="1",
        )
        self.rounds = SourceRounds(site, SiteWatch())

    def accepts(self, header: Header) -> bool:
        number = next(self.numbers)
        signed = signer_of(TARGET).sign(
            number.to_bytes(32, "big"), NO_CONTEXT, replace(header, run_id=number.to_bytes(16, "big"))
        )
        model = vector_to_wire(np.zeros(N_PARAMS, np.float32))
        vectors = (model, G_T) if header.target and header.target.update_digest else (model,)
        (answer,) = self.rounds.handle(Parcel(signed, vectors))
        body = answer.message.body
        assert isinstance(body, (Advertise, Refusal))
        self.answers[body.key if isinstance(body, Refusal) else "accepted"] += 1
        return isinstance(body, Advertise)


def honest_header() -> Header:
    wanted = run_settings(Visibility.SUM, {"n_c": 1})
    site = target_site(roster_of(SITES), known_update, lambda: 0.0)
    return make_header(
        site,
        wanted,
        Place(bytes(16), 1, 1, b""),
        plan=round_plan(wanted.strategy, 1),
        target=None,
        model=np.zeros(N_PARAMS, np.float32),
        participants=range(1, SITES + 1),
    ).body


def _with_clips(header: Header, clips: tuple[float, float]) -> Header:
    pairs = zip(header.layers, clips, strict=True)
    return replace(header, layers=tuple(replace(layer, clip=clip) for layer, clip in pairs))


def _with_rule(header: Header, **changes: Any) -> Header:
    return replace(header, rule=replace(header.rule, **changes))


def _at_cohort(header: Header, size: int, quorum: int) -> Header:
    return replace(header, visibility=Visibility.COHORT, cohort_size=size, cohort_quorum=quorum)


AROUND_THE_CLIPS = st.one_of(st.sampled_from([CLIP / 10, CLIP / 11, CLIP * 10, CLIP * 11]), st.floats(1e-12, 1e12))
COUNTS = st.integers(0, SITES + 2)
CHANGES = st.one_of(
    st.builds(lambda v: lambda h: replace(h, visibility=v), st.sampled_from(Visibility)),
    st.builds(lambda s, q: lambda h: _at_cohort(h, s, q), COUNTS, COUNTS),
    st.builds(lambda s, q: lambda h: _at_cohort(h, s, q), st.just(5), st.integers(3, 5)),
    st.builds(lambda t: lambda h: replace(h, threshold=t), COUNTS),
    st.builds(lambda p: lambda h: replace(h, participants=tuple(sorted(p))), st.sets(st.integers(1, 8), min_size=1)),
    st.builds(
        lambda p, t: lambda h: replace(h, participants=tuple(sorted(p | {ME})), threshold=t),
        st.sets(st.integers(1, SITES), min_size=4, max_size=5),
        st.integers(4, 5),
    ),
    st.builds(lambda b: lambda h: replace(h, modulus_bits=b), st.sampled_from([1, 2, 16, 31, 32, 33, 64, 128])),
    st.builds(lambda n: lambda h: replace(h, n_max=n), st.one_of(st.integers(1, 2048), st.integers(2**30, 2**32 - 1))),
    st.builds(lambda *c: lambda h: _with_clips(h, c), AROUND_THE_CLIPS, AROUND_THE_CLIPS),
    st.builds(
        lambda n: lambda h: replace(h, max_samples=n),
        st.one_of(st.integers(1, 10**9), st.sampled_from([MAX_SAMPLES - 1, MAX_SAMPLES, 10 * MAX_SAMPLES, 1001])),
    ),
    st.builds(lambda a: lambda h: replace(h, attempt=a), st.integers(1, 5)),
    st.builds(
        lambda f: lambda h: _with_rule(h, learning_rate_factor=f),
        st.one_of(st.sampled_from([1e-9, 9e-7, 1e-6, 1.0, 1.1]), st.floats(1e-12, 10)),
    ),
    st.builds(lambda r: lambda h: _with_rule(h, rule=r), st.sampled_from(["fedavg", "fedda", "oracle", "none"])),
    st.builds(lambda f: lambda h: replace(_with_rule(h, rule="fedgp", filter=f), target=PUBLISHED), st.booleans()),
)


def inequalities(header: Header, policy: SourcePolicy) -> dict[str, bool]:
    """What has to hold of a header that asks for a sum, or for cohorts."""
    n, t, n_c, k_min = len(header.participants), header.threshold, policy.n_c, policy.k_min
    bounds, room = policy.quantisation, 2 ** (header.modulus_bits - 1)
    at_sum = header.visibility is Visibility.SUM
    untrusted = len([index for index in header.participants if index == SITES])
    smallest = t - untrusted if at_sum else header.cohort_quorum
    return {
        "visibility": header.visibility >= policy.visibility and header.visibility is not Visibility.INDIVIDUAL,
        "n": ME in header.participants and set(header.participants) <= set(range(1, SITES + 1)),
        "t": 2 * t > n + n_c and n_c < t <= n,
        "k": smallest - 1 - n_c >= k_min,
        "modulus": header.modulus_bits in (32, 64) and header.modulus_bits >= bounds.modulus_bits_min,
        "n-max": n <= header.n_max <= bounds.n_max,
        "wrap": header.n_max * min((room - 1) // header.n_max, 2**40) < room and (room - 1) // header.n_max >= 1,
        "clip": all(bounds.clip_min <= layer.clip <= bounds.clip_max for layer in header.layers),
        "rows": bounds.max_samples_min <= header.max_samples <= bounds.max_samples_max,
        "attempt": header.attempt <= policy.release.max_attempts,
        "rate": 1e-6 <= header.rule.learning_rate_factor <= 1,
        "rule": header.rule.rule in policy.allowed_rules,
        "filter": not (header.rule.rule.startswith("fedgp") and header.rule.filter and at_sum),
        "target": not at_sum or (header.rule.rule in ("source_only", "fedavg")) == (header.target is None),
        "cohort": (header.cohort_size, header.cohort_quorum) == (0, 0)
        if at_sum
        else 2 <= header.cohort_quorum <= header.cohort_size <= t,
    }


REASONS = {
    "max-visibility",
    "k-min",
    "n-c",
    "allowed-rules",
    "filtered-projection",
    "quantisation.modulus-bits-min",
    "quantisation.clip-min",
    "quantisation.clip-max",
    "quantisation.n-max",
    "quantisation.max-samples-min",
    "quantisation.max-samples-max",
    "release.max-attempts",
    "HEADER_PARTICIPANTS",
    "HEADER_RATE",
    "HEADER_TARGET",
    "HEADER_COHORT",
    "HEADER_QUORUM",
}


@pytest.mark.threat("T15")
def test_every_header_that_is_accepted_satisfies_every_inequality(tmp_path: Path) -> None:
    with closing(Victim(tmp_path)) as victim:

        @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None)
        @given(changes=st.lists(CHANGES, min_size=1, max_size=3))
        def ask(changes: list[Any]) -> None:
            header = honest_header()
            for change in changes:
                header = change(header)
            if victim.accepts(header):
                assert [name for name, holds in inequalities(header, PERMITS).items() if not holds] == []

        ask()
    assert victim.answers["accepted"] > EXAMPLES / 10
    assert set(victim.answers) - {"accepted"} >= REASONS
