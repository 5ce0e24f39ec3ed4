"""What audit logs cost a round: the share of its wall time that writing records, and witnessing, take.

*Without*: ``securefda run``, one process per site, in blocks of rounds that take turns: as it is, and with no site
writing anything down but the events of checkpoints. What a round as it is takes longer is what logging costs it: a site
that waits for others writes meanwhile. ``--check`` is about this one.

Beside it every call of a log is timed from inside, in two settings:

*processes*: ``securefda run``, one process per site. A round waits for the target and for the slowest source, so what
counts is the target's part and that of the source with the most.

*one process*: ``simulate``, all sites one after the other, so that wall time is what all of them work together.

*Logging* is making and writing every record, with forced writes, and every kept message. *Witnessing* is what the sites
do to have their logs cosigned: checkpoints, proofs, notes on the disk, signatures and their checks; the messages that
carry them are in the round, not in it. Figures are medians over the repetitions.

    python benchmarks/audit_rounds.py --measure [--federation examples/digits.toml] [--repeat 2] [--check]
    python benchmarks/audit_rounds.py [--check]    from audit_rounds.json: print the table
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from audit_rounds_shares import timing
from studies import shown, this_machine

from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.operations.run_folder import METRICS_FILE
from securefda.site.config import load_federation

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "audit_rounds.json"
MOST_OF_A_ROUND = {"logging": 0.03, "witnessing": 0.06}
ROUNDS = 600
"""Of a run with blocks of both kinds."""
BLOCK = 6
NEIGHBOURS = 5
"""Comparisons that are drawn together, since two beside each other share a block."""
KINDS = ("logging", "witnessing")
_WHAT = (
    "records, forced writes at releases, kept messages",
    "checkpoints, proofs, signatures and their checks, notes on the disk",
)


def in_one_process(federation: Path, seed: int) -> dict[str, float]:
    """All sites in this process: shares of the wall time of the rounds."""
    with tempfile.TemporaryDirectory() as folder, timing() as shares:
        simulate(load_federation(federation), Path(folder), seed, SilentReporter())
        rounds, seconds = _rounds(Path(folder))
    records = shares.calls["logging.append"] / rounds
    shared = {f"{kind}_share": shares.seconds[kind] / seconds for kind in KINDS}
    return {"seconds_per_round": seconds / rounds, "records_per_round": records, **shared}


def in_processes(federation: Path, seed: int) -> dict[str, float]:
    """A process per site: the target's part and the largest of a source, as shares of the wall time of the rounds.

    Once by the clock on the wall, in which a call also waits for a core that another site has, and in a second run by
    processor time.
    """
    wall, processor = (_of_processes(federation, seed, clock) for clock in ("perf_counter", "thread_time"))
    worked = {f"{key}_of_processor": value for key, value in processor.items() if "share" in key}
    return {**wall, **worked}


def _of_processes(federation: Path, seed: int, clock: str) -> dict[str, float]:
    with _run(federation, seed, clock=clock) as (out, left):
        rounds, seconds = _rounds(out)
        sites = [json.loads(file.read_text()) for file in left.iterdir()]
    target = next(site for site in sites if "aggregator" in site["command"])
    sources = [site for site in sites if "source" in site["command"]]
    return {
        "seconds_per_round": seconds / rounds,
        **{f"{kind}_share": _on_the_way(kind, target, sources) / seconds for kind in KINDS},
        **{f"{kind}_share_of_target": target["seconds"][kind] / seconds for kind in KINDS},
    }


def with_and_without(federation: Path, repeat: int) -> dict[str, float]:
    """How much longer rounds of processes are with their records than without.

    Within one run blocks of rounds with records and without take turns, and each one with records is compared with its
    two neighbours: what else differs from run to run, and from minute to minute, is the same for both. A block's first
    round does not count, for it ends what the block before has begun. Nothing is timed inside the sites.
    """
    adds, as_it_is = [], []
    for seed in range(repeat):
        with _run(federation, seed, f"strategy.rounds={ROUNDS}", block=BLOCK) as (out, _):
            seconds = _seconds(out)
        blocks = [seconds[first + 1 : first + BLOCK] for first in range(0, ROUNDS, BLOCK)]
        means = [statistics.fmean(block) for block in blocks]
        for before, with_records, after in zip(means[1::2], means[2::2], means[3::2], strict=False):
            adds.append(2 * with_records / (before + after) - 1)
            as_it_is.append(with_records)
    least, most = _interval(adds)
    return {
        "blocks_compared": len(adds),
        "round_s": round(statistics.median(as_it_is), 4),
        "logging_adds": round(statistics.median(adds), 4),
        "logging_adds_from": round(least, 4),
        "logging_adds_to": round(most, 4),
    }


def _interval(values: list[float]) -> tuple[float, float]:
    """Where the median lies, 95 %: by the bootstrap over runs of neighbours."""
    begins = np.random.default_rng(0).integers(0, len(values), (2000, math.ceil(len(values) / NEIGHBOURS), 1))
    places = (begins + np.arange(NEIGHBOURS)).reshape(2000, -1)[:, : len(values)] % len(values)
    draw = np.asarray(values)[places]
    low, high = np.quantile(np.median(draw, axis=1), (0.025, 0.975))
    return float(low), float(high)


@contextmanager
def _run(
    federation: Path, seed: int, *settings: str, clock: str = "perf_counter", block: int = 0
) -> Iterator[tuple[Path, Path]]:
    """A run of processes: its folder, and the one with what each of them timed; nothing is timed where blocks are."""
    with tempfile.TemporaryDirectory() as folder:
        out, left = Path(folder) / "run", Path(folder) / "shares"
        left.mkdir()
        ours = {
            "PYTHONPATH": os.pathsep.join((str(HERE / "audit_rounds_probe"), os.environ.get("PYTHONPATH", ""))),
            "SECUREFDA_SHARES": str(left),
            "SECUREFDA_BENCHMARKS": str(HERE),
            "SECUREFDA_CLOCK": clock,
            "SECUREFDA_BLOCK": str(block),
        }
        command = [sys.executable, "-m", "securefda.cli", "run", str(federation), "--out", str(out)]
        command += ["--seed", str(seed), *(word for setting in settings for word in ("--set", setting))]
        subprocess.run(command, env={**os.environ, **ours}, check=True, capture_output=True)
        yield out, left


def _on_the_way(kind: str, target: Mapping[str, Any], sources: list[Mapping[str, Any]]) -> float:
    return float(target["seconds"][kind] + max(source["seconds"][kind] for source in sources))


def _rounds(folder: Path) -> tuple[int, float]:
    """How many there were, and their seconds together."""
    seconds = _seconds(folder)
    return len(seconds), sum(seconds)


def _seconds(folder: Path) -> list[float]:
    """Of every round."""
    lines = [json.loads(line) for line in (folder / METRICS_FILE).read_text().splitlines()]
    return [sum(line["seconds"].values()) for line in lines]


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    found = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    found["logging_share_worst"] = max(run["logging_share"] for run in runs)
    return {key: round(value, 5) for key, value in found.items()}


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """The shares as Markdown, with the bars."""
    found, without = figures["processes"], figures["without"]
    lines = [
        "| share of a round, target and slowest source | bar | by the clock | processor time |",
        "|---|---|---|---|",
    ]
    for kind, what in zip(KINDS, _WHAT, strict=True):
        shares = (
            (f"{kind}_share", f"{kind}_share_of_processor"),
            (f"{kind}_share_of_target", f"{kind}_share_of_target_of_processor"),
        )
        names = (f"{kind}: {what}", f"{100 * MOST_OF_A_ROUND[kind]:.0f} %"), ("... of it the target", "")
        for name, (wall, processor) in zip(names, shares, strict=True):
            lines.append(f"| {name[0]} | {name[1]} | {_percent(found[wall])} | {_percent(found[processor])} |")
    least, most = without["logging_adds_from"], without["logging_adds_to"]
    rounds = f"{without['blocks_compared']} comparisons of rounds of {1000 * without['round_s']:.0f} ms"
    lines.append(
        f"| a round is longer with its records than without, by ({rounds}; 95 % interval) "
        f"| 3 % | {_percent(without['logging_adds'])} ({_percent(least)} to {_percent(most)}) | |"
    )
    return {"shares": "\n".join(lines)}


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def main() -> None:
    """Measure where asked to, and print; with ``--check`` fail where logging adds more to a round than its share."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--federation", type=Path, default=HERE.parent / "examples" / "digits.toml")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.measure:
        measured = {
            "machine": this_machine(),
            "without": with_and_without(options.federation, options.repeat),
            "processes": _medians([in_processes(options.federation, seed) for seed in range(options.repeat)]),
            "one_process": _medians([in_one_process(options.federation, seed) for seed in range(options.repeat)]),
        }
        options.figures.write_text(json.dumps(measured, indent=1) + "\n")
    found = json.loads(options.figures.read_text())
    print(shown(tables(found)))
    share, most = found["without"]["logging_adds"], MOST_OF_A_ROUND["logging"]
    if options.check and share > most:
        sys.exit(f"logging adds {share:.1%} to a round, more than {most:.0%}")


if __name__ == "__main__":
    main()
