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
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
from securefda.training.team import Team, TeamGoneError, TrainingOrder, not_federated

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
            team.order(TrainingOrder(received, not_federated(model), settings, 1, 0))
        if settings.dp is None:
            train_local(task, model, received, data, settings=settings, seed=0, site="site", team=team)
        else:
            train_private(task, model, received, data, settings=settings, site="site", team=team)
        found.append(time.perf_counter() - began)
    return found[1:]


def follower(rank: int, count: int, link: socket.socket) -> None:
    """A process of a team that follows, until the leader ends."""
    torch.set_num_threads(1)
    team = Team(rank, count, [link])
    task, data = task_and_rows()
    model = build_model(task, 0)
    with suppress(TeamGoneError):
        while True:
            follow_order(task, model, data, team.next_order(), site="site", team=team)


def leader(settings: TrainingSettings, links: Sequence[socket.socket], results: Any) -> None:
    """The process that leads, or that trains by itself."""
    torch.set_num_threads(1)
    results.put(round_seconds(settings, Team(0, 1 + len(links), links) if links else None))


def seconds_of(count: int, settings: TrainingSettings) -> list[float]:
    """Seconds of the rounds of so many processes."""
    context = get_context("spawn")
    results = context.Queue()
    own, theirs = list[socket.socket](), list[socket.socket]()
    for _ in range(1, count):
        for ends, end in zip((own, theirs), socket.socketpair(), strict=True):
            ends.append(end)
    processes = [context.Process(target=leader, args=(settings, own, results))]
    processes += [context.Process(target=follower, args=(rank, count, link)) for rank, link in enumerate(theirs, 1)]
    for process in processes:
        process.start()
    for link in (*own, *theirs):
        link.close()
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
