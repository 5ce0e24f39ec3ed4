"""A round of second moments: one model at every level, the target alone beside it, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from depth import at_depth
from rounds_federation import TARGET, Federation, changed, is_header, signer, site_id, trainer_of, until
from rounds_liars import SAMPLES, Liar
from rounds_tasks import Points

from securefda.audit import journal
from securefda.audit.reading import open_log
from securefda.audit.reconcile.reconciled_runs import reconcile_folder
from securefda.audit.record_filter import what_of
from securefda.audit.report.party_tables import read_party
from securefda.audit.report.words import contributions_in, updates_text, what_text
from securefda.errors import ConfigError, FaultyAggregatorError, TrainingError
from securefda.operations import watch_source
from securefda.operations.report import seen_section
from securefda.operations.summary_text import protected
from securefda.protocol.messages import GRAM_LAYER, Advertise, Header, Parcel, Result, Update, Visibility
from securefda.rules import Moments, fit_head
from securefda.samples import sample
from securefda.site.config import LoggingSection, MetricsSection, load_federation
from securefda.tasks import Samples, Unlabelled
from securefda.text import phase_words
from securefda.training import LocalResult
from securefda.training.head import HeadAlone, HeadFitter, head_rows, require_classes, require_right_targets
from securefda.training.trainer import SiteTrainer

N = 4
NO_CAPS = {"kappa": 0.0}


def federation(folder: Path, level: Visibility = Visibility.SUM, **options: Any) -> Federation:
    settings = NO_CAPS | options.pop("settings", {})
    return Federation(folder, N, visibility=level, settings=settings, **{"rule": "analytic", "rounds": 1} | options)


def played(folder: Path, level: Visibility = Visibility.SUM, **options: Any) -> Federation:
    found = federation(folder, level, **options).open().go()
    assert found.statuses == ["finished"]
    return found


def test_the_model_is_the_head_of_all_rows_weighted_as_leave_one_out_says(tmp_path: Path) -> None:
    found = played(tmp_path)
    model, bound = trainer_of(N, TARGET).initial_model(), found.settings.clip
    moments = [Moments.of(*head_rows(trainer_of(N, index), model), bound=bound) for index in range(1, N + 1)]
    sources = Moments(sum(one.gram for one in moments), sum(one.cross for one in moments), 24 * N)
    head = fit_head(sources, *head_rows(trainer_of(N, TARGET), model), bound=bound)
    weights = found.run.model[:12].reshape(3, 4)
    scale = float(np.linalg.norm(weights) / np.linalg.norm(head.weights[:, :4]))
    assert np.max(np.abs(found.run.model - scale * np.r_[head.weights[:, :4].ravel(), head.weights[:, 4]])) < 1e-4
    assert np.log2(scale) * 4 == pytest.approx(round(np.log2(scale) * 4), abs=1e-3)
    line = found.watch.lines[0]
    assert 0 < line["source_share"] <= 1
    assert any("a source's row weighs" in note for note in found.watch.notes)


@pytest.mark.parametrize("level", [Visibility.SUM, Visibility.INDIVIDUAL])
def test_no_phase_says_that_a_site_trains_or_sends_an_update(tmp_path: Path, level: Visibility) -> None:
    found, site = federation(tmp_path / "run", level).open(), site_id(1)
    off = LoggingSection(), MetricsSection()
    with watch_source(found.watch, *off, out=tmp_path, roster=found.roster, site=site) as watch:
        watch.rounds(found.watch.of_source(1)).round_started(1, level.label, "analytic")
        found.observers[1] = watch.hear
        found.go()
    assert found.statuses == ["finished"]
    said = [phase_words(phase) for phase in found.watch.phases]
    for words in ("adding up second moments of its rows", "rows and send", "sending its", "fitting the head"):
        assert any(words in line for line in said), words
    assert not re.search(r"\btrain|\bits (masked )?update", " ".join(said))


def test_norm_caps_take_one_factor_for_all_moments(tmp_path: Path) -> None:
    capped, free = played(tmp_path / "capped", settings={"kappa": 1.0}), played(tmp_path / "free")
    assert all(records[0]["zeroed"] == 0 for records in capped.watch.records.values())
    assert any(records[0]["capped"] for records in capped.watch.records.values())
    tests = [line.watch.lines[0]["accuracy"] for line in (capped, free)]
    assert abs(tests[0] - tests[1]) <= 0.05


def test_moments_are_no_yardstick_for_later_models(tmp_path: Path) -> None:
    """A later model of the run would be compared in units of this site's training, not of its rows' moments."""
    found = federation(tmp_path).open().kill_aggregator_at(Result)  # at the end of a run a source forgets its models
    for source in found.sources.values():
        site = source._site
        before = site.store.trained_from(bytes.fromhex(found.run.run_id), site.trainer.initial_model)
        assert (before.number, before.units) == (0, None)


class Nothing(SiteTrainer):
    """Its moments are zero, as norm caps can make them."""

    def __init__(self, real: SiteTrainer) -> None:
        self.__dict__.update(real.__dict__)

    def moments(self, *place: Any, **how: Any) -> LocalResult:
        result = super().moments(*place, **how)
        return replace(result, update=np.zeros_like(result.update))


def test_moments_beyond_what_a_model_can_hold_are_refused() -> None:
    fitter = HeadFitter(trainer_of(N, TARGET), 1.0)
    cross = np.zeros(30)
    cross[:12], cross[15:] = 1e300, Moments(np.eye(5), np.zeros((3, 5)), 1).means()[15:]
    fitter.site.rows = Unlabelled(fitter.site.labelled_rows().features)
    with pytest.raises(ValueError, match=r"^means: must be finite"):
        fitter.fit(fitter.site.initial_model(), cross, 10, N)
    with pytest.raises(ValueError, match=r"^sources: the head that fits their moments is beyond float32"):
        fitter.fit(fitter.site.initial_model(), np.minimum(cross, 1e80), 10, N)


class Lie(NamedTuple):
    """What a source masks in place of its moments, drawn from a seed."""

    what: str
    seed: int

    def __call__(self, encoded: Any, header: Header) -> None:
        random, words = np.random.default_rng(self.seed), 1 << header.modulus_bits
        moments, share = slice(0, header.n_summed), int(random.integers(1, 6))
        match self.what:
            case "any numbers":
                encoded[moments] = random.integers(words, size=header.n_summed)
            case "no squares":  # moments with negative eigenvalues, as long as honest ones
                encoded[moments] = -encoded[moments].astype(np.int64) // share % words
            case "more rows":
                encoded[SAMPLES] += words // 16 // share
            case "hardly any rows":
                encoded[SAMPLES] //= 10**share


LIES = ("any numbers", "no squares", "more rows", "hardly any rows")


@pytest.mark.parametrize("level", [Visibility.SUM, Visibility.COHORT])
@pytest.mark.parametrize("what", LIES)
def test_of_moments_that_no_rows_have_nothing_or_a_finite_model_comes(
    tmp_path_factory: pytest.TempPathFactory, level: Visibility, what: str
) -> None:
    """Masks hide the liar: the sum is refused, with the check's name, or it passes for that of other rows or noise."""
    for seed in range(at_depth(1, 50)):
        told = federation(tmp_path_factory.mktemp("lie"), level)
        before = told.run.site.trainer.initial_model()
        told.sources = {index: Liar(source, Lie(what, seed)) for index, source in told.sources.items()}
        told.open().go()
        told.close()
        if told.statuses == ["finished"]:
            assert np.isfinite(told.run.model).all()
            assert what != "hardly any rows"
        else:
            assert np.array_equal(told.run.model, before)
            assert "a source lied about its contribution" in told.watch.text or "RANGE" in told.watch.text


@pytest.mark.parametrize(
    ("vector", "changes", "check"),
    [
        (np.zeros(15, "<f4"), {"length_bytes": 60}, "INPUT_LENGTH"),
        (np.zeros(31, "<f4"), {"length_bytes": 124}, "INPUT_LENGTH"),
    ],
    ids=["of a model alone", "longer"],
)
def test_moments_in_clear_that_can_be_none_are_refused_and_the_others_make_the_model(
    tmp_path: Path, vector: Any, changes: dict[str, Any], check: str
) -> None:
    told = federation(tmp_path, Visibility.INDIVIDUAL).open()
    update = until(told, TARGET, Update)
    liar, envelope = update.message.sender, update.message.envelope
    body = replace(envelope.body, digest=sha256(vector.tobytes()).digest(), **changes)
    lie = signer(liar).sign(envelope.session_id, envelope.context, body)
    told.arrives_next(liar, TARGET, Parcel(lie, (vector.tobytes(),)))
    told.go()
    assert told.statuses == ["finished"]
    assert told.watch.lines[0]["dropped"] == [f"source-{liar}"]
    assert f"source source-{liar} fails check {check}" in told.watch.text
    assert np.isfinite(told.run.model).all()


def differing(folder: Path) -> list[str]:
    """What the logs of all sites say of disclosures that their headers contradict."""
    return [one.what for one in reconcile_folder(folder).outcome.findings if one.kind == "disclosure-differs"]


@pytest.mark.parametrize("level", Visibility)
def test_every_log_says_that_moments_left_and_an_auditor_reads_it_so(tmp_path: Path, level: Visibility) -> None:
    found = federation(tmp_path, level, recorded=True).open().go()
    assert differing(tmp_path) == []
    for index in range(1, N + 1):
        records = list(open_log(tmp_path / "audit" / site_id(index) / found.run.run_id).records())
        said = [what_of(one.entry) for one in records if one.entry.disclosure is not None]
        assert len(said) == 1
        assert said[0].startswith(f"discloses moments at {level.label}")
        flows = read_party(site_id(index), records).flows
        assert (
            what_text(flows[0].what)
            == "second moments: sums over the site's rows of products of their features and labels"
        )
        left = {"individual": "in clear", "cohort": "inside sums of cohorts", "sum": "inside one sum"}[level.label]
        assert updates_text(flows) == f"1 message of second moments {left}"
        assert contributions_in(flows) == "messages of second moments"
    (table,) = seen_section(found.watch.lines).parts
    assert all("second moments of" in row[2] for row in table.rows)
    summary = protected({site_id(1): level.label}, "analytic", norm_cap=None)
    assert "second moments of" in summary
    assert "update" not in summary


def test_a_log_that_calls_moments_an_update_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "added_under", lambda _: "update")
    federation(tmp_path, recorded=True).open().go()
    said = differing(tmp_path)
    assert len(said) == N
    assert "discloses update at sum" in said[0]
    assert "it is moments at sum" in said[0]


def with_nothing(folder: Path) -> Federation:
    found = federation(folder)
    for source in found.sources.values():
        object.__setattr__(source._site, "trainer", Nothing(source._site.trainer))
    return found


def test_sums_of_nothing_leave_the_target_alone(tmp_path: Path) -> None:
    emptied = with_nothing(tmp_path).open().go()
    target = HeadAlone(HeadFitter(trainer_of(N, TARGET), emptied.settings.clip))
    alone = target.initial_model() + target.train(target.initial_model(), 1, 1.0).update
    assert emptied.statuses == ["finished"]
    direction = np.dot(emptied.run.model, alone) / np.linalg.norm(emptied.run.model) / np.linalg.norm(alone)
    assert direction == pytest.approx(1.0, abs=1e-3)


def test_sums_of_nothing_lose_the_round_of_a_target_without_labels(tmp_path: Path) -> None:
    emptied = with_nothing(tmp_path)
    target = emptied.run._site.trainer
    target.rows = Unlabelled(target.rows.features)
    emptied.open().go()
    assert "finished" not in emptied.statuses
    assert "there are no moments" in emptied.watch.text


def test_the_target_alone_is_fitted_in_the_same_way(tmp_path: Path) -> None:
    target = trainer_of(N, TARGET)
    alone = HeadAlone(HeadFitter(target, 1.0))
    step = alone.train(alone.initial_model(), 1, 1.0).update
    head = fit_head(None, *head_rows(target, target.initial_model()), bound=1.0)
    direction = np.r_[head.weights[:, :4].ravel(), head.weights[:, 4]]
    model = alone.initial_model() + step
    assert np.dot(model, direction) == pytest.approx(np.linalg.norm(model) * np.linalg.norm(direction), rel=1e-6)


def test_the_target_takes_off_as_much_noise_as_its_settings_say() -> None:
    target = trainer_of(N, TARGET)
    model, sources = target.initial_model(), Moments.of(*head_rows(trainer_of(N, 1), np.zeros(15, "f4")), bound=2.0)
    fitter = HeadFitter(target, 2.0, source_noise=1.5)
    fitted = fitter.fit(model, sources.means(), sources.rows, 4).head.weights
    expected, plain = (
        fit_head(sources, *head_rows(target, model), bound=2.0, noise=noise).weights for noise in (6.0, 0.0)
    )
    assert fitted == pytest.approx(expected)
    assert not np.allclose(expected, plain, rtol=0.01)


def test_all_classes_count_alike_in_a_balanced_head() -> None:
    target = trainer_of(N, TARGET)
    model, sources = target.initial_model(), Moments.of(*head_rows(trainer_of(N, 1), np.zeros(15, "f4")), bound=1.0)
    expected, plain = (
        fit_head(sources, *head_rows(target, model), bound=1.0, balanced=balanced).weights for balanced in (True, False)
    )
    fitter = HeadFitter(target, 1.0, balanced=True)
    require_classes(target)
    weights = fitter.fit(model, sources.means(), sources.rows, 1).vector[:12].reshape(3, 4)
    turned = [np.vdot(weights, one[:, :4]) / np.linalg.norm(one[:, :4]) for one in (expected, plain)]
    assert turned[0] == pytest.approx(np.linalg.norm(weights))
    assert turned[1] < 0.9999 * turned[0]


def test_only_labels_that_are_class_numbers_can_be_balanced() -> None:
    target = trainer_of(N, TARGET)
    given = target.rows
    for unfit in (Samples(given.features, given.labels.float()), Unlabelled(given.features)):
        target.rows = unfit
        with pytest.raises(ConfigError, match="the labels of task Points are not known to be classes"):
            require_classes(target)
    target.rows = given
    target.task.head_targets = lambda labels, outputs: 2 * torch.eye(outputs)[labels] - 1
    with pytest.raises(ConfigError, match=r"^strategy\.class-weights: "):
        require_classes(target)


class Logits(Points):
    """Each point has any of three labels, and a label of 1 wants an output above 0."""

    def metrics(self, outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        return {"accuracy": float(((outputs > 0) == (labels > 0)).double().mean())}


class Fitted(Logits):
    def head_targets(self, labels: torch.Tensor, outputs: int) -> torch.Tensor:
        return 2 * labels - 1


def test_labels_that_would_be_wrong_as_outputs_are_refused_at_the_target() -> None:
    target = trainer_of(N, TARGET)
    require_right_targets(target)
    settings = target.task.settings
    target.rows = Samples(target.rows.features, torch.eye(3)[target.rows.labels])
    target.task = Logits(settings)
    with pytest.raises(ConfigError, match=r"outputs near them have an accuracy of 0\.333") as refused:
        require_right_targets(target)
    assert "2 * labels - 1" in (refused.value.hint or "")
    target.task = Fitted(settings)
    require_right_targets(target)


def test_the_header_has_the_moments_behind_the_model_and_asks_for_no_metrics(tmp_path: Path) -> None:
    found = played(tmp_path)
    header = next(message.body for *_, message in found.passed if is_header(message))
    assert [(layer.name, layer.shape) for layer in header.layers[2:]] == [(GRAM_LAYER, (15,))]
    assert (header.n_params, header.n_summed, header.metrics) == (15, 30, False)


def test_no_moments_leave_in_a_later_round(tmp_path: Path) -> None:
    asked = federation(tmp_path)
    asked.link = lambda _sender, _to, message: changed(message, round=2) if is_header(message) else message
    asked.open().go()
    assert "finished" not in asked.statuses
    for index in range(1, N + 1):
        (alarm, *_) = asked.watch.alarms[index]
        assert isinstance(alarm, FaultyAggregatorError)
        assert alarm.check == "HEADER_MOMENTS"
    assert not any(isinstance(message.body, Advertise) for *_, message in asked.passed)


def test_a_model_that_trains_more_than_its_last_layer_is_refused() -> None:
    trainer = trainer_of(N, 1, hidden=2)
    with pytest.raises(TrainingError, match=r"last linear layer alone, and the model also trains 0\.weight") as refused:
        trainer.moments(trainer.initial_model(), 1, bound=1.0, permitted=lambda *rows: rows[:2])
    assert "task.options.hidden-units = 0" in (refused.value.hint or "")


def test_noise_at_the_target_and_counted_rows_are_refused() -> None:
    trainer = trainer_of(N, 1)
    trainer._least_rows = 3
    with pytest.raises(TrainingError, match="source-1 counts the rows that move a parameter"):
        trainer.moments(trainer.initial_model(), 1, bound=1.0, permitted=lambda *rows: rows[:2])
    with pytest.raises(ConfigError) as refused:
        load_federation(
            sample("fed_heart"),
            [
                "strategy.rule=analytic",
                "strategy.rounds=1",
                "strategy.warm-up-rounds=0",
                "training.target.dp.noise-multiplier=1",
            ],
        )
    assert refused.value.key == "training.target.dp.noise-multiplier"


def test_sources_are_moved_to_the_mean_of_a_target_without_labels_and_learn_nothing_more(tmp_path: Path) -> None:
    runs = []
    for moves in (False, True):
        found = federation(tmp_path / str(moves))
        site = found.run._site
        site.trainer.rows = Unlabelled(site.trainer.rows.features + 1)
        fitter = HeadFitter(site.trainer, found.settings.clip, moves_mean=moves)
        found.run._model._site = replace(site, head_fitter=fitter)
        found.open().go()
        assert found.statuses == ["finished"]
        runs.append(found)
    left, moved = (found.run.model[:15].reshape(-1) for found in runs)
    assert not np.allclose(left, moved, atol=1e-3)
    headers = [next(message.body for *_, message in found.passed if is_header(message)) for found in runs]
    assert headers[0].rule == headers[1].rule


@pytest.mark.parametrize(
    "settings",
    [
        ["training.target.labels=given"],
        ["training.target.labels=none", "strategy.rule=source_only", "strategy.rounds=3"],
    ],
)
def test_moments_move_only_to_a_target_without_labels_under_analytic(settings: list[str]) -> None:
    with pytest.raises(ConfigError, match="applies only under analytic to a target without labels") as refused:
        load_federation(sample("amazon_reviews"), ["strategy.align-moments=mean", *settings])
    assert refused.value.key == "strategy.align-moments"


@pytest.mark.parametrize("setting", ["class-weights=balanced", "source-noise=1"])
def test_settings_of_the_analytic_rule_are_refused_under_others(setting: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_federation(sample("fed_heart"), ["strategy.rule=fedgp_auto", f"strategy.{setting}"])
    assert refused.value.key == f"strategy.{setting.partition('=')[0]}"
