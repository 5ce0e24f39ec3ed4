"""Lower bounds of epsilon of noisy second moments, measured with a canary, beside what the ledger says was spent.

A source of Fed-Heart releases the moments of the rule `analytic` many times, with the trainer, the noise and the ledger
of the real processes. A fair coin decides for each release whether one more row, the canary, is among the site's rows.
Who audits knows the site's rows and the canary, and scores a release by how much of the canary's moments its sums hold,
which is the best test of a known vector in Gaussian noise. A sixteenth of the releases with the highest scores is
guessed "in", and the lowest sixteenth "out". The bound is that of dp_audit.py: each release is a run with a canary of
its own, and a ledger of one release is what one coin may cost.

Canary: a row that is longer than the bound, and so changes the moments as much as a row can.

The fault adds a quarter of the noise that its ledger is charged for, which looks the
same from outside as a row that is four times as long as the bound; it must be found out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from dp_audit import BUDGET, Outcome, RandomBytes, Run, table

from securefda.privacy.dp_events import DpEvent
from securefda.privacy.empirical_audit import correct_guesses, epsilon_lower_bound, throw_coins
from securefda.privacy.ledger import Ledger, Reservation
from securefda.privacy.ledger_storage import Head
from securefda.protocol.encoding import Vector
from securefda.rules import Moments
from securefda.site.privacy_account import PrivacyAccount, data_set_of
from securefda.site.private_trainer import PrivateTrainer
from securefda.tasks import Samples, TaskSettings
from securefda.tasks.fed_heart import HOSPITALS, FedHeart
from securefda.training import TrainingSettings
from securefda.training.head import head_rows
from securefda.training.training_settings import NoiseSettings

SITE, BOUND = "va", 1.0
PER_SIDE = 16  # one in so many releases is guessed "in", and as many "out"
RUNS = (Run(0.6378), Run(1.158), Run(2.0), Run(4.047), Run(0.5, charged_as=2.0))


@dataclass(frozen=True, slots=True)
class OneRelease(PrivacyAccount):
    """Charges the first release to the ledger. The others cost the same, and each is taken for the only one.

    Attributes:
        charged_as: noise multiplier that the ledger is charged for; None for the true one.
        charged, ends: the charge, and the ledger's head after it.
    """

    charged_as: float | None = None
    charged: list[Reservation] = field(default_factory=list)
    ends: list[Head] = field(default_factory=list)

    def reserve(self, event: DpEvent) -> Reservation:
        if not self.charged:
            multiplier = event.noise_multiplier if self.charged_as is None else self.charged_as
            self.charged.append(PrivacyAccount.reserve(self, replace(event, noise_multiplier=multiplier)))
        return self.charged[0]

    def commit(self, reservation: Reservation, steps: int) -> Head:
        if not self.ends:
            self.ends.append(PrivacyAccount.commit(self, reservation, steps))
        return self.ends[0]


def trainer_of(task: FedHeart, rows: Samples, run: Run, folder: Path, random_bytes: RandomBytes) -> PrivateTrainer:
    data = data_set_of(SITE, "fed-heart", rows)
    ledger = Ledger.create(folder / f"{len(rows)}.sqlite", data, now=int(time.time()))
    account = OneRelease(ledger, data, BUDGET, bytes(32), charged_as=run.charged_as)
    dp = NoiseSettings(run.noise or 0.0)
    settings = TrainingSettings("sgd", 0.1, len(rows), device="cpu", dp=dp)
    return PrivateTrainer(task, SITE, rows, settings, 1, account=account, random_bytes=random_bytes)


def audited(run: Run, *, releases: int, random_bytes: RandomBytes, folder: Path) -> Outcome:
    """Return what the guesses about the canary prove of one release."""
    started = time.monotonic()
    task = FedHeart(TaskSettings(HOSPITALS[0], HOSPITALS[1:], options={"scaling": "public"}))
    rows = task.train_data(SITE)
    canary = Samples(torch.full_like(rows.features[:1], 10.0), torch.ones_like(rows.labels[:1]))
    both = Samples(torch.cat([rows.features, canary.features]), torch.cat([rows.labels, canary.labels]))
    without, beside = (trainer_of(task, these, run, folder, random_bytes) for these in (rows, both))
    model = without.initial_model()
    sums = [part.means() * part.rows for part in (moments_of(one, model) for one in (without, beside))]
    towards = sums[1] - sums[0]
    coins = throw_coins(releases, random_bytes)
    scores = np.empty(releases)
    for number, coin in enumerate(coins):
        site = beside if coin else without
        released = site.moments(model, 1, bound=BOUND, run_id=f"run-{number}")
        scores[number] = (released.update.astype(np.float64) * site.samples - sums[0]) @ towards
    per_side = releases // PER_SIDE
    correct = correct_guesses(scores, coins, per_side)
    bound = epsilon_lower_bound(2 * per_side, correct, releases, BUDGET.delta)
    spent = beside.account.ledger.spent(BUDGET.delta)
    return Outcome(run, spent, 2 * per_side, correct, bound, time.monotonic() - started)


def moments_of(site: PrivateTrainer, model: Vector) -> Moments:
    return Moments.of(*head_rows(site, model), bound=BOUND)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--releases", type=int, default=4000)
    parser.add_argument("--seed", type=int, help="predictable coins and noise, to look into a run again")
    parser.add_argument("--check", action="store_true", help="end with 1 where a line is marked (!)")
    given = parser.parse_args()
    random_bytes = os.urandom if given.seed is None else np.random.default_rng(given.seed).bytes
    outcomes: list[Outcome] = []
    for run in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(audited(run, releases=given.releases, random_bytes=random_bytes, folder=Path(folder)))
        print(*table(outcomes)[0 if len(outcomes) == 1 else -1 :], sep="\n", flush=True)
    if given.check and not all(outcome.is_as_it_should_be for outcome in outcomes):
        sys.exit(1)


if __name__ == "__main__":
    main()
