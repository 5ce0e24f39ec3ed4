"""What goes beside a source's model under a rule that compares features: modules of its own, and their losses."""

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
from securefda.text import counted
from securefda.training.alignment.adversarial import (
    identification_loss,
    reversed_source_loss,
    reversed_target_loss,
    source_confusion_loss,
    target_confusion_loss,
)
from securefda.training.alignment.discrepancy import discrepancy, median_distance
from securefda.training.alignment.entropy import mean_entropy
from securefda.training.alignment.information import information_bound
from securefda.training.alignment.modules import (
    ClassIdentifier,
    DomainIdentifier,
    InformationEstimator,
    Reconstructor,
)
from securefda.training.alignment.reconstruction import reconstruction_loss
from securefda.training.features import feature_width, last_linear, require_trained_features
from securefda.training.optimizers import new_optimizer
from securefda.training.settings import AlignmentSettings, TrainingSettings
from securefda.training.vectors import FlatModel, model_to_vector

MOST_OWN_ROWS = 512
"""Of a source that a discrepancy is made of once it has trained."""

_LEAST_SPREAD = 0.1
"""Of the standard deviation over all features: one that hardly varies among the target's rows is divided by this."""


class Alignment(StrEnum):
    """How features are made alike, by the names of the rules."""

    FADA_ADVERSARIAL = "fada_adversarial"
    FADA = "fada"
    F_DANN = "f_dann"
    F_DAN = "f_dan"


@dataclass(frozen=True, slots=True, repr=False)
class Aligned:
    """What a source trains with beside its own rows.

    Attributes:
        kind: how.
        features: of the target's rows, float32 (T, d).
    """

    kind: Alignment
    features: Vector


def require_fit(kind: Alignment, model: nn.Module) -> None:
    """Refuse a model that cannot be trained so.

    Raises:
        TrainingError: it has no linear layer or no other, or under ``fada`` is no `securefda.tasks.Disentangled`.
    """
    last_linear(model)
    if kind is Alignment.FADA and not isinstance(model, Disentangled):
        raise TrainingError(
            f"the model is a {type(model).__name__}, and fada needs one that tells features of all domains from others",
            hint='build it with securefda.tasks.Disentangled (digit_domains: task.options.model = "disentangled"), '
            "or set another strategy.rule",
        )
    require_trained_features(model)


class Companion:
    """The private modules of a source, and what they add to the loss of the model.

    Features are those that the model's last linear layer takes. Whatever compares them sees them standardised by the
    moments of the target's, so that no setting depends on their scale.

    Args:
        aligned: what came of the target.
        model: of the task; not changed here.
        settings: weights and learning rate.
        sample: some rows, where the model trains.

    Raises:
        TrainingError: features of another width than the model's, of fewer than two rows, all alike, NaN or infinite;
            or a model that does not fit.
    """

    def __init__(self, aligned: Aligned, model: nn.Module, settings: AlignmentSettings, sample: Tensor) -> None:
        require_fit(aligned.kind, model)
        width = feature_width(model)
        self._kind, self._settings, self._model = aligned.kind, settings, model
        came = _checked(aligned.features, width).to(sample.device)
        spread, self._middle = torch.std_mean(came, dim=0, correction=0)
        overall = spread.square().mean().sqrt()
        if not overall > 0:
            raise TrainingError(
                f"features of the target's {len(came)} rows are all alike",
                hint="the target has to lower training.learning-rate, or set another strategy.rule",
            )
        self._spread = spread.clamp_min(_LEAST_SPREAD * float(overall))
        self._target = self._standardised(came)
        self.modules = nn.ModuleDict()
        if self._kind is not Alignment.F_DAN:
            self.modules["domain"] = DomainIdentifier(width)
        if self._kind is Alignment.FADA and isinstance(model, Disentangled):
            model.eval()
            with torch.no_grad():
                extracted = model.extractor(sample).flatten(1)
                specific = model.specific(extracted).shape[1]
            self.modules["classes"] = ClassIdentifier(specific, last_linear(model).out_features)
            self.modules["information"] = InformationEstimator(width, specific)
            self.modules["parts"] = Reconstructor(width, specific, extracted.shape[1])
        self._flat: FlatModel | None = None
        if self.modules:
            self._flat = FlatModel(self.modules, model_to_vector(self.modules), sample.device)
            rate = TrainingSettings(optimizer="adam", learning_rate=settings.private_learning_rate)
            self._optimizer = new_optimizer(len(self._flat.values), rate, sample.device)
        self._taken: list[Tensor] = []
        self._extracted: list[Tensor] = []

    # --- in a step of the model ---------------------------------------------------------------------------------------

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep the features of each batch that passes through the model, with their gradients."""
        classifier = last_linear(self._model)
        handles = [classifier.register_forward_pre_hook(lambda _, inputs: self._taken.append(inputs[0]))]
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
            self._taken.clear()
            self._extracted.clear()

    def added_loss(self, task: Task, labels: Tensor) -> Tensor:
        """What the batch that has just passed adds to the model's loss, after the private modules have learnt from it.

        Args:
            task: gives the loss of outputs of the class identifier.
            labels: of the batch.

        Raises:
            TrainingError: the model's last linear layer did not take each row once.
        """
        if len(self._taken) != 1 or len(self._taken[0]) != len(labels):
            raise TrainingError("the model's last linear layer does not take each row once")
        features, extracted = self._taken.pop().flatten(1), self._extracted.pop() if self._extracted else None
        self._taken.clear()
        weights, own = self._settings, self._standardised(features)
        if self._kind is Alignment.F_DAN:
            return weights.adversarial * discrepancy(own, self._target, median_distance(own, self._target))
        if self._kind is not Alignment.FADA or extracted is None:
            self._learn(identification_loss(self._domain(own.detach()), self._domain(self._target)))
            with _frozen(self.modules):
                return weights.adversarial * self._confusion(own)
        return self._disentangling(task, features, own, extracted, labels)

    def _disentangling(self, task: Task, features: Tensor, own: Tensor, extracted: Tensor, labels: Tensor) -> Tensor:
        """Model III: Eqs. 4 to 8."""
        weights, private = self._settings, self.modules
        assert isinstance(self._model, Disentangled)
        specific = self._model.specific(extracted).flatten(1)
        shuffled = torch.randperm(len(labels), device=labels.device)

        def information(first: Tensor, second: Tensor) -> Tensor:
            estimator = private["information"]
            return information_bound(estimator(first, second), estimator(first, second[shuffled]))

        invariant, apart, whole = own.detach(), specific.detach(), extracted.detach()
        self._learn(
            identification_loss(self._domain(invariant), self._domain(self._target))
            + task.loss(private["classes"](apart), labels)
            - information(invariant, apart)
            + reconstruction_loss(private["parts"](features.detach(), apart), whole)
        )
        with _frozen(private):
            classes = private["classes"](specific)
            return (
                weights.adversarial * self._confusion(own)
                + weights.entropy * (task.loss(classes, labels) - mean_entropy(classes))
                + weights.information * information(own, specific)
                + weights.reconstruction * reconstruction_loss(private["parts"](features, specific), whole)
            )

    def _confusion(self, own: Tensor) -> Tensor:
        logits = self._domain(own)
        return reversed_source_loss(logits) if self._kind is Alignment.F_DANN else source_confusion_loss(logits)

    def _learn(self, loss: Tensor) -> None:
        """One step of the private modules."""
        assert self._flat is not None
        self._flat.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step(self._flat.values, self._flat.gradient)

    def _domain(self, standardised: Tensor) -> Tensor:
        logits: Tensor = self.modules["domain"](standardised)
        return logits

    def _standardised(self, features: Tensor) -> Tensor:
        return (features - self._middle) / self._spread

    # --- after a round ------------------------------------------------------------------------------------------------

    def pull(self, own: Tensor | None = None) -> Vector:
        """T times the gradient of what the target is to make small by the features that it sent, float32 (T, d).

        Args:
            own: features of this source's rows under the trained model, (n, d), at most ``MOST_OWN_ROWS``; only
                ``f_dan`` compares the target's with them.

        Raises:
            TrainingError: it is not finite.
        """
        target = self._target.detach().clone().requires_grad_(True)
        if self._kind is Alignment.F_DAN:
            if own is None:
                raise ValueError("own: f_dan compares the target's features with them")
            own = self._standardised(own.to(target.device))
            loss = discrepancy(own, target, median_distance(own, target))
        else:
            logits = self._domain(target)
            loss = reversed_target_loss(logits) if self._kind is Alignment.F_DANN else target_confusion_loss(logits)
        (gradient,) = torch.autograd.grad(loss, [target])
        found: Vector = (len(target) * gradient / self._spread).cpu().numpy()
        if not np.all(np.isfinite(found)):
            raise TrainingError(
                "what this source says of the target's features holds NaN or infinity",
                hint="lower training.align.private-learning-rate",
            )
        return found

    def to_bytes(self) -> bytes:
        """The private modules, float32 little-endian; nothing where there are none."""
        return b"" if self._flat is None else self._flat.values.cpu().numpy().astype("<f4").tobytes()

    def restore(self, kept: bytes) -> None:
        """Make the private modules those of :meth:`to_bytes`.

        Raises:
            TrainingError: they are those of another model.
        """
        if len(kept) != 4 * (0 if self._flat is None else len(self._flat.values)):
            raise TrainingError(
                "the private modules that this site keeps are of another model",
                hint="begin the run in a new folder",
            )
        if self._flat is not None:
            self._flat.values.copy_(torch.from_numpy(np.frombuffer(kept, "<f4").astype(np.float32)))


def _checked(features: Vector, width: int) -> Tensor:
    """Features of the target's rows as a tensor of its own, (T, width)."""
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
    """Let gradients pass through ``modules`` and none stay in them."""
    modules.requires_grad_(False)
    try:
        yield
    finally:
        modules.requires_grad_(True)
