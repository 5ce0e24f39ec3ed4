"""How many more steps a second several processes of one site take than one, where computing dominates.

    python benchmarks/team.py --measure [--check]
    python benchmarks/team.py [--check]    from team.json: print the table

One process and two of them take turns, each on one thread of the CPU, with the model of the digit domains (GroupNorm,
an eighth of the paper's width) on made rows. A round of each is timed at the leader, from telling the others to its
result. On fewer cores than processes the figures say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from studies import as_text, shown, this_machine

from securefda.privacy.private_training import train_private
from securefda.source.follower import follow_order
from securefda.tasks import Samples, TaskSettings
from securefda.tasks.digit_domains import DigitDomains
from securefda.training import NoiseSettings, TrainingSettings, build_model, model_to_vector, train_local
from securefda.training.team import Team, TrainingOrder, joined_team

FIGURES = Path(__file__).with_suffix(".json")
ROWS, BATCH, ROUNDS, TURNS = 512, 128, 3, 5
LEAST_RATIO = 1.6
SETTINGS = {
    "plain": TrainingSettings(batch_size=BATCH, device="cpu", threads=1),
    "DP-SGD": TrainingSettings(batch_size=BATCH, device="cpu", threads=1, dp=NoiseSettings(1.0)),
}


def task_and_rows() -> tuple[DigitDomains, Samples]:
    """The model's task, and rows of no meaning in the shape of its images."""
    draws = np.random.default_rng(0)
    features = torch.from_numpy(draws.random((ROWS, 3, 32, 32), dtype=np.float32))
    task = DigitDomains(TaskSettings("synthetic", ("mnist",), 0, options={"norm": "group"}))
    return task, Samples(features, torch.from_numpy(draws.integers(0, 10, ROWS)))


def round_seconds(settings: TrainingSettings, team: Team | None) -> list[float]:
    """Seconds of each round of one step after another, at the leader; the first round, which warms up, is left out."""
    task, data = task_and_rows()
    received, found = model_to_vector(build_model(task, 0)), []
    for _ in range(ROUNDS + 1):
        model = build_model(task, 0)
        began = time.perf_counter()
        if team is not None:
            team.send(TrainingOrder(received, settings, 0))
        if settings.dp is None:
            train_local(task, model, received, data, settings=settings, seed=0, site="site", team=team)
        else:
            train_private(task, model, received, data, settings=settings, site="site", team=team)
        found.append(time.perf_counter() - began)
    return found[1:]


def member(place: Mapping[str, str], settings: TrainingSettings, results: Any) -> None:
    """One process of a team."""
    os.environ.update(place)
    torch.set_num_threads(1)
    with joined_team("cpu") as team:
        if team is None or team.leads:
            results.put(round_seconds(settings, team))
            return
        task, data = task_and_rows()
        while isinstance(order := team.receive(), TrainingOrder):
            follow_order(task, "site", data, order, team)


def seconds_of(count: int, settings: TrainingSettings) -> list[float]:
    """Seconds of the rounds of so many processes."""
    context = get_context("spawn")
    results = context.Queue()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    places = [common | {"RANK": str(rank)} for rank in range(count)]
    processes = [context.Process(target=member, args=(place, settings, results)) for place in places]
    for process in processes:
        process.start()
    found: list[float] = results.get(timeout=600)
    for process in processes:
        process.join()
    return found


def measure() -> list[dict[str, Any]]:
    """Both kinds of training by one process and by two, in turns."""
    rows = []
    steps = ROWS // BATCH
    for kind, settings in SETTINGS.items():
        turns = [[median(seconds_of(count, replace(settings))) for count in (1, 2)] for _ in range(TURNS)]
        one, two = ([steps / seconds for seconds in column] for column in zip(*turns, strict=True))
        ratios = [after / before for before, after in zip(one, two, strict=True)]
        row = {"kind": kind, "one": median(one), "two": median(two), "ratio": median(ratios)}
        rows.append({name: value if isinstance(value, str) else round(value, 3) for name, value in row.items()})
        rows[-1] |= {"least": round(min(ratios), 3), "most": round(max(ratios), 3)}
        print(rows[-1], file=sys.stderr, flush=True)
    return rows


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The table as Markdown."""
    lines = ["| steps per second | one process | two | two over one (range) | bar |", "|---|---|---|---|---|"]
    for row in rows:
        ratio = f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"
        bar = f"{LEAST_RATIO:g}" if row["kind"] == "plain" else ""
        lines.append(f"| {row['kind']} | {row['one']:.1f} | {row['two']:.1f} | {ratio} | {bar} |")
    return {"steps": "\n".join(lines)}


def main() -> int:
    """Measure where asked to, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure first")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--check", action="store_true", help="end with 1 where the bar is missed")
    given = parser.parse_args()
    if given.measure:
        given.figures.write_text(as_text(measure(), this_machine()))
    rows = json.loads(given.figures.read_text())["rows"]
    print(shown(tables(rows)))
    plain = next(row for row in rows if row["kind"] == "plain")
    return 1 if given.check and plain["ratio"] < LEAST_RATIO else 0


if __name__ == "__main__":
    sys.exit(main())
