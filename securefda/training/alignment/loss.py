"""The alignment loss of a source under a rule that compares features, and the private modules that it needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from torch import Tensor, nn

from securefda.errors import TrainingError
from securefda.protocol.encoding import Vector
from securefda.tasks import Disentangled, Task
from securefda.tasks.inputs import Inputs
from securefda.text import counted
from securefda.training.alignment.losses import (
    discrepancy,
    identification_loss,
    information_bound,
    mean_entropy,
    median_distance,
    reconstruction_loss,
    reversed_source_loss,
    reversed_target_loss,
    source_confusion_loss,
    target_confusion_loss,
)
from securefda.training.model_features import feature_width, last_linear, require_trained_features
from securefda.training.optimizers import new_optimizer
from securefda.training.parameter_vectors import FlatModel, model_to_vector
from securefda.training.training_settings import AlignmentSettings, TrainingSettings

MOST_OWN_ROWS = 512
"""Most rows of a source that enter the discrepancy from which the pull is computed."""

_LEAST_SPREAD = 0.1
"""Least spread of a feature, in standard deviations over all features, or in the spread of the source's own; one that
hardly varies is divided by this. The target makes its features up if it likes: without a measure of the source's own,
ones that hardly differ would make the source's update as long as the target wants it."""


class AlignmentRule(StrEnum):
    """The rules that compare features."""

    FADA_ADVERSARIAL = "fada_adversarial"
    FADA = "fada"
    F_DANN = "f_dann"
    F_DAN = "f_dan"


@dataclass(frozen=True, slots=True, repr=False)
class FeatureAlignment:
    """The target's part of an alignment loss.

    Attributes:
        kind: the rule.
        features: features of the target's rows, float32 (T, d).
    """

    kind: AlignmentRule
    features: Vector


def require_alignable(kind: AlignmentRule, model: nn.Module) -> None:
    """Check that a model can be trained under a rule.

    Raises:
        TrainingError: the model has no linear layer, or no other layer, or under ``fada`` is not a
            `securefda.tasks.Disentangled`.
    """
    last_linear(model)
    if kind is AlignmentRule.FADA and not isinstance(model, Disentangled):
        raise TrainingError(
            f"the model is a {type(model).__name__}, and fada needs one that tells features of all domains from others",
            hint='build it with securefda.tasks.Disentangled (digit_domains: task.options.model = "disentangled"), '
            "or set another strategy.rule",
        )
    require_trained_features(model)


# --- the private modules of a source: Tables 7 and 8 of Peng et al. (ICLR 2020), no wider than the features -----------

_WIDEST = 256


class DomainIdentifier(nn.Module):
    """Maps features (n, d) to the logit that each row is the source's, (n,)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = min(_WIDEST, width)
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.LeakyReLU(), nn.Linear(hidden, 1))

    def forward(self, features: Tensor) -> Tensor:
        """Return the logits, (n,)."""
        logits: Tensor = self.layers(features)[:, 0]
        return logits


class ClassIdentifier(nn.Linear):
    """Maps domain-specific features (n, d) to outputs such as the model's, (n, classes)."""


class InformationEstimator(nn.Module):
    """Maps two parts of features, (n, d) and (n, e), to a score of each pair, (n,)."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        hidden = min(_WIDEST, first)
        self.of_first, self.of_second = nn.Linear(first, hidden), nn.Linear(second, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the scores, (n,)."""
        score: Tensor = self.out(nn.functional.leaky_relu(self.of_first(first) + self.of_second(second)))[:, 0]
        return score


class Reconstructor(nn.Module):
    """Maps two parts of features, (n, d) and (n, e), to the extracted features, (n, f)."""

    def __init__(self, first: int, second: int, features: int) -> None:
        super().__init__()
        self.layer = nn.Linear(first + second, features)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the reconstruction, (n, f)."""
        reconstruction: Tensor = self.layer(torch.cat([first, second], dim=1))
        return reconstruction


# --- the loss ---------------------------------------------------------------------------------------------------------


class AlignmentLoss:
    """The term that a rule adds to a source's loss; it trains the source's private modules in each step.

    Features are the inputs of the model's last linear layer. All comparisons use features standardised by the moments
    of the target's, so that no setting depends on their scale.

    Args:
        aligned: the rule and the target's features.
        model: the model that is trained; not changed here.
        settings: weights of the losses and learning rate of the private modules.
        sample: a few rows on the device that trains, (n, ...); they give the widths of the modules.
        own_spread: mean standard deviation of the features of the source's own rows.

    Raises:
        TrainingError: the target's features have another width than the model's, fewer than two rows, no spread, or
            NaN or infinity; or the model does not fit the rule.
    """

    def __init__(
        self,
        aligned: FeatureAlignment,
        model: nn.Module,
        settings: AlignmentSettings,
        sample: Inputs,
        *,
        own_spread: float,
    ) -> None:
        require_alignable(aligned.kind, model)
        width = feature_width(model)
        self._kind, self._settings, self._model = aligned.kind, settings, model
        device = next(model.parameters()).device
        received = _checked_features(aligned.features, width).to(device)
        spread, self._mean = torch.std_mean(received, dim=0, correction=0)
        overall = spread.square().mean().sqrt()
        if not overall > 0:
            raise TrainingError(
                f"features of the target's {len(received)} rows are all alike",
                hint="the target has to lower training.learning-rate, or set another strategy.rule",
            )
        self._spread = spread.clamp_min(_LEAST_SPREAD * max(float(overall), own_spread))
        self._target = self._standardised(received)
        self.modules = nn.ModuleDict()
        if self._kind is not AlignmentRule.F_DAN:
            self.modules["domain"] = DomainIdentifier(width)
        if self._kind is AlignmentRule.FADA and isinstance(model, Disentangled):
            model.eval()
            with torch.no_grad():
                extracted = model.extractor(sample).flatten(1)
                specific = model.specific(extracted).shape[1]
            self.modules["classes"] = ClassIdentifier(specific, last_linear(model).out_features)
            self.modules["information"] = InformationEstimator(width, specific)
            self.modules["parts"] = Reconstructor(width, specific, extracted.shape[1])
        self._flat: FlatModel | None = None
        if self.modules:
            self._flat = FlatModel(self.modules, model_to_vector(self.modules), device)
            rate = TrainingSettings(optimizer="adam", learning_rate=settings.private_learning_rate)
            self._optimizer = new_optimizer(len(self._flat.values), rate, device)
        self._features: list[Tensor] = []
        self._extracted: list[Tensor] = []

    # --- in a step of the model ---------------------------------------------------------------------------------------

    @contextmanager
    def observing(self) -> Iterator[None]:
        """Record the features of each batch that passes through the model in the block, with their graph."""
        classifier = last_linear(self._model)
        handles = [classifier.register_forward_pre_hook(lambda _, inputs: self._features.append(inputs[0]))]
        if isinstance(self._model, Disentangled):
            extractor = self._model.extractor
            handles.append(
                extractor.register_forward_hook(lambda *passed: self._extracted.append(passed[2].flatten(1)))
            )
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._features.clear()
            self._extracted.clear()

    def added_loss(self, task: Task, labels: Tensor) -> Tensor:
        """Train the private modules on the last batch, then return the term to add to its loss, a scalar.

        Args:
            task: computes the loss of the class identifier.
            labels: labels of the batch.

        Raises:
            TrainingError: the model's last linear layer did not take each row once.
        """
        if len(self._features) != 1 or len(self._features[0]) != len(labels):
            raise TrainingError("the model's last linear layer does not take each row once")
        features, extracted = self._features.pop().flatten(1), self._extracted.pop() if self._extracted else None
        self._features.clear()
        weights, own = self._settings, self._standardised(features)
        if self._kind is AlignmentRule.F_DAN:
            return weights.adversarial * discrepancy(own, self._target, median_distance(own, self._target))
        if self._kind is not AlignmentRule.FADA or extracted is None:
            self._train_modules(
                identification_loss(self._domain_logits(own.detach()), self._domain_logits(self._target))
            )
            with _frozen(self.modules):
                return weights.adversarial * self._confusion_loss(own)
        return self._disentangling_loss(task, features, own, extracted, labels)

    def _disentangling_loss(
        self, task: Task, features: Tensor, own: Tensor, extracted: Tensor, labels: Tensor
    ) -> Tensor:
        """Return the added loss of model III (``fada``), Eqs. 4 to 8."""
        weights, private = self._settings, self.modules
        assert isinstance(self._model, Disentangled)
        specific = self._model.specific(extracted).flatten(1)
        shuffled = torch.randperm(len(labels), device=labels.device)

        def information(first: Tensor, second: Tensor) -> Tensor:
            estimator = private["information"]
            return information_bound(estimator(first, second), estimator(first, second[shuffled]))

        invariant, apart, whole = own.detach(), specific.detach(), extracted.detach()
        self._train_modules(
            identification_loss(self._domain_logits(invariant), self._domain_logits(self._target))
            + task.loss(private["classes"](apart), labels)
            - information(invariant, apart)
            + reconstruction_loss(private["parts"](features.detach(), apart), whole)
        )
        with _frozen(private):
            classes = private["classes"](specific)
            return (
                weights.adversarial * self._confusion_loss(own)
                + weights.entropy * (task.loss(classes, labels) - mean_entropy(classes))
                + weights.information * information(own, specific)
                + weights.reconstruction * reconstruction_loss(private["parts"](features, specific), whole)
            )

    def _confusion_loss(self, own: Tensor) -> Tensor:
        logits = self._domain_logits(own)
        return reversed_source_loss(logits) if self._kind is AlignmentRule.F_DANN else source_confusion_loss(logits)

    def _train_modules(self, loss: Tensor) -> None:
        """Take one step of the private modules."""
        assert self._flat is not None
        self._flat.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step(self._flat.values, self._flat.gradient)

    def _domain_logits(self, standardised: Tensor) -> Tensor:
        logits: Tensor = self.modules["domain"](standardised)
        return logits

    def _standardised(self, features: Tensor) -> Tensor:
        return (features - self._mean) / self._spread

    # --- after a round ------------------------------------------------------------------------------------------------

    def pull(self, own: Tensor | None = None) -> Vector:
        """Return T times the gradient of the target's loss with respect to its released features, float32 (T, d).

        Args:
            own: features of this source's rows under the trained model, (n, d), n <= ``MOST_OWN_ROWS``; needed under
                ``f_dan`` only.

        Raises:
            TrainingError: the pull is not finite.
        """
        target = self._target.detach().clone().requires_grad_(True)
        if self._kind is AlignmentRule.F_DAN:
            if own is None:
                raise ValueError("own: f_dan compares the target's features with them")
            own = self._standardised(own.to(target.device))
            loss = discrepancy(own, target, median_distance(own, target))
        else:
            logits = self._domain_logits(target)
            loss = reversed_target_loss(logits) if self._kind is AlignmentRule.F_DANN else target_confusion_loss(logits)
        (gradient,) = torch.autograd.grad(loss, [target])
        released: Vector = (len(target) * gradient / self._spread).cpu().numpy()
        if not np.all(np.isfinite(released)):
            raise TrainingError(
                "what this source says of the target's features holds NaN or infinity",
                hint="lower training.align.private-learning-rate",
            )
        return released

    def to_bytes(self) -> bytes:
        """Return the private modules' parameters, float32 little-endian; empty if the rule has none."""
        return b"" if self._flat is None else self._flat.values.cpu().numpy().astype("<f4").tobytes()

    def restore(self, kept: bytes) -> None:
        """Load the parameters that :meth:`to_bytes` returned.

        Raises:
            TrainingError: they belong to another model.
        """
        if len(kept) != 4 * (0 if self._flat is None else len(self._flat.values)):
            raise TrainingError(
                "the private modules that this site keeps are of another model",
                hint="begin the run in a new folder",
            )
        if self._flat is not None:
            self._flat.values.copy_(torch.from_numpy(np.frombuffer(kept, "<f4").astype(np.float32)))


def _checked_features(features: Vector, width: int) -> Tensor:
    """Return the target's features as a new tensor, (T, width); raise TrainingError if they are unusable."""
    if features.ndim != 2 or features.shape[1] != width:
        raise TrainingError(
            f"features of the target's rows have the shape {features.shape}, and this model's are (T, {width})",
            hint="run the same version of the task, with the same options, at every site",
        )
    if len(features) < 2:
        raise TrainingError(
            f"features of {counted(len(features), 'row')} of the target came, and two or more are needed",
            hint="the target has to raise strategy.feature-rows",
        )
    if not np.all(np.isfinite(features)):
        raise TrainingError(
            "features of the target's rows hold NaN or infinity",
            hint="the target has to lower training.learning-rate",
        )
    return torch.from_numpy(np.array(features, np.float32))


@contextmanager
def _frozen(modules: nn.Module) -> Iterator[None]:
    """Let gradients pass through ``modules`` in the block, but not accumulate in them."""
    modules.requires_grad_(False)
    try:
        yield
    finally:
        modules.requires_grad_(True)
