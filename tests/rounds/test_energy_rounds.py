"""The energy rule in a run: the same caps at every source and at the aggregator, and a sum of what they leave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_definition import AUTO, Trained, Vector64, betas_of, trained
from rounds_federation import TARGET, AnySigned, Federation, is_header, site_id
from rounds_fixed import fix
from rounds_liars import Liar

from securefda.adaptation import energy_caps, energy_row, fedgp
from securefda.policy import EnergyBounds
from securefda.secagg.checks import quantisation
from securefda.secagg.messages import Advertise, Granularity, Header, KeyList, MaskedInput, Visibility

INDIVIDUAL, COHORT, SUM = Visibility
N = 5
FINE = {"modulus_bits": 64, "kappa": 2.0}


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


def rows_in(federation: Federation) -> dict[int, tuple[float, ...]]:
    """The energy rows that the key list of the only round holds."""
    lists = {message.signed_bytes: message.body for *_, message in federation.passed if message.type_name == "KeyList"}
    (key_list,) = lists.values()
    assert isinstance(key_list, KeyList)
    return {entry.sender: entry.body.energy for entry in key_list.advertisements}


def caps_of(header: Header, rows: dict[int, tuple[float, ...]]) -> Vector64:
    assert header.energy is not None
    return energy_caps(np.array([*rows.values()]), kappa=header.energy.kappa, others=header.energy.others)


def play(federation: Federation) -> Federation:
    federation.open().go()
    federation.close()
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
    """The round's update by the definition, each source's part of a layer scaled down to the cap of all rows."""
    sizes = sites.layers if len(header.layers) == header.energy_row_length else (sum(sites.layers),)
    vectors, keep = contributions(rule, sites, filtered)
    rows = {
        index: tuple(energy_row(vector, sizes, sites.samples[index] / header.max_samples).tolist())
        for index, vector in vectors.items()
    }
    caps = caps_of(header, rows)
    members = sorted(set(vectors) - set(lost))
    total = sum(sites.samples[index] for index in members)
    update = sum(sites.samples[index] * keep[index] for index in members) / total * sites.target
    for index in members:
        factors = np.minimum(1.0, caps / np.maximum(rows[index], 1e-300))
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
    settings = {"energy_granularity": granularity, **FINE}
    federation = play(Federation(tmp_path, N, rule=rule, rounds=1, settings=settings, filter=filtered))
    sites, header = trained(federation), header_in(federation)
    capped = federation.watch.lines[0]["energy"]
    assert capped is not None
    assert capped["capped"]
    assert header.energy_row_length == (2 if granularity is LAYER else 1)
    expected = sites.model + capped_update(rule, sites, header, filtered=filtered)
    assert np.max(np.abs(federation.run.model - expected)) < 1e-6


def test_every_source_scales_to_the_same_caps_and_the_aggregator_reports_them(tmp_path: Path) -> None:
    federation = Federation(tmp_path, N, rule="fedda_auto", rounds=1, settings=FINE)
    seen = Seen(federation)
    play(federation)
    header, rows = header_in(federation), rows_in(federation)
    caps, sizes = caps_of(header, rows), tuple(layer.size for layer in header.layers)
    assert sorted(seen.vectors) == sorted(rows) == list(range(1, N + 1))
    for index, vector in seen.vectors.items():
        assert lengths(vector, sizes) == pytest.approx(np.minimum(rows[index], caps), rel=1e-6)
        (record,) = federation.watch.records[index]
        assert record["capped"] == np.count_nonzero(rows[index] > caps)
    (line,) = federation.watch.lines
    capped = {site_id(index): int(np.count_nonzero(row > caps)) for index, row in rows.items()}
    assert line["energy"] == {
        "layers": 2,
        "zeroed": [],
        "capped": {site: count for site, count in capped.items() if count},
    }
    assert 0 < len(line["energy"]["capped"]) < N


def test_no_part_of_a_sum_holds_more_than_the_smallest_others_together(tmp_path: Path) -> None:
    """One source trains with twice the learning rate of the others."""
    federation = Federation(tmp_path, N, rule="source_only", rounds=1, settings=FINE)
    federation.sources[2] = federation.source(2, learning_rate=0.1)
    seen = Seen(federation)
    play(federation)
    header = header_in(federation)
    assert header.energy is not None
    energies = np.array([lengths(seen.vectors[i], tuple(x.size for x in header.layers)) ** 2 for i in range(1, N + 1)])
    for own in range(N):
        others = np.sort(np.delete(energies, own, axis=0), axis=0)[: header.energy.others]
        assert np.all(others.sum(axis=0) >= header.energy.kappa * energies[own] * (1 - 1e-6))
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
    assert line["energy"] is not None
    assert line["energy"]["zeroed"] == ["bias"]
    assert np.all(seen.vectors[1][WEIGHT:] == 0)
    assert [federation.watch.records[index][0]["zeroed"] for index in range(1, N + 1)] == [1, 0, 0, 0, 0]
    moved = federation.run.model - before
    assert moved[:WEIGHT] == pytest.approx(target[:WEIGHT], abs=1e-6)  # every projection gives the target's own
    assert moved[WEIGHT:] == pytest.approx(0.5 * target[WEIGHT:], abs=1e-6)


def play_on(federation: Federation) -> None:
    federation.go().close()


def test_who_is_lost_after_its_row_counts_for_the_caps_and_not_in_the_sum(tmp_path: Path) -> None:
    federation = Federation(tmp_path, N, rule="source_only", rounds=1, settings=FINE)
    federation.sources[2] = federation.source(2, learning_rate=0.1)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned | None:
        return None if sender == 2 and isinstance(message.body, MaskedInput) else message

    federation.link = link
    play(federation)
    (line,) = federation.watch.lines
    assert (line["dropped"], rows_in(federation).keys()) == (["source-2"], set(range(1, N + 1)))
    assert line["energy"] is not None
    assert "source-2" not in line["energy"]["capped"]
    sites = trained(federation, others={2: {"learning_rate": 0.1}})
    expected = sites.model + capped_update("source_only", sites, header_in(federation), lost=(2,))
    assert np.max(np.abs(federation.run.model - expected)) < 1e-6


def test_rows_travel_at_sum_alone(tmp_path: Path) -> None:
    permits = dict.fromkeys((3, 4, 5, 6), COHORT) | dict.fromkeys((7, 8, 9, 10), SUM)
    federation = play(Federation(tmp_path, 10, visibility=INDIVIDUAL, permits=permits, rule="fedgp_auto", rounds=1))
    rows = {
        message.sender: len(message.body.energy)
        for *_, message in federation.passed
        if isinstance(message.body, Advertise)
    }
    assert rows == {index: 2 if permits[index] is SUM else 0 for index in permits}


def test_without_the_rule_there_are_no_rows_and_no_caps(tmp_path: Path) -> None:
    federation = play(Federation(tmp_path, N, rule="fedda_auto", rounds=1, settings={"kappa": 0.0}))
    assert header_in(federation).energy is None
    assert set(rows_in(federation).values()) == {()}
    assert federation.watch.lines[0]["energy"] is None
    assert {record["capped"] for records in federation.watch.records.values() for record in records} == {0}


def test_a_rule_that_is_weaker_than_a_policy_asks_for_is_refused_by_its_key(tmp_path: Path) -> None:
    federation = Federation(tmp_path, N, rule="fedda_auto", rounds=1, settings={"kappa": 0.5})
    strict = federation.policy(2, energy=EnergyBounds(kappa=1.0))
    federation.sources[2] = federation.source(2, policy=strict)
    play(federation)
    (line,) = federation.watch.lines
    assert line["refused"] == {"source-2": "energy.kappa"}
    assert line["status"] == "finished"
