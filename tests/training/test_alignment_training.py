"""Training towards features like the target's: one step, the pull, what is kept, and what a target releases."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, logsigmoid

from securefda.errors import ConfigError, TrainingError
from securefda.tasks import Disentangled, Samples, Task, TaskSettings
from securefda.training import AlignmentSettings, LocalResult, TrainingSettings, Vector, build_model, train_local
from securefda.training.alignment import AlignmentRule, FeatureAlignment, train_aligned
from securefda.training.alignment.loss import AlignmentLoss
from securefda.training.alignment.losses import discrepancy, median_distance
from securefda.training.memory import private_modules_key
from securefda.training.model_features import extract_features, feature_width
from securefda.training.parameter_vectors import model_to_vector, vector_to_model
from securefda.training.site_features import SiteFeatures
from securefda.training.trainer import SiteTrainer

RUN = "0" * 32
WIDTH, CLASSES, ROWS, T = 6, 3, 60, 20
SETTINGS = TrainingSettings(optimizer="sgd", learning_rate=0.1, batch_size=20, device="cpu", threads=1)
RULES = tuple(AlignmentRule)
LEARNING = tuple(rule for rule in RULES if rule is not AlignmentRule.F_DAN)


class Points(Task):
    """Three classes of points in four dimensions; those of the target lie elsewhere. ``parts``: features of two."""

    def __init__(self, *, parts: bool = True, rows: int = ROWS) -> None:
        super().__init__(TaskSettings("target", ("source-1",)))
        self._parts, self._rows = parts, rows

    def model(self) -> nn.Module:
        if not self._parts:
            return nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
        extractor = nn.Sequential(nn.Linear(4, 8), nn.Tanh())
        invariant = nn.Sequential(nn.Linear(8, WIDTH), nn.Tanh())
        return Disentangled(extractor, invariant, nn.Linear(8, 5), nn.Linear(WIDTH, CLASSES))

    def train_data(self, site: str) -> Samples:
        draws = torch.Generator().manual_seed(len(site))
        labels = torch.arange(self._rows) % CLASSES
        away = 1.5 if site == self.settings.target else 0.0
        points = torch.eye(4)[labels] + 0.3 * torch.randn(self._rows, 4, generator=draws)
        return Samples(points + away * torch.tensor([0.0, 0.0, 1.0, 1.0]), labels)

    def test_data(self, site: str) -> Samples:
        return self.train_data(site)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": float((outputs.argmax(1) == labels).double().mean())}


class Memory:
    """What a site keeps over restarts."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, int], bytes] = {}

    def personal(self, run_id: str, before: int) -> bytes | None:
        known = [number for run, number in self.states if run == run_id and number < before]
        return self.states[run_id, max(known)] if known else None

    def keep_personal(self, run_id: str, round_number: int, state: bytes) -> None:
        self.states[run_id, round_number] = state


TASK = Points()
DATA = TASK.train_data("source-1")


def first_model() -> Vector:
    return model_to_vector(build_model(TASK, 5))


def at(vector: Vector, task: Task = TASK) -> nn.Module:
    model = build_model(task, 0)
    vector_to_model(vector, model)
    return model.eval()


def site(name: str = "source-1", memory: Memory | None = None, **changed: Any) -> SiteTrainer:
    task = changed.pop("task", TASK)
    return SiteTrainer(task, name, task.train_data(name), replace(SETTINGS, **changed), 5, memory=memory)


def target_features(vector: Vector, rows: int = T) -> Vector:
    """Features of the target's first rows."""
    return extract_features(TASK, at(vector), TASK.train_data("target").features[:rows])


def trained(kind: AlignmentRule, *, features: Vector | None = None, **changed: Any) -> tuple[LocalResult, bytes]:
    vector = first_model()
    features = target_features(vector) if features is None else features
    settings = replace(SETTINGS, **changed)
    how: dict[str, Any] = {"settings": settings, "seed": 3, "first": 4, "kept": None, "site": "source-1"}
    return train_aligned(TASK, build_model(TASK, 0), vector, DATA, FeatureAlignment(kind, features), **how)


def alignment_loss(kind: AlignmentRule, features: Vector, **weights: float) -> tuple[AlignmentLoss, Any]:
    """Return the alignment loss of a model with the run's first parameters, and that model."""
    model: Any = at(first_model())
    torch.manual_seed(7)
    return AlignmentLoss(
        FeatureAlignment(kind, features), model, AlignmentSettings(**weights), DATA.features[:2], own_spread=0.0
    ), model


def standardised(features: Tensor, target: Tensor) -> Tensor:
    return (features - target.mean(0)) / target.std(0, correction=0)


# --- what a step minimises --------------------------------------------------------------------------------------------


def added_gradient(kind: AlignmentRule, **weights: float) -> tuple[AlignmentLoss, Any, Tensor]:
    """Of what one batch adds to the loss, with respect to all parameters of the model, (m,)."""
    alignment, model = alignment_loss(kind, target_features(first_model()), **weights)
    with alignment.observing():
        torch.manual_seed(9)
        model(DATA.features)
        loss = alignment.added_loss(TASK, DATA.labels)
    return alignment, model, gradient_of(loss, model)


def gradient_of(loss: Tensor, model: nn.Module) -> Tensor:
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True)
    parts = [
        torch.zeros_like(of) if gradient is None else gradient
        for of, gradient in zip(parameters, gradients, strict=True)
    ]
    return torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("kind", [AlignmentRule.FADA_ADVERSARIAL, AlignmentRule.F_DANN])
def test_the_adversarial_term_is_that_of_the_identifier_as_it_has_learnt(kind: AlignmentRule) -> None:
    alignment, model, gradient = added_gradient(kind, adversarial=0.3)
    target = torch.from_numpy(target_features(first_model()))
    logits = alignment.modules["domain"](standardised(model.invariant(model.extractor(DATA.features)), target))
    confused = -logsigmoid(-logits).mean() if kind is AlignmentRule.FADA_ADVERSARIAL else logsigmoid(logits).mean()

    assert torch.allclose(gradient, gradient_of(0.3 * confused, model), atol=1e-7)
    assert gradient.abs().max() > 1e-4
    assert all(parameter.requires_grad for parameter in alignment.modules.parameters())


def test_the_discrepancy_is_of_standardised_features() -> None:
    _, model, gradient = added_gradient(AlignmentRule.F_DAN, adversarial=0.3)
    target = torch.from_numpy(target_features(first_model()))
    own, sent = standardised(model.invariant(model.extractor(DATA.features)), target), standardised(target, target)
    loss = 0.3 * discrepancy(own, sent, median_distance(own, sent))

    assert torch.allclose(gradient, gradient_of(loss, model), atol=1e-7)
    assert gradient.abs().max() > 1e-4


def test_model_three_adds_entropy_information_and_reconstruction() -> None:
    weights = {"adversarial": 0.3, "entropy": 0.2, "information": 0.4, "reconstruction": 0.5}
    alignment, model, gradient = added_gradient(AlignmentRule.FADA, **weights)
    target, private = torch.from_numpy(target_features(first_model())), alignment.modules
    whole = model.extractor(DATA.features)
    features, specific = model.invariant(whole), model.specific(whole)
    own = standardised(features, target)
    torch.manual_seed(9)
    shuffled = torch.randperm(ROWS)

    confused = -logsigmoid(-private["domain"](own)).mean()
    shares = private["classes"](specific).softmax(1)
    entropy = -(shares * shares.log()).sum(1).mean()
    together, apart = private["information"](own, specific), private["information"](own, specific[shuffled])
    information = together.mean() - torch.log(apart.exp().mean())
    distance = (private["parts"](features, specific) - whole.detach()).square().mean()
    loss = (
        0.3 * confused
        + 0.2 * (cross_entropy(private["classes"](specific), DATA.labels) - entropy)
        + 0.4 * information
        + 0.5 * distance / whole.detach().var(0, unbiased=False).mean()
    )
    assert torch.allclose(gradient, gradient_of(loss, model), atol=1e-6)


def test_features_that_hardly_differ_are_measured_in_the_spread_of_the_sources_own() -> None:
    """The target can make them up, and by their own spread everything would be far from them."""
    made_up = 1e-6 * np.random.default_rng(1).standard_normal(target_features(first_model()).shape)
    aligned = FeatureAlignment(AlignmentRule.F_DANN, made_up.astype(np.float32))
    pulls = []
    for spread in (0.0, 1.0):
        torch.manual_seed(7)
        loss = AlignmentLoss(aligned, at(first_model()), AlignmentSettings(), DATA.features[:2], own_spread=spread)
        pulls.append(np.abs(loss.pull()).max())
    assert pulls[0] > 1e4 * pulls[1] > 0


@pytest.mark.parametrize("kind", RULES)
def test_with_no_weight_the_update_is_that_without_a_target(kind: AlignmentRule) -> None:
    nothing = AlignmentSettings(adversarial=0.0, entropy=0.0, information=0.0, reconstruction=0.0)
    alone = train_local(TASK, build_model(TASK, 0), first_model(), DATA, settings=SETTINGS, seed=3, site="source-1")
    weightless, _ = trained(kind, align=nothing)
    weighty, _ = trained(kind, align=AlignmentSettings(adversarial=1.0))

    assert np.allclose(weightless.update, alone.update, atol=1e-7)
    assert weightless.loss == pytest.approx(alone.loss)
    assert np.max(np.abs(weighty.update - alone.update)) > 1e-3


@pytest.mark.parametrize("kind", LEARNING)
def test_the_identifier_learns_to_tell_the_target(kind: AlignmentRule) -> None:
    vector = first_model()
    alignment, model = alignment_loss(kind, target_features(vector), adversarial=0.0)
    settings = replace(SETTINGS, epochs=100)
    train_local(TASK, model, vector, DATA, settings=settings, seed=3, site="source-1", auxiliary=alignment)
    target = torch.from_numpy(target_features(vector))
    with torch.no_grad():
        own = alignment.modules["domain"](standardised(model.invariant(model.extractor(DATA.features)), target))
        sent = alignment.modules["domain"](standardised(target, target))

    assert float((own > 0).double().mean()) > 0.9
    assert float((sent < 0).double().mean()) > 0.9


# --- the pull, and how the target follows it --------------------------------------------------------------------------


def the_targets_loss(
    kind: AlignmentRule, alignment: AlignmentLoss, target: Tensor, own: Tensor, moments: Tensor
) -> Tensor:
    """What a source wants the target to make small, of its features; the moments stay what they were."""
    sent = standardised(target, moments)
    if kind is AlignmentRule.F_DAN:
        own = standardised(own, moments)
        return discrepancy(own, sent, median_distance(own, sent))
    logits = alignment.modules["domain"](sent)
    return logsigmoid(-logits).mean() if kind is AlignmentRule.F_DANN else -logsigmoid(logits).mean()


@pytest.mark.parametrize("kind", RULES)
def test_the_pull_is_the_gradient_by_each_row_times_the_rows(kind: AlignmentRule) -> None:
    features = target_features(first_model())
    alignment, model = alignment_loss(kind, features)
    own = model.invariant(model.extractor(DATA.features)).detach()
    target = torch.from_numpy(features).requires_grad_()
    (expected,) = torch.autograd.grad(the_targets_loss(kind, alignment, target, own, target.detach()), [target])
    pull = alignment.pull(own)

    assert pull.dtype == np.float32
    assert np.allclose(pull, T * expected.numpy(), rtol=1e-4, atol=1e-6)
    assert np.abs(pull).max() > 1e-3


@pytest.mark.parametrize("kind", RULES)
def test_only_f_dan_needs_features_of_own_rows_for_its_pull(kind: AlignmentRule) -> None:
    alignment, model = alignment_loss(kind, target_features(first_model()))
    own = model.invariant(model.extractor(DATA.features)).detach()
    if kind is AlignmentRule.F_DAN:
        with pytest.raises(ValueError, match=r"^own: "):
            alignment.pull()
    else:
        assert np.array_equal(alignment.pull(), alignment.pull(own))


@pytest.mark.parametrize("kind", LEARNING)
def test_the_size_of_a_pull_does_not_depend_on_the_number_of_rows(kind: AlignmentRule) -> None:
    once = target_features(first_model())
    lengths = []
    for features in (once, np.concatenate([once] * 3)):
        alignment, _ = alignment_loss(kind, features)
        lengths.append(np.linalg.norm(alignment.pull(torch.from_numpy(target_features(first_model()) + 1))[:T]))

    assert lengths[1] == pytest.approx(lengths[0], rel=1e-3)


def test_follow_is_the_product_of_the_pull_and_the_features_slopes() -> None:
    target, vector = SiteFeatures(site("target")), first_model()
    pull = np.random.default_rng(0).standard_normal((T, WIDTH)).astype(np.float32)
    pulled = target.pull_gradient(vector, 3, RUN, pull, rows=T)
    released = target.release(vector, 3, RUN, rows=T, clip=0.0)
    step, model = 1e-2, at(vector).double()
    rows = rows_released(vector, released)

    assert pulled.dtype == np.float32
    place = 0
    for parameter in model.parameters():
        flat = parameter.data.view(-1)
        before, sides = flat[0].item(), []
        for moved in (before + step, before - step):
            flat[0] = moved
            sides.append(float((extract_features(TASK, model, rows.double()) * pull).sum()) / T)
        flat[0] = before
        assert pulled[place] == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-2, abs=1e-5)
        place += flat.numel()


def rows_released(vector: Vector, released: Vector) -> Tensor:
    """Which rows of the target these are features of."""
    everything = TASK.train_data("target").features
    known = extract_features(TASK, at(vector), everything)
    distances = np.abs(known[:, None, :] - released[None, :, :]).max(axis=2)
    assert distances.min(axis=0).max() < 1e-6
    return everything[torch.from_numpy(distances.argmin(axis=0))]


@pytest.mark.parametrize("kind", RULES)
def test_a_step_of_the_target_against_the_pull_lowers_the_sources_loss(kind: AlignmentRule) -> None:
    target, vector = SiteFeatures(site("target")), first_model()
    released = target.release(vector, 1, RUN, rows=T, clip=0.0)
    alignment, model = alignment_loss(kind, released)
    own = model.invariant(model.extractor(DATA.features)).detach()
    gradient = target.pull_gradient(vector, 1, RUN, alignment.pull(own), rows=T)
    moved = (vector - 0.001 * gradient / np.linalg.norm(gradient)).astype(np.float32)
    after = target.release(moved, 1, RUN, rows=T, clip=0.0)
    moments = torch.from_numpy(released)
    losses = [
        float(the_targets_loss(kind, alignment, torch.from_numpy(features), own, moments).detach())
        for features in (released, after)
    ]
    expected = float(np.sum(alignment.pull(own) * (after - released))) / T

    assert losses[1] < losses[0]
    assert losses[1] - losses[0] == pytest.approx(expected, rel=0.2)


# --- what a source keeps ----------------------------------------------------------------------------------------------


def rounds(source: SiteTrainer, kind: AlignmentRule, numbers: range) -> list[LocalResult]:
    vector = first_model()
    aligned = FeatureAlignment(kind, target_features(vector))
    return [source.train(vector, number, 1.0, run_id=RUN, align=aligned) for number in numbers]


@pytest.mark.parametrize("kind", LEARNING)
def test_a_source_that_restarts_goes_on_with_its_private_modules(kind: AlignmentRule) -> None:
    whole, broken = Memory(), Memory()
    expected = rounds(site(memory=whole), kind, range(1, 4))
    resumed = rounds(site(memory=broken), kind, range(1, 3)) + rounds(site(memory=broken), kind, range(3, 4))

    assert broken.states == whole.states
    assert whole.states[private_modules_key(RUN), 1] != whole.states[private_modules_key(RUN), 3]
    for whole_round, resumed_round in zip(expected, resumed, strict=True):
        assert np.array_equal(whole_round.update, resumed_round.update)
        assert np.array_equal(pull_of(whole_round), pull_of(resumed_round))


def pull_of(result: LocalResult) -> Vector:
    assert result.pull is not None
    return result.pull


def test_without_what_was_kept_a_round_is_another() -> None:
    kept, lost = Memory(), Memory()
    rounds(site(memory=kept), AlignmentRule.F_DANN, range(1, 3))
    going_on = rounds(site(memory=kept), AlignmentRule.F_DANN, range(3, 4))[0]
    afresh = rounds(site(memory=lost), AlignmentRule.F_DANN, range(3, 4))[0]

    assert not np.array_equal(pull_of(going_on), pull_of(afresh))


@pytest.mark.parametrize("kind", RULES)
def test_a_round_that_is_tried_again_gives_the_same(kind: AlignmentRule) -> None:
    source = site(memory=Memory())
    rounds(source, kind, range(1, 2))
    once, again = rounds(source, kind, range(2, 3))[0], rounds(source, kind, range(2, 3))[0]

    assert np.array_equal(once.update, again.update)
    assert np.array_equal(pull_of(once), pull_of(again))


def test_private_modules_of_two_sites_differ_from_the_beginning() -> None:
    memories = [Memory(), Memory()]
    slow = AlignmentSettings(private_learning_rate=1e-9)
    for name, memory in zip(("source-1", "another"), memories, strict=True):
        rounds(site(name, memory, align=slow), AlignmentRule.F_DANN, range(1, 2))
    first, other = (np.frombuffer(memory.states[private_modules_key(RUN), 1], "<f4") for memory in memories)

    assert first.shape == other.shape
    assert np.abs(first - other).max() > 0.1


# --- what a target releases -------------------------------------------------------------------------------------------


def test_a_round_that_is_tried_again_releases_the_same_after_a_restart() -> None:
    vector = first_model()
    how: dict[str, Any] = {"rows": T, "clip": 1.0}
    first, again = (SiteFeatures(site("target")).release(vector, 3, RUN, **how) for _ in range(2))
    other = SiteFeatures(site("target")).release(vector, 4, RUN, **how)

    assert first.shape == (T, WIDTH)
    assert first.dtype == np.float32
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_no_row_is_longer_than_the_clip_and_shorter_ones_stay() -> None:
    target, vector = SiteFeatures(site("target")), first_model()
    free = target.release(vector, 1, RUN, rows=ROWS, clip=0.0)
    lengths = np.linalg.norm(free, axis=1)
    clip = float(np.median(lengths))
    clipped = target.release(vector, 1, RUN, rows=ROWS, clip=clip)

    assert np.allclose(np.linalg.norm(clipped, axis=1), np.minimum(lengths, clip), rtol=1e-5)
    assert np.allclose(clipped[lengths < clip], free[lengths < clip])


def test_the_features_have_the_width_that_a_source_expects() -> None:
    assert site("target").feature_width == feature_width(TASK.model()) == WIDTH


# --- what is refused --------------------------------------------------------------------------------------------------


def with_nan(features: Vector) -> Vector:
    features[2, 1] = math.nan
    return features


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda features: features[:, :4], r"have the shape \(20, 4\), and this model's are \(T, 6\)"),
        (lambda features: features.reshape(-1), r"have the shape \(120,\)"),
        (lambda features: features[:1], r"features of 1 row of the target came, and two or more are needed"),
        (lambda features: features[:1].repeat(T, axis=0), "features of the target's 20 rows are all alike"),
        (with_nan, "hold NaN or infinity"),
    ],
    ids=["width", "vector", "one-row", "alike", "nan"],
)
def test_features_that_nothing_can_be_made_of_are_named(change: Any, why: str) -> None:
    memory, vector = Memory(), first_model()
    aligned = FeatureAlignment(AlignmentRule.F_DANN, change(target_features(vector)))
    with pytest.raises(TrainingError, match=why) as caught:
        site(memory=memory).train(vector, 1, 1.0, run_id=RUN, align=aligned)

    assert caught.value.hint
    assert not memory.states


def test_features_of_the_target_that_are_nan_are_not_released() -> None:
    vector = first_model()
    vector[0] = math.nan
    with pytest.raises(TrainingError, match="NaN or infinity"):
        SiteFeatures(site("target")).release(vector, 1, RUN, rows=T, clip=0.0)


def test_a_feature_that_is_still_at_the_target_does_not_outweigh_the_others() -> None:
    features = target_features(first_model())
    features[:, 0] = features[:, 0].mean()
    result, _ = trained(AlignmentRule.F_DANN, features=features, align=AlignmentSettings(adversarial=0.1))
    known, _ = trained(AlignmentRule.F_DANN, align=AlignmentSettings(adversarial=0.1))

    assert np.linalg.norm(result.update) < 3 * np.linalg.norm(known.update)


@pytest.mark.parametrize("kind", RULES)
def test_only_fada_needs_features_of_two_parts(kind: AlignmentRule) -> None:
    plain = SiteFeatures(site("target", task=Points(parts=False)))
    if kind is not AlignmentRule.FADA:
        plain.require_releasable(T, kind)
        return
    with pytest.raises(TrainingError, match="tells features of all domains from others"):
        plain.require_releasable(T, kind)


def test_more_rows_than_the_target_has_are_named() -> None:
    SiteFeatures(site("target")).require_releasable(ROWS, AlignmentRule.F_DANN)
    with pytest.raises(TrainingError, match="there are 60 training rows, and features of 61 are to be released"):
        SiteFeatures(site("target")).require_releasable(ROWS + 1, AlignmentRule.F_DANN)


def test_private_modules_of_another_model_are_named() -> None:
    memory = Memory()
    memory.keep_personal(private_modules_key(RUN), 1, b"\0" * 8)
    with pytest.raises(TrainingError, match="private modules that this site keeps are of another model"):
        rounds(site(memory=memory), AlignmentRule.F_DANN, range(2, 3))


@pytest.mark.parametrize(
    ("weights", "key"),
    [
        ({"adversarial": -0.1}, "training.align.adversarial"),
        ({"information": math.nan}, "training.align.information"),
        ({"private_learning_rate": 0.0}, "training.align.private-learning-rate"),
    ],
)
def test_weights_out_of_bounds_are_named(weights: dict[str, float], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        AlignmentSettings(**weights)
    assert caught.value.key == key


@pytest.mark.parametrize("kind", [AlignmentRule.F_DANN, AlignmentRule.FADA_ADVERSARIAL, AlignmentRule.FADA])
def test_the_losses_of_the_model_leave_no_gradient_in_private_modules(kind: AlignmentRule) -> None:
    alignment, model = alignment_loss(kind, target_features(first_model()), information=1.0, reconstruction=1.0)
    with alignment.observing():
        model(DATA.features)
        loss = alignment.added_loss(TASK, DATA.labels)
    learnt = [parameter.grad.clone() for parameter in alignment.modules.parameters()]
    loss.backward()

    assert all(
        torch.equal(parameter.grad, old) for parameter, old in zip(alignment.modules.parameters(), learnt, strict=True)
    )
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())
