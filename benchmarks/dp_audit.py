"""Lower bounds of epsilon, measured in one run each with canaries, beside what the ledger says was spent.

The audit of Steinke, Nasr, Jagielski 2023, on the task digits. One site trains over several rounds, each from the model
that the last one left, with the engine and the ledger of the real processes. Who audits sees every step of every
round, and knows the site's rows, all canaries and all settings: everything but the coins, the noise and which rows a
step drew.

Canary: an image of normal noise with a label by chance. Its gradient is longer than the clip norm, so it counts in
full, and is its own direction, so it can be separated from the others'. Where its coin says "out", a blank row stands
in its place, whose loss is zero: the number of rows, on which the sampling rate depends, tells nothing of the coins,
and what changes with a coin is one row that is in the data or not.

Score: each step is a sum of gradients and noise. All rows' gradients at the model of that moment are known, so how much
of each the step holds is estimated by regression (the best linear estimate, with the variances that coins, sampling and
noise have). The score of a canary is the sum over all steps.

Guesses, fixed before any run: "in" for the eighth of the canaries with the highest scores, "out" for the lowest eighth.

The control trains without noise. The fault trains with a tenth of the noise that its ledger is charged for; it must be
found out, or the audit finds nothing.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from securefda.privacy.dp_events import Budget, DpEvent
from securefda.privacy.empirical_audit import correct_guesses, epsilon_lower_bound, throw_coins
from securefda.privacy.ledger import Ledger
from securefda.privacy.planning import schedule_of
from securefda.privacy.private_training import train_private
from securefda.site.privacy_account import data_set_of
from securefda.tasks import Samples, TaskSettings
from securefda.tasks.digits import Digits
from securefda.training import TrainingSettings, build_model, model_to_vector, train_local, vector_to_model
from securefda.training.training_settings import NoiseSettings

SITE = "hospital-a"
BLANK = -1
CLASSES = 10
LEAST_OF_CONTROL = 3.0
PER_SIDE = 8  # one in so many canaries is guessed "in", and as many "out"
BUDGET = Budget(10_000.0, 1e-5)

RandomBytes = Callable[[int], bytes]
Vector = NDArray[np.float32]


class DigitsWithBlanks(Digits):
    """Digits, where a row with the label ``BLANK`` has no loss and so no gradient."""

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return self.row_losses(outputs, labels).mean()

    def row_losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return super().row_losses(outputs, labels.clamp(min=0)) * (labels != BLANK)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return super().metrics(outputs, labels.clamp(min=0))


@dataclass(frozen=True, slots=True)
class Run:
    """One training that is audited.

    Attributes:
        noise: noise multiplier of every step; None for training without noise and clipping.
        batches: steps of a round; one over it is the sampling rate.
        ghost: with ghost clipping.
        charged_as: noise multiplier that the ledger is charged for; None for the true one.
    """

    noise: float | None
    batches: int = 1
    ghost: bool = False
    charged_as: float | None = None

    @property
    def name(self) -> str:
        if self.noise is None:
            return "none (control)"
        if self.charged_as is not None:
            return f"{self.noise:g}, charged as {self.charged_as:g} (fault)"
        return f"{self.noise:g}{', ghost clipping' if self.ghost else ''}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """``epsilon`` is the ledger's, infinite without noise; ``bound`` is the lower bound that was measured."""

    run: Run
    epsilon: float
    guesses: int
    correct: int
    bound: float
    seconds: float

    @property
    def is_as_it_should_be(self) -> bool:
        if self.run.noise is None:
            return self.bound >= LEAST_OF_CONTROL
        return (self.bound <= self.epsilon) == (self.run.charged_as is None)


@dataclass(frozen=True, slots=True)
class Canaries:
    """All rows as the auditor knows them, canaries first, and what the auditor does not know: the coins."""

    rows: Samples
    included: NDArray[np.bool_]

    @property
    def trained_on(self) -> Samples:
        labels = self.rows.labels.clone()
        labels[: len(self.included)][torch.from_numpy(~self.included)] = BLANK
        features = self.rows.features.clone()
        features[: len(self.included)][torch.from_numpy(~self.included)] = 0
        return Samples(features, labels)


RUNS = (
    Run(None),
    Run(None, batches=2),
    Run(0.5),
    Run(1.0),
    Run(2.0),
    Run(4.0),
    Run(2.0, ghost=True),
    Run(0.5, batches=2),
    Run(1.0, batches=2),
    Run(2.0, batches=2),
    Run(0.5, batches=2, charged_as=5.0),
)


def planted(site_rows: Samples, count: int, random_bytes: RandomBytes) -> Canaries:
    generator = torch.Generator().manual_seed(int.from_bytes(random_bytes(6), "big"))
    features = torch.randn(count, site_rows.features.shape[1], generator=generator)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    rows = Samples(torch.cat([features, site_rows.features]), torch.cat([labels, site_rows.labels]))
    return Canaries(rows, throw_coins(count, random_bytes))


class Auditor:
    """Sees steps, and scores canaries by how much of their gradients the steps hold."""

    def __init__(self, task: DigitsWithBlanks, rows: Samples, canaries: int, settings: TrainingSettings) -> None:
        self._task, self._rows, self._settings = task, rows, settings
        self._model = task.model()
        self.scores = np.zeros(canaries)
        batches = settings.steps(len(rows))
        present = np.where(np.arange(len(rows)) < canaries, 0.5, 1.0)
        self._expected = torch.from_numpy(present / batches)

    def see(self, before: Vector, step: Vector) -> None:
        """``before`` is the model that the step started from, both (m,)."""
        gradients, std = self._contributions(before)
        rows_per_step = len(self._rows) // self._settings.steps(len(self._rows))
        total = torch.from_numpy(step).double() * (-rows_per_step / self._settings.learning_rate)
        spread = (self._expected * (1 - self._expected)).sqrt()
        surprise = total - (self._expected.float() @ gradients).double()
        scaled = spread.float()[:, None] * gradients
        products = (scaled @ scaled.T).double()
        products.diagonal().add_(std**2 if std else 1e-6 * products.diagonal().mean().item())
        found = spread * torch.linalg.solve(products, (scaled @ surprise.float()).double())
        self.scores += found[: len(self.scores)].numpy()

    def _contributions(self, before: Vector) -> tuple[Tensor, float]:
        """What each row adds to a step that draws it, (rows, m), and the standard deviation of the noise."""
        vector_to_model(before, self._model)
        parameters = {name: value.detach() for name, value in self._model.named_parameters()}

        def loss(values: dict[str, Tensor], features: Tensor, label: Tensor) -> Tensor:
            outputs = torch.func.functional_call(self._model, values, (features[None],))
            return self._task.loss(outputs, label[None])

        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
        parts = each(parameters, self._rows.features, self._rows.labels)
        gradients = torch.cat([part.flatten(1) for part in parts.values()], dim=1)
        dp = self._settings.dp
        if dp is None:
            return gradients, 0.0
        factors = (dp.max_grad_norm / (gradients.norm(dim=1) + 1e-6)).clamp(max=1.0)
        return gradients * factors[:, None], dp.noise_multiplier * dp.max_grad_norm


@dataclass(frozen=True, slots=True)
class Training:
    """A site that trains, and its ledger."""

    task: DigitsWithBlanks
    data: Samples
    run: Run
    settings: TrainingSettings
    ledger: Ledger
    random_bytes: RandomBytes

    def watched_by(self, auditor: Auditor, rounds: int) -> float:
        """Train all rounds while the auditor looks on; return what the ledger says was spent."""
        seed = int.from_bytes(self.random_bytes(6), "big")
        model = build_model(self.task, seed)
        values = model_to_vector(model)
        for number in range(1, rounds + 1):
            now = values.copy()

            def on_step(step: Vector, now: Vector = now) -> None:
                auditor.see(now, step)
                now += step

            values = values + self._round(model, values, number, seed + number, on_step)
        return math.inf if self.run.noise is None else self.ledger.spent(BUDGET.delta)

    def _round(
        self, model: nn.Module, received: Vector, number: int, seed: int, on_step: Callable[[Vector], None]
    ) -> Vector:
        task, data, settings = self.task, self.data, self.settings
        if settings.dp is None:
            return train_local(
                task, model, received, data, settings=settings, seed=seed, site=SITE, on_step=on_step
            ).update
        paid = self.ledger.reserve(self._event(settings.dp, number), BUDGET, now=int(time.time()))
        result = train_private(
            task,
            model,
            received,
            data,
            settings=settings,
            site=SITE,
            on_step=on_step,
            random_bytes=self.random_bytes,
        )
        self.ledger.commit(paid, steps=result.steps, now=int(time.time()))
        return result.update

    def _event(self, dp: NoiseSettings, number: int) -> DpEvent:
        schedule = schedule_of(self.settings, len(self.data))
        noise = dp.noise_multiplier if self.run.charged_as is None else self.run.charged_as
        rate, steps = schedule.sampling_rate, schedule.steps_per_round
        return DpEvent("audit", number, 0, noise, rate, steps, dp.max_grad_norm)


def audited(run: Run, *, canaries: int, rounds: int, random_bytes: RandomBytes, folder: Path) -> Outcome:
    started = time.monotonic()
    task = DigitsWithBlanks(TaskSettings("target", tuple(f"hospital-{letter}" for letter in "abcde")))
    planned = planted(task.train_data(SITE), canaries, random_bytes)
    dp = None if run.noise is None else NoiseSettings(run.noise, ghost_clipping=run.ghost)
    batch_size = -(-len(planned.rows) // run.batches)
    settings = TrainingSettings("sgd", 0.2, batch_size, device="cpu", dp=dp)
    auditor = Auditor(task, planned.rows, canaries, settings)
    data = planned.trained_on
    ledger = Ledger.create(folder / "digits.sqlite", data_set_of(SITE, "digits", data), now=int(time.time()))
    epsilon = Training(task, data, run, settings, ledger, random_bytes).watched_by(auditor, rounds)
    per_side = canaries // PER_SIDE
    correct = correct_guesses(auditor.scores, planned.included, per_side)
    bound = epsilon_lower_bound(2 * per_side, correct, canaries, BUDGET.delta)
    return Outcome(run, epsilon, 2 * per_side, correct, bound, time.monotonic() - started)


def table(outcomes: Iterable[Outcome]) -> list[str]:
    lines = [
        "| noise multiplier | sampling rate | ε of the ledger | ε at least, measured | right of guesses | s |",
        "|---|---|---|---|---|---|",
    ]
    for outcome in outcomes:
        spent = "∞" if math.isinf(outcome.epsilon) else f"{outcome.epsilon:.2f}"
        mark = "" if outcome.is_as_it_should_be else " (!)"
        right = f"{outcome.correct} of {outcome.guesses}"
        cells = (outcome.run.name, f"1/{outcome.run.batches}", spent, f"{outcome.bound:.2f}{mark}", right)
        lines.append(f"| {' | '.join(cells)} | {outcome.seconds:.0f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--canaries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, help="predictable coins and noise, to look into a run again")
    parser.add_argument("--check", action="store_true", help="end with 1 where a line is marked (!)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    random_bytes = os.urandom if given.seed is None else np.random.default_rng(given.seed).bytes
    outcomes = []
    for run in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(
                audited(
                    run,
                    canaries=given.canaries,
                    rounds=given.rounds,
                    random_bytes=random_bytes,
                    folder=Path(folder),
                )
            )
        print(*table(outcomes)[-1:] if len(outcomes) > 1 else table(outcomes), sep="\n", flush=True)
    if given.check and not all(outcome.is_as_it_should_be for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
