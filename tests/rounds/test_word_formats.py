"""Narrow words: the target takes ranges from sums that it has opened, and begins with wide words where it has none."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rounds_federation import Federation, changed, until

from securefda.aggregator import model as rounds_model
from securefda.aggregator.headers import n_max_for
from securefda.aggregator.ranges import WordFormat, format_for, narrowest, peaks_after
from securefda.aggregator.rounds import largest_factor
from securefda.aggregator.sums import PartialSum
from securefda.audit.reconcile.reconciled_runs import reconcile_folder
from securefda.protocol.encoding import N_STATISTICS, AggregateStatistics, EncodedLayer, Quantisation, vector_from_wire
from securefda.protocol.header_checks import quantisation
from securefda.protocol.hybrid import RECOVERY_BYTES
from securefda.protocol.messages import Advertise, Header, MaskedInput, Parcel, Refusal, ShareDelivery, Visibility
from securefda.rules import RoundPlan, project
from securefda.training import LocalResult, Vector
from securefda.training.trainer import SiteTrainer

SIZES = (300, 2)
ME, CLIP = 2, 1.0


def a_sum(*values: float, members: int = 4) -> PartialSum:
    """A sum whose two layers are filled with one value each."""
    vector = np.repeat(values, SIZES)
    return PartialSum(Visibility.SUM, vector, AggregateStatistics(0, 1, 0, 0), frozenset(range(members)))


@pytest.mark.parametrize(
    ("bits", "n_max", "width"),
    [(0, 4, 16), (0, 5, 20), (0, 20, 20), (0, 64, 20), (0, 65, 24), (0, 1024, 24), (0, 1025, 32), (16, 2000, 16)],
)
def test_auto_takes_the_fewest_bits_that_leave_14_to_a_source(bits: int, n_max: int, width: int) -> None:
    assert narrowest(bits, n_max) == width


@pytest.mark.parametrize(("sources", "later"), [(2, 2.0), (3, 2.5), (32, 2.5), (33, 3.0)])
def test_only_the_first_round_of_a_large_model_takes_four_bytes_a_parameter(sources: int, later: float) -> None:
    """Counted, not sent: 24.5 million parameters in layers of very different sizes."""
    sizes, n_max = (24_000_000, 499_000, 1000, 10), n_max_for(sources)

    def bytes_a_parameter(peaks: np.ndarray | None) -> float:
        words = format_for(narrowest(0, n_max), peaks, clip=CLIP, sizes=sizes)
        layers = tuple(map(EncodedLayer, sizes, words.ranges))
        return Quantisation(layers, n_max, words.bits, N_STATISTICS).nbytes / sum(sizes)

    assert bytes_a_parameter(None) == pytest.approx(4.0, abs=1e-5)
    assert bytes_a_parameter(np.full(len(sizes), 1e-4)) == pytest.approx(later, abs=1e-5)


def test_ranges_lie_above_the_largest_coordinate_that_a_source_may_have() -> None:
    """0.4 over four sources that have nothing to do with each other is 0.2 of one of them; small layers get more."""
    peaks = peaks_after(None, [a_sum(0.4, -0.1)], SIZES)
    assert peaks.tolist() == [0.2, 0.05]
    assert format_for(20, peaks, clip=10.0, sizes=SIZES) == WordFormat(20, (3.2, 6.4))
    assert format_for(20, peaks, clip=0.5, sizes=SIZES) == WordFormat(20, (0.5, 0.5))


def test_of_several_sums_the_largest_counts_and_rounds_before_fade() -> None:
    peaks = peaks_after(np.array([1.0, 0.01]), [a_sum(0.4, 0.1), a_sum(0.2, 0.3, members=1)], SIZES)
    assert peaks.tolist() == [0.8, 0.3]


def test_a_layer_of_zeros_says_nothing_and_its_range_is_the_clip_until_more_is_known() -> None:
    assert peaks_after(np.array([1.0, 0.01]), [a_sum(0.4, 0.0)], SIZES).tolist() == [0.8, 0.01]
    assert format_for(16, np.array([0.1, 0.0]), clip=1000.0, sizes=SIZES).ranges == pytest.approx((1.6, 1000.0))


def test_a_layer_of_zeros_has_a_range_by_the_projection_where_there_is_one() -> None:
    """At the clip, steps would be so coarse that norm caps take what comes next for zeros, and so every round."""
    update = np.repeat([0.01, 0.001], SIZES).astype(np.float32)
    ranges = format_for(20, np.array([0.1, 0.0]), clip=1000.0, sizes=SIZES, projected=update).ranges
    assert ranges == pytest.approx((1.6, 0.016))


def test_the_largest_weight_that_projections_had_together_bounds_that_of_each() -> None:
    records = [
        {"rule": "source_only", "mean_beta": None, "seen": [{"rows": 500}]},
        *({"rule": "fedgp_auto", "mean_beta": beta, "seen": [{"rows": 100}, {"rows": 50}]} for beta in (0.2, 0.4, 0.1)),
        {"rule": "fedda_auto", "mean_beta": 0.9, "seen": [{"rows": 150}]},
    ]
    plan = RoundPlan(rule="fedgp_auto")  # type: ignore[arg-type]
    assert largest_factor(records, plan, 1000) == pytest.approx(0.4 * 0.15)
    assert largest_factor(records, plan, 10) == 1.0
    assert largest_factor(records[:1], plan, 1000) == 1.0
    assert largest_factor(records, replace(plan, beta_per_layer=True), 1000) == 1.0


def test_under_a_rule_that_projects_no_range_is_below_sixteen_times_the_targets_layer() -> None:
    """A cosine of nearly zero makes a sum small and says nothing of the next round."""
    update = np.concatenate([np.full(SIZES[0], 0.01), np.full(SIZES[1], 0.001)]).astype(np.float32)
    ranges = format_for(20, np.array([1e-7, 0.05]), clip=10.0, sizes=SIZES, projected=update).ranges
    assert ranges == pytest.approx((0.16, 6.4))


@pytest.mark.parametrize("sparse", [False, True])
def test_a_projection_is_hardly_anywhere_beyond_such_a_range(*, sparse: bool) -> None:
    draws = np.random.default_rng(3)
    sizes = (4096, 100)
    update, source = draws.normal(size=(2, sum(sizes))).astype(np.float32)
    source += 0.5 * update
    source[: 4000 if sparse else 0] *= 1e-4  # as of units that most rows leave off
    part = project(update, source, layers=sizes)
    ranges = format_for(20, np.array([1e-9, 1e-9]), clip=10.0, sizes=sizes, projected=update).ranges
    beyond = np.abs(part) > np.repeat(ranges, sizes)
    assert beyond[:4096].sum() <= 4096 / 256
    assert not beyond[4096:].any()


@pytest.mark.parametrize(
    ("bits", "peaks"), [(32, np.array([1.0, 1.0])), (20, None), (20, np.zeros(2))], ids=["wide", "new", "all zero"]
)
def test_words_are_wide_where_there_is_nothing_to_go_by(bits: int, peaks: np.ndarray | None) -> None:
    assert format_for(bits, peaks, clip=2.0, sizes=SIZES) == WordFormat(32, (2.0, 2.0))


def headers_of(federation: Federation) -> list[Header]:
    sent = [message.body for _, to, message in federation.passed if to == ME]
    return [body for body in sent if isinstance(body, Header)]


@pytest.mark.parametrize("bits", [16, 20, 24])
def test_first_round_of_a_rule_is_wide_and_inputs_of_the_next_are_shorter(tmp_path: Path, bits: int) -> None:
    federation = Federation(tmp_path, 4, rule="fedgp_auto", rounds=5, warm_up_rounds=2, settings={"bits": bits})
    federation.open().go()
    assert federation.statuses == ["finished"] * 5
    headers = headers_of(federation)
    assert [header.modulus_bits for header in headers] == [32, bits, 32, bits, bits]
    sent = [message.body for index, _, message in federation.passed if index == ME]
    lengths = [body.length_bytes for body in sent if isinstance(body, MaskedInput)]
    m = headers[0].n_params
    behind = 3 * RECOVERY_BYTES  # for each other source
    assert lengths == [-(-m * header.modulus_bits // 8) + 28 + behind for header in headers]
    assert [quantisation(header).nbytes + behind for header in headers] == lengths


@pytest.mark.parametrize(("projection", "follows"), [("orthogonal", True), ("cosine", False)])
def test_ranges_follow_the_target_s_update_where_no_projection_is_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, projection: str, *, follows: bool
) -> None:
    bounds: list[Any] = []
    monkeypatch.setattr(
        rounds_model, "format_for", lambda *given, **by: bounds.append(by["projected"]) or format_for(*given, **by)
    )
    strategy = {"rule": "fedgp", "beta": 0.01, "rounds": 3, "warm_up_rounds": 1, "projection": projection}
    federation = Federation(tmp_path, 4, settings={"bits": 24}, **strategy).open()
    parcel = until(federation, ME, Header, round_number=3)
    header, update = parcel.message.body, vector_from_wire(parcel.vectors[1])
    (line,) = federation.watch.lines[1:2]
    factor = line["mean_beta"] * line["seen"][0]["rows"] / header.max_samples
    assert (bounds[-1] is not None) is follows
    if follows:
        np.testing.assert_allclose(bounds[-1], factor * update, rtol=1e-5)


def state_of(federation: Federation) -> list[str]:
    """All that a source has on disk."""
    return list(federation.stores[ME]._database.iterdump())


LIES: dict[str, Callable[[Header], dict[str, Any]]] = {
    "HEADER_RANGE": lambda header: {"layers": (replace(header.layers[0], range=1.01 * CLIP), *header.layers[1:])},
    "HEADER_MODULUS": lambda header: {"modulus_bits": 18},
    "HEADER_WRAP": lambda header: {"n_max": 3},
}


@pytest.mark.parametrize("check", LIES)
def test_a_false_encoding_is_refused_by_its_name_and_changes_nothing(tmp_path: Path, check: str) -> None:
    """The source goes on with the honest header, to the model of a run without the lie."""
    undisturbed, federation = (
        Federation(tmp_path / name, 4, rule="source_only", rounds=2, settings={"bits": 20})
        for name in ("undisturbed", "lied to")
    )
    undisturbed.open().go()
    header = until(federation.open(), ME, Header, round_number=2)
    before = state_of(federation)
    lie = Parcel(changed(header.message, **LIES[check](header.message.body)), header.vectors)
    assert [answer.message.body for answer in federation.sources[ME].handle(lie)] == [Refusal(check)]
    assert state_of(federation) == before
    for answer in federation.sources[ME].handle(header):
        federation.submit(ME, answer)
    federation.go()
    assert federation.statuses == ["finished"] * 2
    assert federation.run.model.tobytes() == undisturbed.run.model.tobytes()


def test_a_layer_beyond_its_range_does_not_leave_and_the_next_round_is_wide(tmp_path: Path) -> None:
    """The lie reaches one source; the target hears the refusal and trusts its ranges no more."""
    federation = Federation(tmp_path, 4, rule="source_only", rounds=4, settings={"bits": 20, "kappa": 0.0})
    header = until(federation.open(), ME, Header, round_number=3)
    first, *others = header.message.body.layers
    layers = (replace(first, range=first.range * 1e-6), *others)
    lie = Parcel(changed(header.message, layers=layers), header.vectors)
    keys, refusal = *federation.sources[ME].handle(lie), *federation.sources[ME].train()
    assert isinstance(keys.message.body, Advertise)  # under the lie, so that the target would not take them
    assert refusal.message.body == Refusal("CLIPPED")
    assert not federation.stores[ME].history(bytes(32), header.message.body.run_id, 3).released
    federation.submit(ME, refusal)
    federation.go()
    assert headers_of(federation)[-1].modulus_bits == 32


class Scaled(SiteTrainer):
    """Hands in its update times a factor, which may differ from round to round."""

    def __init__(self, real: SiteTrainer, factors: Sequence[float]) -> None:
        self.__dict__.update(real.__dict__)
        self._factors = factors

    def train(self, received: Vector, round_number: int, factor: float, **options: Any) -> LocalResult:
        result = super().train(received, round_number, factor, **options)
        return replace(result, update=np.float32(self._factors[round_number - 1]) * result.update)


def scale(federation: Federation, index: int, *factors: float) -> None:
    site = federation.sources[index]._site
    object.__setattr__(site, "trainer", Scaled(site.trainer, factors))  # type: ignore[arg-type]


def test_a_long_part_fits_the_ranges_of_capped_sums_once_it_is_capped_itself(tmp_path: Path) -> None:
    """Its coordinates are far beyond the ranges, which come from sums that show it as the caps left it."""
    federation = Federation(tmp_path, 4, rule="source_only", rounds=3, settings={"bits": 20})
    for index in federation.sources:
        scale(federation, index, *[1.0 if index == ME else 1e-4] * 3)
    federation.open().go()
    assert federation.statuses == ["finished"] * 3
    records = federation.store.records()
    assert [record["refused"] for record in records] == [{}] * 3
    assert [header.modulus_bits for header in headers_of(federation)] == [32, 20, 20]
    own = federation.watch.records[ME]
    assert [line["clipped"] for line in own] == [0] * 3
    assert all(line["capped"] for line in own)


def test_a_capped_part_beyond_its_range_does_not_leave_and_the_next_round_is_wide(tmp_path: Path) -> None:
    """All parts grow at once, so the caps grow with them: the sources refuse when they have seen all norms."""
    federation = Federation(tmp_path, 4, rule="source_only", rounds=4, settings={"bits": 20})
    for index in federation.sources:
        scale(federation, index, 1e-5, 1e-5, 1.0, 1.0)
    shares = until(federation.open(), ME, ShareDelivery, round_number=3)
    answers = federation.sources[ME].handle(shares)
    assert [answer.message.body for answer in answers] == [Refusal("CLIPPED")]
    assert federation.sources[ME].current is None
    run_id = federation.run.run_id
    assert not federation.stores[ME].history(bytes(32), run_id, 3).released
    for answer in answers:
        federation.submit(ME, answer)
    federation.go()
    records = federation.store.records()
    assert [record["status"] for record in records] == ["finished", "finished", "lost", "finished"]
    assert set(records[2]["refused"].values()) == {"CLIPPED"}
    assert "aborted" not in federation.watch.text
    assert headers_of(federation)[-1].modulus_bits == 32
    assert [found.kind for found in reconcile_folder(tmp_path / "audit").outcome.findings] == []
