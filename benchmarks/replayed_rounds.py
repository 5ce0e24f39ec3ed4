"""Rounds of securefda beside the same rounds by ``independent/authors_schedule.py``, on noisy Fashion-MNIST.

    python benchmarks/replayed_rounds.py --data-dir DIR    measure and print
    python benchmarks/replayed_rounds.py                   print

Two runs draw other batches and other noise, so their accuracy differs by chance. This study shows whether anything else
differs. It records what every site gave in each round of a simulated federation, and computes the next model from that
by the script's formulas. In each round the script also trains one source and the target from the model that
securefda's had: its updates must be as long, and no farther from securefda's than from its own of another draw.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from full_data_runs import AUTHORS, WARM_UP, Cell
from independent import authors_schedule as script
from studies import as_text, markdown, this_machine
from torch import Tensor
from torch.nn.functional import cosine_similarity

from securefda.bench.accuracy.federated import use_one_thread
from securefda.training import trainer

FIGURES = Path(__file__).with_suffix(".json")
RULES, SEED, ROUNDS, NOISE = ("source_only", "fedda", "fedgp", "fedda_auto", "fedgp_auto"), 1, 11, 0.4


@dataclass
class Trained:
    """What a site gave in a round: model received and update, (m,), and the target's steps, (B, m)."""

    site: str
    received: Tensor
    update: Tensor
    steps: Tensor


def recorded(cell: Cell, data_dir: Path) -> list[list[Trained]]:
    """Run a cell and return its rounds, each the sources' parts and then the target's."""
    found, original = list[Trained](), trainer.train_local

    def observed(task: Any, model: Any, received: Any, data: Any, **options: Any) -> Any:
        steps, on_step = list[Tensor](), options.pop("on_step", None)

        def keep(step: Any) -> None:
            steps.append(torch.from_numpy(step.copy()))
            on_step(step)

        result = original(task, model, received, data, **options, on_step=keep if on_step else None)
        update = torch.from_numpy(result.update.copy())
        rows = torch.stack(steps) if steps else torch.empty(0)
        found.append(Trained(options["site"], torch.from_numpy(received.copy()), update, rows))
        return result

    trainer.train_local = observed
    try:
        cell.run(data_dir, (f"strategy.rounds={ROUNDS}",))
    finally:
        trainer.train_local = original
    by_round: list[list[Trained]] = []
    for one in found:
        if not by_round or not torch.equal(one.received, by_round[-1][0].received):
            by_round.append([])
        by_round[-1].append(one)
    of_rule = by_round if cell.rule == "source_only" else by_round[WARM_UP:]
    return [sorted(parts, key=lambda one: len(one.steps)) for parts in of_rule]


def step_of(rule: str, parts: list[Trained], sizes: list[int]) -> Tensor:
    """The round's step, (m,), from what its sites gave, by the script's formulas."""
    updates, column = torch.stack([one.update for one in parts]), script.COLUMNS[rule]
    if column.rule == "source_only":
        return updates.mean(dim=0)
    updates, target = updates[:-1], parts[-1]
    rates, count = script.TARGET_RATE / script.SOURCE_RATE, -(-6000 // script.SOURCE_BATCH)
    betas = [column.beta] * len(updates)
    if column.beta is None:
        betas = [script.auto_beta(column.rule, target.steps, update * rates / count) for update in updates]
    scale = rates * len(target.steps) / count
    return script.combined(column.rule, target.update, updates, torch.tensor(betas), scale, sizes)


def in_memory_order(model: script.Network, vector: Tensor) -> Tensor:
    """A vector of securefda, (m,), in the order of the script's."""
    parts = vector.split([parameter.numel() for parameter in model.parameters()])
    with torch.no_grad():
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.copy_(part.view(parameter.shape))
    return model.vector.clone()


def beside(rule: str, parts: list[Trained], folder: Path, draws: torch.Generator) -> Iterator[tuple[str, Tensor]]:
    """Train each site twice from the model of securefda's sites, by the script.

    Yields:
        For each site its side and (3,): the length of the script's update over that of securefda's, and the cosines of
        the script's with securefda's and with its own of another draw.
    """
    column, model = script.COLUMNS[rule], script.Network()
    sources, target = script.sites(folder, SEED)
    start = in_memory_order(model, parts[0].received)
    for part in parts:
        site, rate, batch = target._replace(noise=NOISE), script.TARGET_RATE, column.batch
        if part.site != "target":
            site = sources[int(part.site.removeprefix("source-")) - 1]
            rate, batch = script.SOURCE_RATE, script.SOURCE_BATCH
        theirs = in_memory_order(model, part.update)
        first, second = (
            deque(script.train(model, start, site, batch, rate * column.factor, draws), maxlen=1)[0] - start
            for _ in range(2)
        )
        cosines = [cosine_similarity(first, other, dim=0) for other in (theirs, second)]
        yield "target" if site.noise else "sources", torch.stack([first.norm() / theirs.norm(), *cosines])


def figures(rule: str, data_dir: Path) -> dict[str, Any]:
    """What the rounds of a rule gave."""
    found = recorded(Cell("noisy Fashion-MNIST", "", rule, AUTHORS[rule][0], SEED), data_dir)
    sizes = [parameter.numel() for parameter in script.Network().parameters()]
    draws, errors, by_side = torch.Generator().manual_seed(3000), list[float](), dict[str, list[Tensor]]()
    for parts, after in pairwise(found):
        taken = after[0].received - parts[0].received
        errors.append(float((step_of(rule, parts, sizes) - taken).norm() / taken.norm()))
    for number, parts in enumerate(found):
        some = [parts[number % script.SOURCES], *parts[script.SOURCES :]]
        for side, numbers in beside(rule, some, data_dir / "fashion_mnist", draws):
            by_side.setdefault(side, []).append(numbers)
    return {
        "rule": rule,
        "rounds": len(errors),
        "largest_error": float(f"{max(errors):.2g}"),
        **{side: [round(mean, 3) for mean in torch.stack(of).mean(dim=0).tolist()] for side, of in by_side.items()},
    }


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A table in Markdown, by name."""
    head = ["rule", "rounds", "largest error of a step", "whose update", "length", "cosine to securefda", "two draws"]
    lines = [
        [row["rule"], str(row["rounds"]), f"{100 * row['largest_error']:.2g} %", side]
        + [f"{number:.2f}" for number in row[side]]
        for row in rows
        for side in ("sources", "target")
        if side in row
    ]
    return {"steps": markdown(head, lines)}


def main() -> None:
    """Measure if a folder is given, then print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    if given.data_dir is not None:
        use_one_thread()
        rows = [figures(rule, given.data_dir) for rule in RULES]
        FIGURES.write_text(as_text(rows, this_machine()))
    print(tables(json.loads(FIGURES.read_text())["rows"])["steps"])


if __name__ == "__main__":
    main()
