"""Whether a row was among those to which the target adapted its model: attackers who get the adapted model.

    python benchmarks/adapted_members.py --measure    measure, and write adapted_members.json; some four minutes
    python benchmarks/adapted_members.py              print the table from it

The sample `digits`, for a target without labels. The received model is the last one of a run of `source_only` and knows
none of the target's 900 images. Of these a coin takes half, and the target adapts the model to them at the default
settings. The attacker knows the images, the received model and all settings, and not the coins:

- *received*: has the received model alone, and takes the images for members of which it is surest. The baseline.
- *difference*: has the adapted model too, and takes the images of which it has become surer.
- *LiRA* (Carlini et al. 2022): adapts the received model itself with other coins, fits for each image a Gaussian for
  "in" and one for "out" to how sure these models are, and scores by their ratio.

How sure a model is of a row is the logit of its highest probability.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from adaptation import DIGITS, OF_DIGITS, SETTINGS
from attacks_membership import Scores, auc, likelihood_ratio, rate
from studies import as_text, markdown, shown, this_machine

from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.trained import trained_model
from securefda.samples import sample
from securefda.site.config import load_federation
from securefda.tasks import Unlabelled
from securefda.training import TrainingSettings, Vector, derive_seed, model_to_vector
from securefda.training.site_model import SiteModel
from securefda.training.target_adaptation import AdaptationSettings, adapt

FIGURES = Path(__file__).with_suffix(".json")
SHADOWS, TARGETS, ALARMS, SEED = 24, 8, 0.01, 10


def of_angle(angle: str) -> dict[str, Any]:
    """What every attacker finds where the target's images are turned by an angle."""
    settings = [*SETTINGS, *OF_DIGITS, *DIGITS[angle], "training.target.adapt=none"]
    with tempfile.TemporaryDirectory() as folder:
        simulate(load_federation(sample("digits"), settings), Path(folder), SEED, SilentReporter())
        task, model = trained_model(folder)
    received = model_to_vector(model)
    test = task.test_data("target")
    if test is None:
        raise RuntimeError("digits has labelled test rows")
    images = torch.cat([task.train_data("target").features, test.features])

    def sureness(vector: Vector) -> Scores:
        site = SiteModel(task, "target", Unlabelled(images), TrainingSettings(device="cpu"), SEED)
        site.prepare_to_evaluate(vector)
        with torch.no_grad():
            highest = torch.softmax(site.module(images).double(), dim=1).amax(dim=1)
        return torch.logit(highest, eps=1e-12).numpy()

    def after(coins: Any, number: int) -> Scores:
        site = SiteModel(task, "target", Unlabelled(images[coins]), TrainingSettings(device="cpu"), SEED)
        return sureness(adapt(site, received, AdaptationSettings(), derive_seed(SEED, "adapted", number)).vector)

    drawn = np.random.default_rng(SEED)
    coins = np.zeros((SHADOWS + TARGETS, len(images)), dtype=bool)
    for row in coins:
        row[drawn.permutation(len(images))[: len(images) // 2]] = True
    found = np.stack([after(row, number) for number, row in enumerate(coins)])
    known, hidden, before = coins[:SHADOWS], coins[SHADOWS:], sureness(received)
    scores = {
        "received": np.tile(before, (TARGETS, 1)),
        "difference": found[SHADOWS:] - before,
        "LiRA": likelihood_ratio(found[:SHADOWS], known, found[SHADOWS:]),
    }
    return {"angle": angle, "images": len(images), "found": {name: _found(of, hidden) for name, of in scores.items()}}


def _found(scores: Scores, coins: Any) -> dict[str, float]:
    """How well scores (runs, n) tell the members: area under the ROC curve, largest advantage, members found."""
    ins, outs = np.sort(scores[coins]), np.sort(scores[~coins])
    cuts = np.concatenate([ins, outs])
    advantage = np.searchsorted(outs, cuts) / len(outs) - np.searchsorted(ins, cuts) / len(ins)
    return {
        "auc": auc(scores[coins], scores[~coins]),
        "advantage": float(advantage.max()),
        "found": rate(scores, coins, ALARMS),
    }


def tables(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The table as Markdown."""
    head = ("images turned by", "attacker", "AUC", "advantage", "of 100 members found at 1 %")
    lines = (
        (row["angle"], name, f"{of['auc']:.2f}", f"{100 * of['advantage']:.0f} %", f"{100 * of['found']:.0f}")
        for row in rows
        for name, of in row["found"].items()
    )
    return {"attackers": markdown(head, lines)}


def main() -> int:
    """Measure if asked to, then print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    if parser.parse_args().measure:
        torch.set_num_threads(1)
        FIGURES.write_text(as_text([of_angle(angle) for angle in DIGITS], this_machine()))
    print(shown(tables(json.loads(FIGURES.read_text())["rows"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
