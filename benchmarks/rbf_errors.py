"""Compares the estimated Delta errors of rbf with those that fresh rows of the target show.

    python benchmarks/rbf_errors.py [--seeds 3] [--set KEY=VALUE ...]

``rule = "auto"`` follows the estimates, and in some columns of rbf the rule that they name is not the best one. Here
the federation of examples/rbf.toml runs without a network under each of the two auto rules, and every round after the
warm-up also trains the target on rows that it never has: as many steps, from the same model, on its 2,000 test rows.
What an update differs from that one by is its true error. (Of which a little is the noise of 2,000 rows.)

Prints for each column and rule the loss at the end, and for both rules the estimated and the true error: in the first
of these rounds, the only one whose model has not been trained on the target's rows, and as a mean over all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from offline_rounds import OfflineSites

from securefda.aggregator.target import TargetRound, train_target
from securefda.rules import DeltaErrors, RoundPlan, Rule, mean_errors, round_plan
from securefda.site.config import FederationConfig, load_federation
from securefda.training import LocalResult, Vector

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "rbf.toml"
COLUMNS = ((0.2, 300), (0.2, 1000), (0.4, 100), (0.4, 300), (0.4, 1000), (0.8, 100), (0.8, 300), (0.8, 1000))
"""Shift and labelled rows; those in which d^2 is clear of the noise."""
RULES = (Rule.FEDDA_AUTO, Rule.FEDGP_AUTO)


@dataclass(frozen=True, slots=True)
class Errors:
    """Of the two rules in one round, in squared parameter units per step."""

    estimated: tuple[float, ...]
    true: tuple[float, ...]


def main() -> None:
    parser = argparse.ArgumentParser(description="compare estimated Delta errors with true ones")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the model is small
    for shift, rows in COLUMNS:
        column = [f"task.options.shift={shift}", f"task.options.target-rows={rows}"]
        config = load_federation(EXAMPLE, [*column, f"training.target.batch-size={rows // 10}", *options.set])
        for rule in RULES:
            loss, runs = _play(config, rule, options.seeds)
            print(f"shift {shift}, {rows} rows, under {rule}: loss {loss:.3f}")
            print(f"  first round: {_means([run[0] for run in runs])}")
            print(f"  all rounds:  {_means([errors for run in runs for errors in run])}", flush=True)


def _play(config: FederationConfig, rule: Rule, seeds: int) -> tuple[float, list[list[Errors]]]:
    """Mean loss at the end, and the errors of each run's rounds."""
    losses, runs = [], []
    for seed in range(seeds):
        federation = _Federation(config, rule, seed)
        runs.append(list(federation.rounds()))
        losses.append(federation.loss())
    return float(np.mean(losses)), runs


def _means(errors: list[Errors]) -> str:
    estimated, true = (np.mean([getattr(one, kind) for one in errors], axis=0) for kind in ("estimated", "true"))
    return "; ".join(f"{of}: estimated {estimated[at]:.1e}, true {true[at]:.1e}" for at, of in enumerate(RULES))


class _Federation(OfflineSites):
    """The rounds of one run, one after the other."""

    def __init__(self, config: FederationConfig, rule: Rule, seed: int) -> None:
        super().__init__(config, seed)
        self.strategy = replace(self.strategy, rule=rule)
        self._fresh = self.target_on(self.test_data)

    def rounds(self) -> Iterator[Errors]:
        """Play them all; those after the warm-up give errors."""
        for number in range(1, self.strategy.rounds + 1):
            plan = round_plan(self.strategy, number)
            results = self.train_sources(plan, number)
            if plan.rule is Rule.SOURCE_ONLY:
                update = self.update_of(plan, None, [self.part(plan, None, result) for result in results], results)
            else:
                updates, errors = self._compare(plan, number, results)
                update = updates[RULES.index(plan.rule)]
                yield errors
            self.move(update)

    def _compare(self, plan: RoundPlan, number: int, results: list[LocalResult]) -> tuple[list[Vector], Errors]:
        """The update of either rule from the same model, and how far each is from that of fresh rows."""
        fresh = self._fresh.train(self.model, number, plan.learning_rate_factor)
        plans = [replace(plan, rule=rule, select=True) for rule in RULES]
        target = train_target(self.target, self.model, number, plans[0])
        if target is None or fresh.steps != target.result.steps:
            raise ValueError("the two trainings at the target do not compare")
        found = [self._update(each, target, results) for each in plans]
        true = [float(np.sum((update - fresh.update) ** 2)) / fresh.steps**2 for update, _ in found]
        return [update for update, _ in found], Errors((found[0][1].fedda, found[1][1].fedgp), tuple(true))

    def _update(self, plan: RoundPlan, target: TargetRound, results: list[LocalResult]) -> tuple[Vector, DeltaErrors]:
        """The sources have as many rows each, so that all count the same."""
        parts = [self.part(plan, target, result) for result in results]
        errors = mean_errors([part.errors for part in parts if part.errors is not None])
        return self.update_of(plan, target, parts, results), errors

    def loss(self) -> float:
        """Of the model as it is, on the target's test rows."""
        return self.target.evaluate(self.model, self.test_data).loss


if __name__ == "__main__":
    main()
