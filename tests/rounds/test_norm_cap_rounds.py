"""The norm cap in a run: the same caps at every source, a sum of what they leave, and nothing at the aggregator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_definition import AUTO, Trained, Vector64, betas_of, trained
from rounds_federation import TARGET, AnySigned, Federation, is_header
from rounds_fixed import fix
from rounds_liars import Liar

from securefda.aggregator.rounds import is_silenced
from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.records import NO_PART
from securefda.operations.run_folder import read_run
from securefda.protocol.header_checks import quantisation
from securefda.protocol.messages import Granularity, Header, MaskedInput, ShareBundle, Visibility
from securefda.protocol.share_boxes import box_bytes
from securefda.rules import caps_for, contribution_norms, fedgp, norm_codes, norms_of
from securefda.samples import sample
from securefda.site.config import load_federation

INDIVIDUAL, COHORT, SUM = Visibility
N = 5
FINE = {"bits": 32, "kappa": 2.0}


class Seen:
    """What each source encoded, before it was masked: its weighted contribution, float64 (m,)."""

    def __init__(self, federation: Federation) -> None:
        self.vectors: dict[int, Vector64] = {}
        self.header: Header | None = None
        for index, source in federation.sources.items():
            federation.sources[index] = Liar(source, self._of(index))

    def _of(self, index: int) -> Any:
        def look(encoded: Any, header: Header) -> None:
            self.vectors[index] = quantisation(header).decode(encoded, 1).vector
            self.header = header

        return look


def sizes_of(header: Header, sites: Trained) -> tuple[int, ...]:
    """Parameters behind each number of a norm report."""
    return sites.layers if len(header.layers) == header.norm_report_length else (sum(sites.layers),)


def rounded_down(header: Header, sizes: tuple[int, ...], norms: Vector64) -> Vector64:
    """A norm report as the other sources see it."""
    squares = [layer.clip**2 * layer.size for layer in header.layers]
    limits = np.sqrt(squares if len(sizes) > 1 else [sum(squares)])
    return norms_of(norm_codes(norms, sizes, limits), sizes, limits)


def caps_of(header: Header, sizes: tuple[int, ...], norms: dict[int, Vector64]) -> Vector64:
    assert header.norm_cap is not None
    reports = [rounded_down(header, sizes, one) for one in norms.values()]
    return caps_for(reports, kappa=header.norm_cap.kappa, others=header.norm_cap.others)


def play(federation: Federation) -> Federation:
    federation.open().go()
    return federation


def header_in(federation: Federation) -> Header:
    return next(message.body for *_, message in federation.passed if is_header(message))


def split(vector: Vector64, sizes: tuple[int, ...]) -> list[Vector64]:
    return np.split(vector, np.cumsum(sizes)[:-1])


def lengths(vector: Vector64, sizes: tuple[int, ...]) -> Vector64:
    return np.array([np.linalg.norm(part) for part in split(vector, sizes)])


def contributions(rule: str, sites: Trained, filtered: bool) -> tuple[dict[int, Vector64], dict[int, float]]:
    """v_i and keep_i of every source, from the definitions."""
    if rule == "source_only":
        return sites.updates, dict.fromkeys(sites.updates, 0.0)
    inputs = np.array([sites.aligned[index] for index in sorted(sites.aligned)])
    betas = betas_of(rule, sites, inputs) if rule in AUTO else np.full(len(inputs), 0.5)
    vectors = {}
    for index, own, update in zip(sorted(sites.aligned), betas, inputs, strict=True):
        if rule.startswith("fedda"):
            vectors[index] = own * update
        else:
            whole = fedgp(sites.target, update[np.newaxis], own, layers=sites.layers, filter=filtered)
            vectors[index] = whole - (1 - own) * sites.target
    return vectors, dict(zip(sorted(sites.aligned), 1 - betas, strict=True))


def capped_update(
    rule: str,
    sites: Trained,
    header: Header,
    *,
    filtered: bool = True,
    lost: tuple[int, ...] = (),
) -> Vector64:
    """The round's update by the definition: each layer of a contribution is scaled to the caps of all reports."""
    sizes = sizes_of(header, sites)
    vectors, keep = contributions(rule, sites, filtered)
    norms = {
        index: contribution_norms(vector, sizes, sites.samples[index] / header.max_samples)
        for index, vector in vectors.items()
    }
    caps = caps_of(header, sizes, norms)
    members = sorted(set(vectors) - set(lost))
    total = sum(sites.samples[index] for index in members)
    update = sum(sites.samples[index] * keep[index] for index in members) / total * sites.target
    for index in members:
        factors = np.minimum(1.0, caps / np.maximum(norms[index], 1e-300))
        scaled = np.concatenate([f * part for f, part in zip(factors, split(vectors[index], sizes), strict=True)])
        update = update + sites.samples[index] / total * scaled
    return update


LAYER, MODEL = Granularity


@pytest.mark.parametrize(
    ("rule", "granularity", "filtered"),
    [
        ("source_only", LAYER, False),
        ("source_only", MODEL, False),
        ("fedda_auto", LAYER, False),
        ("fedda_auto", MODEL, False),
        ("fedgp", LAYER, True),
        ("fedgp_auto", LAYER, True),
        ("fedgp_auto", LAYER, False),
        ("fedgp_auto", MODEL, False),
    ],
)
def test_a_sum_under_caps_is_the_definition_over_capped_contributions(
    tmp_path: Path, rule: str, granularity: Granularity, filtered: bool
) -> None:
    settings = {"norm_cap_granularity": granularity, **FINE}
    federation = play(Federation(tmp_path, N, rule=rule, rounds=1, settings=settings, filter=filtered))
    sites, header = trained(federation), header_in(federation)
    assert any(records[0]["capped"] for records in federation.watch.records.values())
    assert header.norm_report_length == (2 if granularity is LAYER else 1)
    expected = sites.model + capped_update(rule, sites, header, filtered=filtered)
    assert np.max(np.abs(federation.run.model - expected)) < 1e-6


def test_every_source_scales_to_the_same_caps_unknown_to_the_aggregator(tmp_path: Path) -> None:
    federation = Federation(tmp_path, N, rule="fedda_auto", rounds=1, settings=FINE)
    seen = Seen(federation)
    play(federation)
    header, sites = header_in(federation), trained(federation)
    sizes = sizes_of(header, sites)
    vectors, _ = contributions("fedda_auto", sites, filtered=False)
    norms = {
        index: contribution_norms(vector, sizes, sites.samples[index] / header.max_samples)
        for index, vector in vectors.items()
    }
    caps = caps_of(header, sizes, norms)
    assert sorted(seen.vectors) == list(range(1, N + 1))
    capped = 0
    for index, vector in seen.vectors.items():
        assert lengths(vector, sizes) == pytest.approx(np.minimum(norms[index], caps), rel=1e-5)
        (record,) = federation.watch.records[index]
        assert record["capped"] == np.count_nonzero(norms[index] > caps)
        capped += bool(record["capped"])
    assert 0 < capped < N
    (line,) = federation.watch.lines
    assert not {"norm_cap", "capped", "zeroed"} & set(line)
    assert line["emptied"] == []


def test_no_part_of_a_sum_holds_more_than_the_smallest_others_together(tmp_path: Path) -> None:
    """One source trains with twice the learning rate of the others."""
    federation = Federation(tmp_path, N, rule="source_only", rounds=1, settings=FINE)
    federation.sources[2] = federation.source(2, learning_rate=0.1)
    seen = Seen(federation)
    play(federation)
    header = header_in(federation)
    assert header.norm_cap is not None
    norms = np.array([lengths(seen.vectors[i], tuple(x.size for x in header.layers)) ** 2 for i in range(1, N + 1)])
    for own in range(N):
        others = np.sort(np.delete(norms, own, axis=0), axis=0)[: header.norm_cap.others]
        assert np.all(others.sum(axis=0) >= header.norm_cap.kappa * norms[own] * (1 - 1e-6))
    assert federation.watch.records[2][0]["capped"] > 0


WEIGHT, BIAS = 12, 3


def test_a_layer_in_which_the_filter_leaves_one_source_alone_contributes_nothing(tmp_path: Path) -> None:
    """All agree with the target in the weights; in the bias one does, whose update that layer of the sum would be."""
    federation = Federation(tmp_path, N, rule="fedgp", beta=0.5, rounds=1, settings=FINE, filter=True)
    target = np.full(WEIGHT + BIAS, 0.1)
    fix(federation, TARGET, target)
    for index in range(1, N + 1):
        sign = 1.0 if index == 1 else -1.0
        fix(federation, index, [0.01 * index] * WEIGHT + [sign * 0.2] * BIAS)
    seen = Seen(federation)
    federation.open()
    before = federation.run.model.copy()
    play_on(federation)
    (line,) = federation.watch.lines
    assert line["emptied"] == ["bias"]
    assert np.all(seen.vectors[1][WEIGHT:] == 0)
    assert [federation.watch.records[index][0]["zeroed"] for index in range(1, N + 1)] == [1, 0, 0, 0, 0]
    moved = federation.run.model - before
    assert moved[:WEIGHT] == pytest.approx(target[:WEIGHT], abs=1e-6)  # every projection gives the target's own
    assert moved[WEIGHT:] == pytest.approx(0.5 * target[WEIGHT:], abs=1e-6)


def play_on(federation: Federation) -> None:
    federation.go()


def test_who_is_lost_after_it_shared_counts_for_the_caps_and_not_in_the_sum(tmp_path: Path) -> None:
    federation = Federation(tmp_path, N, rule="source_only", rounds=1, settings=FINE)
    federation.sources[2] = federation.source(2, learning_rate=0.1)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        return None if sender == 2 and isinstance(message.body, MaskedInput) else message

    federation.link = link
    play(federation)
    (line,) = federation.watch.lines
    assert line["dropped"] == ["source-2"]
    sites = trained(federation, others={2: {"learning_rate": 0.1}})
    expected = sites.model + capped_update("source_only", sites, header_in(federation), lost=(2,))
    assert np.max(np.abs(federation.run.model - expected)) < 1e-6


def with_reports(federation: Federation) -> dict[int, set[int]]:
    """For whom the boxes of each source are long enough for a norm report."""
    usual = box_bytes(header_in(federation))
    return {
        message.sender: {box.peer for box in message.body.boxes if len(box.box) > usual}
        for *_, message in federation.passed
        if isinstance(message.body, ShareBundle)
    }


def test_reports_travel_between_those_at_sum_alone(tmp_path: Path) -> None:
    permits = dict.fromkeys((3, 4, 5, 6), COHORT) | dict.fromkeys((7, 8, 9, 10), SUM)
    federation = play(Federation(tmp_path, 10, visibility=INDIVIDUAL, permits=permits, rule="fedgp_auto", rounds=1))
    at_sum = {index for index, level in permits.items() if level is SUM}
    assert with_reports(federation) == {index: at_sum - {index} if index in at_sum else set() for index in permits}
    committed = {
        message.sender: bool(message.body.report_commitment)
        for *_, message in federation.passed
        if isinstance(message.body, ShareBundle)
    }
    assert committed == dict.fromkeys(permits, True)  # whether there is a report or not


def test_without_a_norm_cap_there_are_no_reports_and_no_caps(tmp_path: Path) -> None:
    federation = play(Federation(tmp_path, N, rule="fedda_auto", rounds=1, settings={"kappa": 0.0}))
    assert header_in(federation).norm_cap is None
    assert with_reports(federation) == {index: set() for index in range(1, N + 1)}
    assert {record["capped"] for records in federation.watch.records.values() for record in records} == {0}


@pytest.mark.parametrize(("kappa", "left_out"), [(1.0, True), (0.0, False)])
def test_run_says_once_that_norm_caps_left_the_sources_out(tmp_path: Path, kappa: float, *, left_out: bool) -> None:
    """In every round the filter leaves one source alone in both layers."""
    settings = {**FINE, "kappa": kappa}
    federation = Federation(tmp_path, N, rule="fedgp", beta=0.5, rounds=5, settings=settings, filter=True)
    fix(federation, TARGET, np.full(WEIGHT + BIAS, 0.1))
    for index in range(1, N + 1):
        fix(federation, index, [0.2 if index == 1 else -0.2] * (WEIGHT + BIAS))
    play(federation)
    lines = federation.watch.lines
    assert [line["emptied"] for line in lines] == [["weight", "bias"] if left_out else []] * 5
    assert [line["round"] for line in lines if line.get("silenced")] == ([3] if left_out else [])
    said = [note for note in federation.watch.notes if "norm caps emptied" in str(note)]
    assert len(said) == left_out
    assert all("rounds 1 to 3" in str(note) and 'strategy.rule = "fedda_auto"' in str(note) for note in said)


@pytest.mark.parametrize(
    ("emptied", "shares", "silenced"),
    [
        ((1, 3, 1), (0.0, 0.009, 0.002), True),
        ((0, 1, 1, 1), (0.5, 0.0, 0.0, 0.0), True),
        ((3, 3, 3), (0.0, 0.01, 0.0), False),  # most layers by number, and what is left is a part
        ((1, 0, 1), (0.0, 0.0, 0.0), False),  # a short projection, and no cap
        ((1, 1), (0.0, 0.0), False),
    ],
)
def test_sources_without_a_part_in_three_rounds_in_a_row(
    emptied: tuple[int, ...], shares: tuple[float, ...], *, silenced: bool
) -> None:
    every = [
        {"emptied": ["layer"] * count, "source_share": share} for count, share in zip(emptied, shares, strict=True)
    ]
    *records, line = every
    assert is_silenced(line, records) is silenced
    assert not is_silenced(line, [{"silenced": True}, *records])
    assert not is_silenced({"source_share": 0.0}, records)  # a round of the target alone


@pytest.mark.parametrize(("name", "sources"), [("digits", 5), ("digits", 4), ("three_hospitals", 3)])
def test_honest_sources_have_a_part_in_every_step_by_default(tmp_path: Path, name: str, sources: int) -> None:
    short = ["strategy.rounds=4", "strategy.warm-up-rounds=2", "strategy.compare-target-only=false"]
    named = list(load_federation(sample(name)).federation.sources[:sources])
    simulate(load_federation(sample(name), [*short, f"federation.sources={named}"]), tmp_path, 0, SilentReporter())
    lines = read_run(tmp_path).rounds
    assert [line["emptied"] for line in lines] == [[]] * 4
    assert min(line["source_share"] for line in lines) >= NO_PART
