"""A federation of ten sources that runs for long, with a kill every 30 s: memory, open files, and what must hold.

    python benchmarks/soak.py --measure --minutes 120
    python benchmarks/soak.py              from soak.json: print the tables

The sources reach the target through a proxy that delays by 200 ms each way (``tests/support/bad_network.py``), so that
a round takes seconds and leaves the processor free. Two sources train with noise. Which process is killed, and at what
point, follows from the seed (``tests/end_to_end/killings.py``). Every five seconds each process is looked at:
resident memory, and open descriptors. Processes are copies of one, and share pages with it until they write to them;
that changes what is private, not what is resident. At the end the ledgers, logs and releases are checked.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from studies import as_text, shown, this_machine

if TYPE_CHECKING:
    from killings import Killings

TESTS = Path(__file__).resolve().parents[1] / "tests"

FIGURES = Path(__file__).with_suffix(".json")
SOURCES, LATE_S, KILL_EVERY_S, LOOK_EVERY_S, WARM_S = 10, 0.2, 30.0, 5.0, 30.0
SETTINGS = ("strategy.rounds=9000", "strategy.warm-up-rounds=1", "privacy.budget.target-epsilon=100000")


class Lives:
    """What was seen of each life of each process: at which second, MB resident, and open descriptors."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], list[tuple[float, float, int]]] = {}

    def look(self, killings: Killings, now: float) -> None:
        """Look at every process that lives."""
        for site, process in killings.live.items():
            pid = process.process.pid
            try:
                status = Path(f"/proc/{pid}/status").read_text()
                descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            except OSError:  # it has just ended
                continue
            resident = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
            if resident:  # a process that is ending has none
                self.seen.setdefault((site, pid), []).append((now, int(resident[1]) / 1024, descriptors))

    def figures(self, role: str, target: str) -> dict[str, Any]:
        """Of the target or of the sources: the longest life, and the steepest growth of those of two minutes or more.

        Each life is compared with itself: the median of its last third with that of its second.
        """
        lives = [seen for (site, _), seen in self.seen.items() if (site == target) == (role == "target")]
        long = [seen for seen in lives if seen[-1][0] - seen[0][0] >= 4 * WARM_S]
        longest = max(lives, key=lambda seen: seen[-1][0] - seen[0][0])
        return {
            "role": role,
            "lives": len(lives),
            "long_lives": len(long),
            "longest_minutes": round((longest[-1][0] - longest[0][0]) / 60, 1),
            "mb": [_median_of(third, 1) for third in _thirds(longest)],
            "descriptors": [_median_of(third, 2) for third in _thirds(longest)],
            "most_mb_a_minute": round(max((_growth(seen, 1) for seen in long), default=0.0), 2),
            "most_descriptors": max((_gain(seen, 2) for seen in long), default=0),
        }


Seen = Sequence[tuple[float, float, int]]


def _thirds(seen: Seen) -> tuple[Seen, Seen, Seen]:
    third = max(1, len(seen) // 3)
    return seen[:third], seen[third : 2 * third] or seen[:third], seen[2 * third :] or seen[-third:]


def _median_of(seen: Seen, which: int) -> float:
    return round(median(one[which] for one in seen), 1)


def _gain(seen: Seen, which: int) -> float:
    _, second, last = _thirds(seen)
    return round(_median_of(last, which) - _median_of(second, which), 1)


def _growth(seen: Seen, which: int) -> float:
    _, second, last = _thirds(seen)
    minutes = (median(one[0] for one in last) - median(one[0] for one in second)) / 60
    return _gain(seen, which) / minutes


def measure(minutes: float, seed: int) -> list[dict[str, Any]]:
    """Run for so long."""
    sys.path[:0] = [str(TESTS / "support"), str(TESTS / "end_to_end")]
    # Printing the tables needs neither tests nor federations
    from bad_network import BadNetwork, Conditions  # noqa: PLC0415
    from e2e_processes import free_port, kits  # noqa: PLC0415
    from killings import Killings, drawn_kills  # noqa: PLC0415

    lives, behind = Lives(), free_port()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        kits(Path(folder), SOURCES, settings=SETTINGS) as federation,
        BadNetwork(("127.0.0.1", federation.port), ("127.0.0.1", behind), Conditions(delay_s=LATE_S)),
    ):
        killings = Killings(federation, {federation.target: (f"transport.listen=127.0.0.1:{behind}",)})
        kills = drawn_kills(seed, killings.sites)
        killings.begin()
        began = time.monotonic()
        next_kill = began + KILL_EVERY_S
        while (now := time.monotonic()) < began + 60 * minutes:
            if now >= next_kill:
                killings.kill(next(kills))
                next_kill += KILL_EVERY_S
                print(f"{(now - began) / 60:.1f} minutes: {killings.account.struck}", file=sys.stderr, flush=True)
            killings.keep_up()
            lives.look(killings, now - began)
            time.sleep(LOOK_EVERY_S)
        took = time.monotonic() - began
        killings.end()
    counted = {one.name: getattr(killings.account, one.name) for one in fields(killings.account)}
    whole = {"role": "all", "minutes": round(took / 60, 1), "seed": seed, "sources": SOURCES, **counted}
    return [whole, *(lives.figures(role, federation.target) for role in ("target", "source"))]


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The tables as Markdown."""
    whole, *roles = rows
    rounds = whole["rounds"]
    held = [
        ("minutes", whole["minutes"]),
        ("kills", sum(whole["struck"].values())),
        ("rounds with a result; lost", f"{rounds.get('finished', 0)}; {rounds.get('lost', 0)}"),
        ("vectors that left, each of another round or source", whole["released"]),
        ("trainings with noise, each charged", whole["trained"]),
        ("logs, each verified", whole["logs"]),
    ]
    head = ("of its longest life", "minutes", "MB by thirds", "descriptors by thirds")
    more = ("lives of 2 minutes and more", "steepest growth, MB a minute", "most descriptors gained")
    lines = [f"| {' | '.join((*head, *more))} |", f"|{'---|' * 7}"]
    for row in roles:
        mb, descriptors = (" / ".join(f"{one:g}" for one in row[name]) for name in ("mb", "descriptors"))
        name = "target" if row["role"] == "target" else "a source"
        cells = [name, row["longest_minutes"], mb, descriptors, row["long_lives"], row["most_mb_a_minute"]]
        lines.append(f"| {' | '.join(map(str, cells))} | {row['most_descriptors']:g} |")
    return {
        "held": "\n".join(["| | |", "|---|---|", *(f"| {name} | {figure} |" for name, figure in held)]),
        "memory": "\n".join(lines),
    }


def main() -> int:
    """Measure where asked to, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run first")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    given = parser.parse_args()
    if given.measure:
        given.figures.write_text(as_text(measure(given.minutes, given.seed), this_machine()))
    print(shown(tables(json.loads(given.figures.read_text())["rows"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
