"""T15: no header that a source accepts has weaker numbers than its policy and the protocol allow."""

from __future__ import annotations

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
from source_stores import store_at

from securefda.aggregator.headers import AttemptPosition, Planner, make_header
from securefda.aggregator.ranges import WordFormat
from securefda.aggregator.site import TargetSite
from securefda.audit import signed_notes
from securefda.audit.signed_notes import Note, witness_name
from securefda.protocol.encoding import vector_to_wire
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    Advertise,
    AttentionTerms,
    Checkpoint,
    Cosigned,
    Granularity,
    Header,
    MaskedInput,
    NormCapTerms,
    Parcel,
    Refusal,
    ShareBundle,
    TargetTerms,
    Visibility,
)
from securefda.protocol.transcript import architecture_digest
from securefda.protocol.weighed_contribution import MOST_CLIPPED
from securefda.rules import Strategy, round_plan
from securefda.site.policy import ReleaseLimits, SourcePolicy, default_policy
from securefda.site.policy.schema import WorkLimits
from securefda.source.source_run import SourceRun
from threat_model.adversaries.low_rate import LowRate
from threat_model.adversaries.sign_header import LayerSigns, SignHeader
from threat_model.scores import cosine
from threat_model.sites import (
    CLIP,
    MAX_SAMPLES,
    N_PARAMS,
    TARGET,
    KnownUpdates,
    SiteWatch,
    UpdateRule,
    known_update,
    published_key,
    roster_of,
    samples_of,
    signer_of,
    site_id_of,
    source_site,
    target_site,
    witness_at,
)
from threat_model.stage import MakesStage, Stage, run_settings
from threat_model.switches import ONE_RUN, POLICY, ROUNDING_AT_RANDOM, UPDATE_AT_THE_CLIP, all_of, switched_off

N = 3
CLIPS = (1e-9, 1e-4, 0.05, 0.1, 0.2, 0.3, 0.4, 0.46, 0.48, 1.0)
"""From bare signs to all of the update, whose coordinates are uniform in [-0.5, 0.5]: 1 in 8 is beyond 0.4375. The
policy allows the fourth and those that follow."""


def large_update(index: int, round_number: int, received: Any) -> Any:
    """Every coordinate is beyond the least clip that the policy allows: their lengths are uniform in [0.15, 0.45]."""
    update = known_update(index, round_number, received)
    return np.sign(update) * (np.float32(0.15) + np.float32(0.6) * np.abs(update))


def sparse_update(index: int, round_number: int, received: Any) -> Any:
    """One coordinate in eight of each layer moves, the same at all sources, and none beyond the policy's least clip."""
    update = np.float32(0.1) * known_update(index, round_number, received)
    update[np.arange(update.size) % MOST_CLIPPED != 0] = 0
    return update


def sign_stage(staged: MakesStage, updates: UpdateRule = known_update) -> Stage:
    rows = {index: samples_of(index) for index in range(1, N + 1)}
    adversary = partial(SignHeader, rows=rows, clips=CLIPS)
    strategy = Strategy(rule="source_only", rounds=len(CLIPS))
    settings = {"strategy": strategy}
    return staged(N, aggregator=adversary, settings=settings, max_unfinished=len(CLIPS), updates=updates)


def true_signs(stage: Stage, index: int) -> np.ndarray:
    return np.sign(stage.update(index, len(stage.adversary.sessions)))


def assert_bare_signs_were_not_had(stage: Stage) -> None:
    """Under the worst accepted header, the signs of fewer than 1 in 8^n coordinates are certain."""
    assert stage.adversary.clip == 0.46
    assert np.mean(stage.adversary.attack().certain) < 0.125**N
    for index in range(1, N + 1):
        assert len(stage.said(index, MaskedInput)) == 1


@pytest.mark.threat("T15")
@pytest.mark.parametrize("updates", [known_update, large_update])
def test_search_for_the_worst_clip_ends_where_seven_eighths_of_every_layer_are_within_it(
    staged: MakesStage, updates: UpdateRule
) -> None:
    stage = sign_stage(staged, updates).play()
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
def test_sum_under_the_least_clip_of_the_policy_tells_every_sign_where_updates_may_be_at_it(staged: MakesStage) -> None:
    stage = sign_stage(staged, large_update)
    with switched_off(UPDATE_AT_THE_CLIP, roster=stage.roster):
        stage.play()
    assert stage.refusals(1) == ["quantisation.clip-min"] * 3
    assert stage.adversary.clip == CLIPS[3]
    signs = stage.adversary.attack()
    assert np.all(signs.certain)
    for index in range(1, N + 1):
        np.testing.assert_array_equal(signs.of[index], true_signs(stage, index))


@pytest.mark.threat("T15")
def test_update_of_which_little_moves_tells_no_sign_under_the_least_clip_of_the_policy(staged: MakesStage) -> None:
    """Few coordinates move, and no clip keeps the update back: what is left is the least clip of the policy."""
    stage = sign_stage(staged, sparse_update).play()
    for index in range(1, N + 1):
        assert stage.refusals(index) == stage.alarms(index) == ["quantisation.clip-min"] * 3
        assert len(stage.said(index, MaskedInput)) == 1
    assert stage.adversary.clip == CLIPS[3]
    assert not np.any(stage.adversary.attack().certain)


@pytest.mark.threat("T15")
@pytest.mark.control
def test_sum_under_a_tiny_clip_tells_every_sign_of_what_moves_where_the_policy_lets_any_clip_pass(
    staged: MakesStage,
) -> None:
    stage = sign_stage(staged, sparse_update)
    with switched_off(POLICY, roster=stage.roster):
        stage.play()
    assert stage.adversary.clip == CLIPS[0]
    signs = stage.adversary.attack()
    for index in range(1, N + 1):
        moves = true_signs(stage, index) != 0
        np.testing.assert_array_equal(signs.certain, moves)
        np.testing.assert_array_equal(signs.of[index][moves], true_signs(stage, index)[moves])


# One layer alone.

HALVES = (("body", (2048,)), ("head", (2048,)))
LEAST_CLIP, GREATEST_CLIP, RATE = CLIP / 10, CLIP * 10, 90.0
"""The clips that a policy allows and, at a learning rate of 0.1, a factor on it.

Updates within 0.05, times the rate, are within the greater clip.
"""


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
        assert not stage.said(index, ShareBundle)
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


# A learning rate at which rounding leaves one update alone.

LARGEST, OTHERS = 2, np.float32(0.4)
"""The source with the largest update, and the share of it that all others move."""

TINY_RATE = 1.25e-9
"""The largest coordinates of the largest update come to just above one step of the encoding, those of others to less
than half."""


def unequal_update(index: int, round_number: int, received: Any) -> Any:
    update = known_update(index, round_number, received)
    return update if index == LARGEST else OTHERS * update


def rounded_away(staged: MakesStage, rate: float) -> Stage:
    settings = {"strategy": Strategy(rule="fedda", beta=1.0, rounds=1)}
    makes = partial(LowRate, rate=rate)
    return staged(4, aggregator=makes, updates=unequal_update, visibility=Visibility.COHORT, settings=settings)


@pytest.mark.threat("T15")
def test_rate_that_leaves_the_largest_update_alone_is_refused(staged: MakesStage) -> None:
    stage = rounded_away(staged, TINY_RATE).play()
    for index in range(1, 5):
        assert stage.refusals(index) == ["limits.learning-rate-min"]
        assert not stage.said(index, Advertise)
    assert stage.adversary.attack() is None


@pytest.mark.threat("T15")
def test_least_rate_of_the_policy_leaves_the_sum_as_it_is(staged: MakesStage) -> None:
    stage = rounded_away(staged, WorkLimits().learning_rate_min).play()
    expected = sum(stage.weight(index) * stage.update(index) for index in range(1, 5))
    assert cosine(stage.adversary.attack(), expected) > 0.999
    assert cosine(stage.adversary.attack(), stage.update(LARGEST)) < 0.85


@pytest.mark.threat("T15")
@pytest.mark.control
def test_tiny_rate_leaves_the_largest_update_alone_where_parts_are_rounded_to_the_nearest(staged: MakesStage) -> None:
    stage = rounded_away(staged, TINY_RATE)
    with switched_off(all_of("policy and rounding", POLICY, ROUNDING_AT_RANDOM), roster=stage.roster):
        stage.play()
    total = stage.adversary.attack()
    left = total != 0
    assert np.mean(left) > 0.4
    assert cosine(total[left], stage.update(LARGEST)[left]) > 0.97


@pytest.mark.threat("T15")
def test_tiny_rate_leaves_nobody_alone_where_the_policy_lets_it_pass(staged: MakesStage) -> None:
    """Rounding at random keeps a share of every part: the coordinates that are left are of all sources."""
    stage = rounded_away(staged, TINY_RATE)
    with switched_off(POLICY, roster=stage.roster):
        stage.play()
    total = stage.adversary.attack()
    left = total != 0
    assert cosine(total[left], stage.update(LARGEST)[left]) < 0.85


# Every header: what the victim accepts, against inequalities that are written down here once more.

ME, SITES = 2, 7
OWN_POLICY = default_policy(
    "cohort", 2, 1, 2, clip=CLIP, max_samples=MAX_SAMPLES, norm_reports="colluders-may-see"
).model_copy(
    update={
        "trusted_peers": tuple(f"source-{index}" for index in range(1, SITES)),  # all but the last
        "release": ReleaseLimits(max_attempts=2, max_rounds=50),
    }
)
G_T = vector_to_wire(np.full(N_PARAMS, 0.1, np.float32))
"""The vector that the target publishes under any rule: its update, or the gradient of the gap."""

PUBLISHED = TargetTerms(5, 0.1, sha256(G_T).digest(), 1.0, 0.5)
ATTENTION = AttentionTerms("first-order", 0.01, 1.0)
EXAMPLES = 800


@dataclass
class Victim:
    """A source with its state in a folder, which is asked one header after another, each of another run.

    It joins each run, where runs are not limited, and cosigns the log of one record that the target has of it; so have
    all the others.
    """

    folder: Path

    def __post_init__(self) -> None:
        self.roster, self.numbers, self.answers = roster_of(SITES), count(1), Counter()
        self._store = store_at(self.folder / "state")
        self._site = source_site(ME, self.roster, OWN_POLICY, known_update, self._store, logs=self.folder / "logs")
        self.rounds = SourceRun(self._site, SiteWatch())

    def close(self) -> None:
        self._site.witness.journal.close()
        self._store.close()

    def _witnessed(self, run_id: bytes) -> bytes:
        """Join a run and cosign; what the header has to carry."""
        self.rounds.join(run_id.hex())
        origin = self._site.witness.journal.name_of(TARGET).origin
        text = signed_notes.Checkpoint(origin, 1, sha256(run_id).digest()).to_text()
        bare = Note(text, (signed_notes.sign(text, origin, published_key(TARGET)),))
        shown = signer_of(TARGET).sign(NO_SESSION, NO_CONTEXT, Checkpoint(bare.to_bytes(), 0, (), 0))
        own, cosigned = self.rounds.handle(Parcel(shown))
        assert isinstance(own.message.body, Checkpoint)
        assert isinstance(cosigned.message.body, Cosigned)
        names = {index: witness_name(self.roster.federation_id, site_id_of(index)) for index in range(1, SITES + 1)}
        lines = [signed_notes.cosign(text, name, published_key(index), 1) for index, name in names.items()]
        return Note(text, (*bare.signatures, *lines)).to_bytes()

    def accepts(self, header: Header) -> bool:
        number = next(self.numbers)
        run_id = number.to_bytes(16, "big")
        of_run = replace(header, run_id=run_id, previous_checkpoint=self._witnessed(run_id))
        signed = signer_of(TARGET).sign(number.to_bytes(32, "big"), NO_CONTEXT, of_run)
        model = vector_to_wire(np.zeros(N_PARAMS, np.float32))
        at_sum = ME in header.participants and header.level_of(ME) is Visibility.SUM
        vectors = (model, G_T) if at_sum and header.published_digest else (model,)
        *_, answer = self.rounds.handle(Parcel(signed, vectors)) + self.rounds.train()
        body = answer.message.body
        assert isinstance(body, (Advertise, Refusal))
        self.answers[body.key if isinstance(body, Refusal) else "accepted"] += 1
        return isinstance(body, Advertise)


def honest_header(site: TargetSite) -> Header:
    wanted = run_settings(Visibility.SUM, {"max_colluders": 1, "kappa": 1.0})
    names = {index: site_id_of(index) for index in range(1, SITES + 1)}
    header = make_header(
        site,
        wanted,
        AttemptPosition(bytes(16), 1, 1, b""),
        plan=round_plan(wanted.strategy, 1),
        target=None,
        model=np.zeros(N_PARAMS, np.float32),
        session=Planner(names, wanted).plan(dict.fromkeys(names, Visibility.SUM)),
        words=WordFormat.wide(CLIP, 2),
        with_metrics=True,
    ).body
    return _with_norm_cap(header, others=2)  # one more of the four others in the smallest sum is not trusted


def _with_clips(header: Header, clips: tuple[float, float]) -> Header:
    pairs = zip(header.layers, clips, strict=True)
    return replace(header, layers=tuple(replace(layer, clip=clip, range=clip) for layer, clip in pairs))


def _with_ranges(header: Header, ranges: tuple[float, float]) -> Header:
    pairs = zip(header.layers, ranges, strict=True)
    return replace(header, layers=tuple(replace(layer, range=limit) for layer, limit in pairs))


def _with_rule(header: Header, **changes: Any) -> Header:
    return replace(header, rule=replace(header.rule, **changes))


def _with_norm_cap(header: Header, **changes: Any) -> Header:
    return replace(header, norm_cap=replace(header.norm_cap or NormCapTerms(1.0, 2, Granularity.LAYER), **changes))


def _at_levels(header: Header, levels: tuple[Visibility, ...]) -> Header:
    """By roster index; an index beyond the roster is at the last one."""
    return replace(header, levels=tuple(levels[min(index, SITES) - 1] for index in header.participants))


def _among(header: Header, participants: set[int]) -> Header:
    """Everyone at the level of the first."""
    return replace(header, participants=tuple(sorted(participants)), levels=header.levels[:1] * len(participants))


def _at_cohort(header: Header, size: int, quorum: int, others: tuple[Visibility, ...] = ()) -> Header:
    levels = (Visibility.COHORT,) * (SITES - len(others)) + others
    at_cohort = replace(_at_levels(header, levels), cohort_size=size, cohort_quorum=quorum)
    return at_cohort if Visibility.SUM in at_cohort.levels else replace(at_cohort, sum_quorum=0, norm_cap=None)


def _at_rate(header: Header, rate: float, *, digest: bytes) -> Header:
    return replace(
        _with_rule(header, rule="fedgp"), target=replace(PUBLISHED, learning_rate=rate, update_digest=digest)
    )


def _attending(header: Header, terms: AttentionTerms | None, digest: bytes, rule: str = "fada_attention") -> Header:
    return replace(_with_rule(header, rule=rule, attention=terms), gap_gradient_digest=digest)


AROUND_THE_CLIPS = st.one_of(st.sampled_from([CLIP / 10, CLIP / 11, CLIP * 10, CLIP * 11]), st.floats(1e-12, 1e12))
COUNTS = st.integers(0, SITES + 2)
LEVELS_OF_ALL = st.tuples(*[st.sampled_from(Visibility)] * SITES)
CHANGES = st.one_of(
    st.builds(lambda levels: lambda h: _at_levels(h, levels), LEVELS_OF_ALL),
    st.builds(lambda v: lambda h: _at_levels(h, (v,) * SITES), st.sampled_from(Visibility)),
    st.builds(lambda s, q: lambda h: _at_cohort(h, s, q), COUNTS, COUNTS),
    st.builds(lambda s, q: lambda h: _at_cohort(h, s, q), st.just(5), st.integers(3, 5)),
    st.builds(lambda s, q: lambda h: _at_cohort(h, s, q, (Visibility.INDIVIDUAL,)), st.just(5), st.integers(3, 5)),
    st.builds(lambda q: lambda h: replace(h, sum_quorum=q), COUNTS),
    st.builds(lambda t: lambda h: replace(h, threshold=t), COUNTS),
    st.builds(lambda p: lambda h: _among(h, p), st.sets(st.integers(1, 8), min_size=1)),
    st.builds(
        lambda p, t: lambda h: replace(_among(h, p | {ME}), threshold=t, sum_quorum=t),
        st.sets(st.integers(1, SITES), min_size=4, max_size=5),
        st.integers(4, 5),
    ),
    st.builds(lambda b: lambda h: replace(h, modulus_bits=b), st.sampled_from([1, 2, 15, 16, 20, 24, 31, 32, 33, 64])),
    st.builds(lambda n: lambda h: replace(h, n_max=n), st.one_of(st.integers(1, 2048), st.integers(2**30, 2**32 - 1))),
    st.builds(lambda *c: lambda h: _with_clips(h, c), AROUND_THE_CLIPS, AROUND_THE_CLIPS),
    st.builds(lambda *c: lambda h: _with_ranges(h, c), AROUND_THE_CLIPS, AROUND_THE_CLIPS),
    st.builds(
        lambda n: lambda h: replace(h, max_samples=n),
        st.one_of(st.integers(1, 10**9), st.sampled_from([MAX_SAMPLES - 1, MAX_SAMPLES, 10 * MAX_SAMPLES, 1001])),
    ),
    st.builds(lambda a: lambda h: replace(h, attempt=a), st.integers(1, 5)),
    st.builds(lambda r: lambda h: replace(h, round=r), st.sampled_from([1, 50, 51])),
    st.builds(lambda d: lambda h: replace(h, training_deadline_ms=d), st.sampled_from([1, 86_400_000, 86_400_001])),
    st.builds(lambda d: lambda h: replace(h, phase_deadline_ms=d), st.sampled_from([1, 3_600_000, 3_600_001])),
    st.builds(
        lambda f: lambda h: _with_rule(h, learning_rate_factor=f),
        st.one_of(st.sampled_from([1e-9, 9e-7, 1e-6, 1.0, 1.1]), st.floats(1e-12, 10)),
    ),
    st.builds(
        lambda r, d: lambda h: _at_rate(h, r, digest=d),
        st.sampled_from([0.1, 10.0, 10.1]),
        st.sampled_from([b"", PUBLISHED.update_digest]),
    ),
    st.builds(lambda r: lambda h: _at_rate(h, r, digest=PUBLISHED.update_digest), st.sampled_from([1e-5, 9e-6, 10.1])),
    st.builds(lambda r: lambda h: _with_rule(h, rule=r), st.sampled_from(["fedavg", "fedda", "oracle", "none"])),
    st.builds(lambda f: lambda h: replace(_with_rule(h, rule="fedgp", filter=f), target=PUBLISHED), st.booleans()),
    st.builds(lambda s: lambda h: replace(_with_rule(h, select=s), target=PUBLISHED), st.booleans()),
    st.builds(
        lambda b: lambda h: _attending(h, replace(ATTENTION, bound=b), PUBLISHED.update_digest),
        st.sampled_from([0.5, 1.0, 1.01, 5.0, 5.01]),
    ),
    st.builds(
        lambda *changes: lambda h: _attending(h, *changes),
        st.sampled_from([None, ATTENTION, replace(ATTENTION, gain="exact"), replace(ATTENTION, gain="none")]),
        st.sampled_from([b"", PUBLISHED.update_digest]),
        st.sampled_from(["fada_attention", "source_only", "fedgp"]),
    ),
    st.just(lambda h: replace(h, norm_cap=None)),
    st.builds(lambda k: lambda h: _with_norm_cap(h, kappa=k), st.sampled_from([0.1, 0.999, 1.0, 1.1, 2.0])),
    st.builds(lambda o: lambda h: _with_norm_cap(h, others=o), st.integers(1, SITES)),
    st.builds(lambda g: lambda h: _with_norm_cap(h, granularity=g), st.sampled_from(Granularity)),
)


def inequalities(header: Header, policy: SourcePolicy) -> dict[str, bool]:
    """Check what must hold for a header that asks for a sum, or for cohorts."""
    n, t, max_colluders, min_others = len(header.masked), header.threshold, policy.max_colluders, policy.min_others
    bounds, half, limits = policy.quantisation, 2 ** (header.modulus_bits - 1), policy.limits
    own, of_sum, in_cohorts = header.level_of(ME), header.at(Visibility.SUM), header.at(Visibility.COHORT)
    at_sum = own is Visibility.SUM
    left = (
        header.sum_quorum - 1 - max_colluders - of_sum.count(SITES)
        if at_sum
        else header.cohort_quorum - 1 - max_colluders
    )
    attention, attends = header.rule.attention, header.rule.rule == "fada_attention"
    needs_target = header.rule.select or header.rule.rule not in ("source_only", "fedavg", "fada_attention")
    by_sources = attention is not None and attention.gain == "first-order" and bool(of_sum)
    return {
        "visibility": own >= policy.visibility and own is not Visibility.INDIVIDUAL,
        "n": ME in header.participants and set(header.participants) <= set(range(1, SITES + 1)),
        "t": 2 * t > n + max_colluders and max_colluders < t <= n,
        "k": left >= min_others,
        "modulus": header.modulus_bits in (16, 20, 24, 32) and header.modulus_bits >= bounds.modulus_bits_min,
        "n-max": n <= header.n_max <= bounds.n_max,
        "wrap": header.n_max * ((half - 1) // header.n_max) < half and (half - 1) // header.n_max >= 1,
        "range": all(layer.range <= layer.clip for layer in header.layers),
        "clip": all(bounds.clip_min <= layer.clip <= bounds.clip_max for layer in header.layers),
        "rows": bounds.max_samples_min <= header.max_samples <= bounds.max_samples_max,
        "attempt": header.attempt <= policy.release.max_attempts and header.round <= policy.release.max_rounds,
        "rate": 1e-6 <= header.rule.learning_rate_factor <= 1,
        "time": header.training_deadline_ms <= 1000 * limits.training_deadline_s_max
        and header.phase_deadline_ms <= 1000 * limits.phase_deadline_s_max,
        "rule": header.rule.rule in policy.allowed_rules,
        "target": needs_target == (header.target is not None),
        "attention": attends == (attention is not None),
        "its bound": attention is None or 0 < attention.bound <= limits.attention_bound_max,
        "its gradient": by_sources == bool(header.gap_gradient_digest),
        "g_T": header.target is None or bool(header.target.update_digest) == bool(of_sum),
        "target's rate": header.target is None
        or limits.learning_rate_min <= header.target.learning_rate <= limits.learning_rate_max,
        "norm_cap": not at_sum or _norm_cap_holds(header, policy, left),
        "filter": not at_sum or header.rule.filter or not header.rule.rule.startswith("fedgp"),
        "sum": 2 <= header.sum_quorum <= len(of_sum) if of_sum else not header.sum_quorum and not header.norm_cap,
        "cohort": 2 <= header.cohort_quorum <= header.cohort_size <= len(in_cohorts)
        if in_cohorts
        else (header.cohort_size, header.cohort_quorum) == (0, 0),
    }


def _norm_cap_holds(header: Header, policy: SourcePolicy, left: int) -> bool:
    """Each layer, the kappa of the policy, and no more others than the smallest sum has that count."""
    terms = header.norm_cap
    at_least = terms is not None and terms.kappa >= policy.norm_cap.kappa
    return bool(at_least and terms and terms.granularity is Granularity.LAYER and terms.others <= left)


REASONS = {
    "max-visibility",
    "min-others",
    "max-colluders",
    "trusted-peers",
    "allowed-rules",
    "norm-cap.kappa",
    "norm-cap.granularity",
    "norm-cap.unfiltered-projection",
    "quantisation.modulus-bits-min",
    "quantisation.clip-min",
    "quantisation.clip-max",
    "quantisation.n-max",
    "quantisation.max-samples-min",
    "quantisation.max-samples-max",
    "limits.learning-rate-max",
    "limits.learning-rate-min",
    "limits.training-deadline-s-max",
    "limits.phase-deadline-s-max",
    "limits.attention-bound-max",
    "release.max-attempts",
    "release.max-rounds",
    "HEADER_PARTICIPANTS",
    "HEADER_RATE",
    "HEADER_TARGET",
    "HEADER_RULE",
    "HEADER_COHORT",
    "HEADER_SUM",
}


@pytest.mark.threat("T15")
def test_every_header_that_is_accepted_satisfies_every_inequality(ledgers: Path) -> None:
    with (
        switched_off(ONE_RUN, roster=roster_of(SITES)),
        closing(store_at(ledgers / "unused")) as memory,
        closing(Victim(ledgers / "victim")) as victim,
    ):
        witness = witness_at(ledgers / "target", TARGET, roster_of(SITES), memory)
        target = target_site(roster_of(SITES), known_update, lambda: 0.0, witness)

        @settings(max_examples=EXAMPLES, derandomize=True, deadline=None, database=None)
        @given(changes=st.lists(CHANGES, min_size=1, max_size=3))
        def ask(changes: list[Any]) -> None:
            header = honest_header(target)
            for change in changes:
                header = change(header)
            if victim.accepts(header):
                assert [name for name, holds in inequalities(header, OWN_POLICY).items() if not holds] == []

        ask()
    assert victim.answers["accepted"] > EXAMPLES / 10
    assert set(victim.answers) - {"accepted"} >= REASONS
