"""Adaptation of a finished model to the target's rows, of which few labels or none are known.

The classifier, which is the model's last linear layer, stays; everything before it is trained, so that features of the
target's rows come to lie where the sources' features of a class lay (as in SHOT, Liang et al. 2020). The loss of a
batch x is

    entropy(p(x)) + KL(mean p(x), prior) + cross-entropy(p(varied x), label)

where p are the student's probabilities. The teacher, an exponential mean of the student, gives a row its label if it is
sure enough of it (as in FixMatch, Sohn et al. 2020); its probabilities are first scaled such that on average they are
the prior. The teacher is the adapted model. BatchNorm takes its statistics from the batch, and at the end from all
rows. Where some rows have labels, the classifier is trained too, and the task's loss of a batch of them, augmented, is
added in each step.

Nothing here says whether the adapted model is better. Its score, which needs no labels either, decides whether it is
kept: the share of rows whose class does not change when they are varied, times the mutual information of rows and
classes.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from securefda.errors import ConfigError, TrainingError
from securefda.protocol.encoding import Vector
from securefda.tasks import Samples, Task, task_code
from securefda.training.batch_norm import normalising_by_batch
from securefda.training.local import outputs_of
from securefda.training.model_features import last_linear
from securefda.training.parameter_vectors import model_to_vector
from securefda.training.seeds import Seed, derive_seed, new_generator, seeded_torch
from securefda.training.site_model import SiteModel

Prior = Literal["mixed", "equal", "received"]
"""Shares of the classes: those that the received model predicts on average, equal ones, or half of each."""

ROWS_PER_CLASS = 20
"""Fewest rows of a target for each class."""

_BATCH_ROWS, _LEARNING_RATE = 64, 1e-3
_STEPS, _FEWEST_EPOCHS = 1000, 10
_TEACHER, _SHARES = 0.99, 0.95
"""How much of the teacher, and of its mean probabilities, a step leaves."""

_SCORED = 3
"""How often each row is varied for a score."""

_TRIED_ROWS = 8


@dataclass(frozen=True, slots=True)
class AdaptationSettings:
    """How the target adapts a model.

    Attributes:
        epochs: passes over the rows; 0 for as many as make 1,000 steps, at least 10.
        threshold: the least probability of a label that the teacher gives, in (0, 1).
        prior: expected shares of the classes.
    """

    epochs: int = 0
    threshold: float = 0.9
    prior: Prior = "mixed"

    def epochs_over(self, rows: int) -> int:
        """Return the number of passes over so many rows."""
        return self.epochs or max(_FEWEST_EPOCHS, math.ceil(_STEPS / _batches(rows)))


@dataclass(frozen=True, slots=True, repr=False)
class Adapted:
    """What adaptation came to.

    Attributes:
        vector: the adapted model, float32 (m,).
        score: of the adapted model, in [0, 1].
        score_before: of the model that was adapted.
    """

    vector: Vector
    score: float
    score_before: float

    @property
    def is_better(self) -> bool:
        """Whether the adapted model has the higher score."""
        return self.score > self.score_before


def require_adaptable(site: SiteModel) -> None:
    """Check, before a run, that its model can be adapted to this site's rows.

    Raises:
        ConfigError: ``training.adapt``, the task does not vary rows, or its model does not end with logits of classes.
        DataError: the task's own code fails.
    """
    task, rows = site.task, site.rows.features

    def refuse(why: str, hint: str) -> ConfigError:
        return ConfigError("training.adapt", f"task {type(task).__name__} {why}", hint=hint)

    plain = 'set it to "none"'
    if not isinstance(rows, Tensor):
        raise refuse("gives rows in several tensors or on disk, and adapting takes one tensor", plain)
    try:
        head = last_linear(site.module)
    except TrainingError:
        raise refuse("has a model without a linear layer, whose inputs could be adapted", plain) from None
    own = {id(parameter) for parameter in head.parameters()}
    if all(id(parameter) in own for parameter in site.module.parameters() if parameter.requires_grad):
        raise refuse("trains nothing before the model's last linear layer", plain)
    tried = rows[:_TRIED_ROWS]
    outputs = outputs_of(task, site.module, tried)
    if outputs.shape != (len(tried), head.out_features) or head.out_features < 2:
        raise refuse("has a model that does not end with one number for each of two or more classes", plain)
    with task_code(type(task), "guesses"):
        confidence = task.guesses(outputs)[1]
    if not torch.allclose(confidence.float(), torch.softmax(outputs, dim=1).amax(dim=1), atol=1e-4):
        raise refuse("has outputs that are not logits of classes, by its guesses()", plain)
    needed = ROWS_PER_CLASS * head.out_features
    if len(rows) < needed:
        why = f"has {len(rows)} training rows at {site.site}, and {head.out_features} classes need {needed}"
        raise refuse(why, f"give it more rows, which need no labels, or {plain}")
    if torch.equal(_varied(task, tried, new_generator(0)), tried):
        raise refuse("does not vary rows", f"define varied(self, features, generator) in the task, or {plain}")


def adapt(
    site: SiteModel,
    received: Vector,
    settings: AdaptationSettings,
    seed: Seed,
    on_epoch: Callable[[int], None] = lambda _: None,
    *,
    labelled: Samples | None = None,
) -> Adapted:
    """Adapt a model to this site's rows.

    On the CPU, with the same number of threads, the same arguments give the same bits.

    Args:
        site: the target's model and all of its rows; labels that these have are not used.
        received: the model, float32 (m,); not changed.
        settings: how.
        seed: of all random choices.
        on_epoch: called with the number of each epoch that ends.
        labelled: those of the rows whose labels are, if any.

    Raises:
        TrainingError: the loss is NaN or infinite.
        DataError: the task's own code, or torch on its behalf, fails.
    """
    rows, task = site.rows.features, site.task
    score_before, prior = _scored(site, received, seed, settings.prior)
    # With channels last, pooling and BatchNorm take a fraction of their time on a CPU.
    student: nn.Module = copy.deepcopy(site.module).to(
        site.device,
        memory_format=torch.channels_last,  # type: ignore[call-overload]
    )
    teacher = _Teacher(copy.deepcopy(student).eval(), prior.to(site.device))
    if labelled is None:
        last_linear(student).requires_grad_(requires_grad=False)
    optimizer = torch.optim.Adam(
        (parameter for parameter in student.parameters() if parameter.requires_grad), lr=_LEARNING_RATE, fused=True
    )
    epochs, parts = settings.epochs_over(len(rows)), _batches(len(rows))
    steps = epochs * parts
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + 10 * step / steps) ** -0.75)
    order, variations, drawn = (
        new_generator(derive_seed(seed, purpose)) for purpose in ("batches", "variations", "labelled")
    )
    student.train()
    with seeded_torch(derive_seed(seed, "layers"), site.device), task_code(type(task), "training"):
        for epoch in range(1, epochs + 1):
            for chosen in torch.randperm(len(rows), generator=order).tensor_split(parts):
                varied = _varied(task, rows[chosen], variations).to(site.device)
                given = rows[chosen].to(site.device)
                labels, sure = teacher.labels(given)
                by_row = cross_entropy(student(varied), labels, reduction="none")
                loss = _information_loss(student(given), teacher.prior) + (by_row * (sure >= settings.threshold)).mean()
                if labelled is not None:
                    some = torch.randperm(len(labelled), generator=drawn)[:_BATCH_ROWS]
                    seen = _varied(task, labelled.features[some], variations).to(site.device)
                    loss = loss + task.loss(student(seen), labelled.labels[some].to(site.device))
                if not math.isfinite(loss.item()):
                    raise TrainingError(f"{site.site}: the loss is {loss.item()} in epoch {epoch} of adaptation")
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                teacher.follow(student)
            on_epoch(epoch)
    adapted = model_to_vector(teacher.model)
    return Adapted(adapted, _scored(site, adapted, seed, settings.prior)[0], score_before)


class _Teacher:
    """The exponential mean of the student's parameters, which labels rows.

    Args:
        model: the student as it begins, in evaluation mode.
        prior: expected shares of the classes, float32 (c,).
    """

    def __init__(self, model: nn.Module, prior: Tensor) -> None:
        self.model, self.prior = model, prior
        self._shares = prior.clone()

    def labels(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return a class for each row, (n,), and how probable it is, (n,)."""
        with torch.no_grad():
            with normalising_by_batch(self.model):
                expected = torch.softmax(self.model(rows), dim=1)
            self._shares.lerp_(expected.mean(dim=0), 1 - _SHARES)
            aligned = expected * (self.prior / self._shares)
            sure, labels = (aligned / aligned.sum(dim=1, keepdim=True)).max(dim=1)
            return labels, sure

    def follow(self, student: nn.Module) -> None:
        """Move a little towards the student."""
        with torch.no_grad():
            for mine, its in zip(self.model.parameters(), student.parameters(), strict=True):
                mine.lerp_(its, 1 - _TEACHER)


def _batches(rows: int) -> int:
    return math.ceil(rows / _BATCH_ROWS)


def _information_loss(logits: Tensor, prior: Tensor) -> Tensor:
    """Return the mean entropy of the rows' probabilities plus the divergence of their mean from the prior."""
    logs = torch.log_softmax(logits, dim=1)
    mean = logs.exp().mean(dim=0)
    return -(logs.exp() * logs).sum(dim=1).mean() + (mean * (mean.clamp_min(1e-9) / prior).log()).sum()


def _scored(site: SiteModel, vector: Vector, seed: Seed, prior: Prior) -> tuple[float, Tensor]:
    """Return the score of a model on this site's rows, and the prior that follows from its predictions."""
    site.prepare_to_evaluate(vector)
    rows = site.rows.features
    probabilities = torch.softmax(outputs_of(site.task, site.module, rows).double(), dim=1)
    classes, mean = probabilities.argmax(dim=1), probabilities.mean(dim=0)
    agreed, generator = 0.0, new_generator(derive_seed(seed, "score"))
    for _ in range(_SCORED):  # one varied copy of the rows at a time
        predicted = outputs_of(site.task, site.module, _varied(site.task, rows, generator)).argmax(dim=1)
        agreed += float((predicted == classes).double().mean()) / _SCORED
    information = float(_entropy(mean) - _entropy(probabilities).mean()) / math.log(len(mean))
    weight = {"mixed": 0.5, "equal": 0.0, "received": 1.0}[prior]
    expected = weight * mean + (1 - weight) / len(mean)
    return agreed * max(0.0, information), expected.clamp_min(1e-6).float()


def _entropy(probabilities: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(probabilities).sum(dim=-1)
    return entropy


def _varied(task: Task, rows: Tensor, generator: torch.Generator) -> Tensor:
    with torch.no_grad(), task_code(type(task), "varied"):
        varied: Tensor = task.varied(rows, generator)
        return varied
