"""Lower bounds of epsilon, measured with canaries as `securefda audit privacy` does, beside what the ledger says.

DP-SGD: one source of the task digits, five rounds of one or two steps by SGD. With --moments, one source of Fed-Heart
releases second moments under the rule analytic.

The control trains with a hundredth of the clip norm as noise, which is next to none. The faults train with a tenth of
the noise that their ledger is charged for, or release moments with a quarter of it; they must be found out, or the
audit finds nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from securefda.local.privacy_audit import Audited, AuditedSite, Question, Release, audit_privacy
from securefda.privacy.dp_events import Budget
from securefda.tasks import TaskSettings, rows_of
from securefda.tasks.digits import Digits
from securefda.tasks.fed_heart import HOSPITALS, FedHeart
from securefda.training import NoiseSettings, TrainingSettings

LEAST_OF_CONTROL = 3.0
BUDGET = Budget(8.0, 1e-5)
DIGITS = Digits(TaskSettings("target", tuple(f"hospital-{letter}" for letter in "abcde")))
HEART = FedHeart(TaskSettings(HOSPITALS[0], HOSPITALS[1:], options={"scaling": "public"}))


@dataclass(frozen=True, slots=True)
class Run:
    """One audit.

    Attributes:
        noise: noise multiplier.
        batches: steps of a round; one over it is the sampling rate.
        ghost: with ghost clipping.
        charged_as: noise multiplier that the ledger is charged for; None for the true one.
    """

    noise: float
    batches: int = 1
    ghost: bool = False
    charged_as: float | None = None

    @property
    def is_control(self) -> bool:
        return self.noise < 0.1

    @property
    def name(self) -> str:
        if self.charged_as is not None:
            return f"{self.noise:g}, charged as {self.charged_as:g} (fault)"
        return f"{self.noise:g}{' (control)' if self.is_control else ''}{', ghost clipping' if self.ghost else ''}"

    def is_as_it_should_be(self, audited: Audited) -> bool:
        if self.is_control:
            return audited.bound >= LEAST_OF_CONTROL
        return audited.is_above == (self.charged_as is not None)


STEPS = (
    Run(0.01),
    Run(0.01, batches=2),
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
MOMENTS = (Run(0.6378), Run(1.158), Run(2.0), Run(4.047), Run(0.5, charged_as=2.0))


def audited(run: Run, question: Question, random_bytes: Callable[[int], bytes] = os.urandom) -> Audited:
    task, site = (HEART, "va") if question.release is Release.MOMENTS else (DIGITS, "hospital-a")
    rows = rows_of(task, site, "train")
    dp = NoiseSettings(run.noise, ghost_clipping=run.ghost)
    settings = TrainingSettings("sgd", 0.2, -(-len(rows) // run.batches), device="cpu", dp=dp)
    site_of_run = AuditedSite(task, site, rows, settings, 0, BUDGET)
    return audit_privacy(site_of_run, question, random_bytes=random_bytes, charged_as=run.charged_as)


def table(runs: Iterable[tuple[Run, Audited]]) -> list[str]:
    lines = [
        "| noise multiplier | sampling rate | ε of the ledger | ε at least, measured | right of guesses | s |",
        "|---|---|---|---|---|---|",
    ]
    for run, found in runs:
        mark = "" if run.is_as_it_should_be(found) else " (!)"
        right = f"{found.correct} of {found.guesses}"
        cells = (run.name, f"1/{run.batches}", f"{found.epsilon:.2f}", f"{found.bound:.2f}{mark}", right)
        lines.append(f"| {' | '.join(cells)} | {found.seconds:.0f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--moments", action="store_true", help="audit releases of second moments, not training")
    parser.add_argument("--canaries", type=int, default=1000)
    parser.add_argument("--trainings", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, help="predictable coins and noise, to look into a run again")
    parser.add_argument("--check", action="store_true", help="end with 1 where a line is marked (!)")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    random_bytes = os.urandom if given.seed is None else np.random.default_rng(given.seed).bytes
    release, rounds = (Release.MOMENTS, 1) if given.moments else (Release.TRAINING, 5)
    question = Question(given.canaries, trainings=given.trainings, rounds=rounds, release=release)
    done: list[tuple[Run, Audited]] = []
    for run in MOMENTS if given.moments else STEPS:
        done.append((run, audited(run, question, random_bytes)))
        print(*table(done)[0 if len(done) == 1 else -1 :], sep="\n", flush=True)
    if given.check and not all(run.is_as_it_should_be(found) for run, found in done):
        sys.exit(1)


if __name__ == "__main__":
    main()
