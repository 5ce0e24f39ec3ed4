"""Settings of a site's training."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

from securefda.errors import ConfigError
from securefda.training.device import DEVICES

OPTIMIZERS = ("adam", "sgd")


def _require(holds: bool, key: str, why: str) -> None:
    if not holds:
        raise ConfigError(f"training.{key}", why)


@dataclass(frozen=True, slots=True)
class NoiseSettings:
    """DP-SGD: clipping of each row's gradient, and noise on their sum.

    Attributes:
        noise_multiplier: standard deviation of the noise over ``max_grad_norm``, > 0.
        max_grad_norm: the gradient of each row, over all layers, is scaled down to this norm, > 0.
        ghost_clipping: compute the norms without each row's gradient, in less memory and time; None, which a site
            replaces before it trains: where the model takes it.
        correct_projection: subtract the noise from the squared length of the update onto which FedGP projects.

    Raises:
        ConfigError: a value outside these bounds; ``key`` is the kebab-case name.
    """

    noise_multiplier: float
    max_grad_norm: float = 1.0
    ghost_clipping: bool | None = None
    correct_projection: bool = False

    def __post_init__(self) -> None:
        for key in ("noise_multiplier", "max_grad_norm"):
            value = getattr(self, key)
            _require(math.isfinite(value) and value > 0, f"dp.{key.replace('_', '-')}", f"must be above 0, not {value}")


@dataclass(frozen=True, slots=True)
class AlignmentSettings:
    """Weights of the losses that rules that compare features add to the model's own.

    Attributes:
        adversarial: weight of the loss that makes features alike, >= 0.
        entropy: under ``fada``, weight of the losses that keep classes out of a domain's own features (Eqs. 6 and 7),
            >= 0.
        information: under ``fada``, weight of the mutual information of the two parts of the features (Eq. 8), >= 0.
        reconstruction: under ``fada``, weight of the distance of features from their reconstruction, >= 0.
        private_learning_rate: learning rate of the private modules of a source, with Adam, > 0.

    Raises:
        ConfigError: a value outside these bounds; ``key`` is the kebab-case name.
    """

    adversarial: float = 0.02
    entropy: float = 0.01
    information: float = 1e-4
    reconstruction: float = 0.01
    private_learning_rate: float = 0.001

    def __post_init__(self) -> None:
        for key in ("adversarial", "entropy", "information", "reconstruction"):
            value = getattr(self, key)
            _require(math.isfinite(value) and value >= 0, f"align.{key}", f"must be at least 0, not {value}")
        rate = self.private_learning_rate
        _require(math.isfinite(rate) and rate > 0, "align.private-learning-rate", f"must be above 0, not {rate}")


@dataclass(frozen=True, slots=True)
class TrainingSettings:
    """Local training of one round; the target and the sources have their own.

    Attributes:
        optimizer: "adam" (Kingma and Ba 2015, betas 0.9 and 0.999, epsilon 1e-8) or "sgd"; its state starts afresh
            every round, since the model it describes has been replaced.
        learning_rate: > 0.
        batch_size: rows per step, >= 1; the last batch of an epoch may be smaller, or larger: see ``smallest_batch``.
        epochs: passes over the site's rows per round, >= 1.
        max_steps: most steps of a round, which may end it before its ``epochs``; 0 for no bound. Not with ``dp``, whose
            ledger counts whole epochs.
        momentum: heavy-ball momentum of "sgd" in [0, 1); 0 with "adam".
        weight_decay: L2 penalty added to the gradient, >= 0.
        device: "auto", "cpu", "cuda" or "mps".
        threads: CPU threads that compute a step; 0 takes as many as the step is worth, usually one.
        dp: train by DP-SGD with this noise; None for plain training.
        personal_layers: number of last layers, one for each parameter tensor, that stay at this site (FedRep). Not with
            ``dp``, whose ledger does not count their epochs.
        head_epochs: passes over the rows that train these layers, before the ``epochs`` of the others; >= 1.
        align: weights of losses under rules that compare features.
        vary: vary rows at random before a step, by ``Task.varied``; not with ``dp``.
        smallest_batch: a last batch of an epoch with fewer rows joins the batch before it. It follows from the model: 2
            with BatchNorm, which needs a variance over rows, else 1.

    Raises:
        ConfigError: a value outside these bounds; ``key`` is the kebab-case name.
    """

    optimizer: str = "adam"
    learning_rate: float = 0.001
    batch_size: int = 16
    epochs: int = 1
    max_steps: int = 0
    momentum: float = 0.0
    weight_decay: float = 0.0
    device: str = "auto"
    threads: int = 0
    dp: NoiseSettings | None = None
    personal_layers: int = 0
    head_epochs: int = 10
    align: AlignmentSettings = AlignmentSettings()
    vary: bool = False
    smallest_batch: int = 1

    def __post_init__(self) -> None:
        _require(self.optimizer in OPTIMIZERS, "optimizer", f"{self.optimizer!r} is not one of {', '.join(OPTIMIZERS)}")
        _require(self.device in DEVICES, "device", f"{self.device!r} is not one of {', '.join(DEVICES)}")
        _require(math.isfinite(self.learning_rate) and self.learning_rate > 0, "learning-rate", "must be above 0")
        _require(self.batch_size >= 1, "batch-size", "must be at least 1")
        _require(self.epochs >= 1, "epochs", "must be at least 1")
        _require(self.max_steps >= 0, "max-steps", "must be at least 0")
        _require(not (self.max_steps and self.dp), "max-steps", "must be 0 where training adds noise")
        _require(0 <= self.momentum < 1, "momentum", "must be in [0, 1)")
        _require(self.momentum == 0 or self.optimizer == "sgd", "momentum", 'belongs to optimizer "sgd"')
        _require(math.isfinite(self.weight_decay) and self.weight_decay >= 0, "weight-decay", "must be at least 0")
        _require(self.threads >= 0, "threads", "must be at least 0")
        _require(self.personal_layers >= 0, "personal-layers", "must be at least 0")
        _require(not (self.personal_layers and self.dp), "personal-layers", "must be 0 where training adds noise")
        _require(not (self.vary and self.dp), "vary", "must be false where training adds noise")
        _require(self.head_epochs >= 1, "head-epochs", "must be at least 1")
        if self.dp is not None and self.dp.correct_projection:
            plain = self.optimizer == "sgd" and not self.momentum
            why = 'needs optimizer "sgd" without momentum: with others the noise of an update is not known'
            _require(plain, "dp.correct-projection", why)

    def noise_variance(self, samples: int, rate: float, steps: int) -> float:
        """Return the variance that DP-SGD adds to each coordinate of an update, by SGD without momentum.

        ``rate`` is the probability with which each of the ``steps`` draws each of the ``samples``. 0 without noise.
        """
        if self.dp is None:
            return 0.0
        deviation = self.learning_rate * self.dp.noise_multiplier * self.dp.max_grad_norm / (samples // round(1 / rate))
        return steps * deviation**2

    def steps(self, samples: int) -> int:
        """Return the number of steps of a round over ``samples`` rows."""
        steps = self.epochs * len(self.batch_sizes(samples))
        return min(steps, self.max_steps) if self.max_steps else steps

    def batch_sizes(self, samples: int) -> list[int]:
        """Return the number of rows of each step of an epoch; they sum to ``samples``."""
        whole, rest = divmod(samples, self.batch_size)
        sizes = [self.batch_size] * whole
        if 0 < rest < self.smallest_batch and sizes:
            sizes[-1] += rest
        elif rest:
            sizes.append(rest)
        return sizes

    def with_learning_rate_factor(self, factor: float) -> Self:
        """Return the same settings with the learning rate times ``factor`` > 0 (after the warm-up rounds)."""
        return replace(self, learning_rate=self.learning_rate * factor)
