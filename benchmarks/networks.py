"""Runs over networks that delay, limit, cut, fall silent and flip bits, beside the same run on loopback.

    unshare --map-root-user --net python benchmarks/networks.py --measure [--check]
    python benchmarks/networks.py [--check]    from networks.json: print the table

A target and three sources, each a process in a network namespace of its own, train the digits for 20 rounds. Their
lines meet in a proxy (``tests/support/bad_network.py``). Draws follow from the seed, so that the same model must come
out. ``--check`` ends with 1 where it does not.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from studies import as_text, shown, this_machine

if TYPE_CHECKING:
    from e2e_processes import Kits
    from namespaces import Namespaces

TESTS = Path(__file__).resolve().parents[1] / "tests"

FIGURES = Path(__file__).with_suffix(".json")
ROUNDS, SEED, PORT = 20, 7, 8443
LATE_S, SLOW, EVERY = 0.2, 125_000, 100_000
SETTINGS = (f"strategy.rounds={ROUNDS}", "strategy.warm-up-rounds=1", "transport.heartbeat-s=2")
LARGE_SETTINGS = ("strategy.rounds=2", "strategy.warm-up-rounds=1", "transport.heartbeat-s=5")
LARGE_SETTINGS += ("privacy.visibility=individual",)
SITES = ("target", "source-1", "source-2", "source-3")
KINDS = ("cut", "silence", "flip")
NETWORKS: dict[str, dict[str, Any] | None] = {
    "loopback, without the proxy": None,
    "the proxy alone": {},
    "200 ms late, each way": {"delay_s": LATE_S},
    "1 Mbit/s, each way": {"bytes_per_s": SLOW},
    **{
        words: {"every": EVERY, "kinds": (kind,)}
        for words, kind in zip(("cuts", "silences", "flips"), KINDS, strict=True)
    },
    "all of these": {"delay_s": LATE_S, "bytes_per_s": SLOW, "every": EVERY},
}
"""By name, the conditions of each; None for no network between the sites."""


def measure(keep: Path) -> None:
    """Run over each network, and the large model over a slow one; the figures so far are kept after each."""
    sys.path[:0] = [str(TESTS / "support"), str(TESTS / "end_to_end")]
    # Printing the tables needs neither tests nor federations
    from bad_network import BadNetwork, Conditions  # noqa: PLC0415
    from e2e_processes import kits  # noqa: PLC0415
    from namespaces import HUB, Namespaces  # noqa: PLC0415

    rows: list[dict[str, Any]] = []

    def one(name: str, conditions: dict[str, Any] | None, sites: Sequence[str], **options: Any) -> None:
        host = "127.0.0.1" if conditions is None else HUB
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()),
            kits(Path(folder), sites=tuple(sites), port=PORT, host=host, **options) as federation,
        ):
            if conditions is None:
                figures = run(federation, None)
            else:
                to = (namespaces.addresses["target"], PORT)
                with BadNetwork((HUB, PORT), to, Conditions(SEED, **conditions)) as network:
                    figures = {**run(federation, namespaces), **network.figures()}
        rows.append({"network": name, "model_of": options.get("task", "digits"), **figures})
        keep.write_text(as_text(rows, this_machine()))
        print(rows[-1], file=sys.stderr, flush=True)

    with Namespaces(SITES) as namespaces:
        for name, conditions in NETWORKS.items():
            one(name, conditions, SITES, settings=SETTINGS)
        slow = {"delay_s": LATE_S, "bytes_per_s": SLOW}
        one("200 ms late and 1 Mbit/s", slow, SITES[:2], settings=LARGE_SETTINGS, task="e2e_tasks:Large")


def run(federation: Kits, namespaces: Namespaces | None) -> dict[str, Any]:
    """A whole run, each site in its namespace where there are any."""
    processes = []
    for site in (federation.target, *federation.names):
        role = "aggregator" if site == federation.target else "source"
        settings = [f"{role}.repeatable-training=true"]
        options: dict[str, Any] = {}
        if namespaces is not None:
            options = {"module": "namespaces", "env": _environment(namespaces.process_of(site))}
            settings += [f"transport.listen=0.0.0.0:{PORT}"] if site == federation.target else []
        process = federation.start(site, *settings, **options)
        processes.append(process.until("listens on") if role == "aggregator" else process)
    codes = [process.end(3600.0) for process in processes]
    lines = federation.rounds()
    return {
        "codes": codes,
        "rounds": len(lines),
        "finished": sum(line["status"] == "finished" for line in lines),
        "model": federation.summary()["model_digest"],
        "round_s": round(median(sum(line["seconds"].values()) for line in lines), 2),
        "longest_s": round(max(sum(line["seconds"].values()) for line in lines), 2),
    }


def _environment(namespace: int) -> dict[str, str]:
    paths = (TESTS.parent, TESTS / "support", TESTS / "end_to_end")
    return {"SECUREFDA_NAMESPACE": str(namespace), "PYTHONPATH": ":".join(map(str, paths))}


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The tables as Markdown."""
    small, large = ([row for row in rows if (row["model_of"] == "digits") == is_small] for is_small in (True, False))
    head = ("network", "a round, s", "the longest", "connections", *(f"{kind}s" for kind in KINDS), "MB up", "MB down")
    lines = [f"| {' | '.join((*head, 'rounds with a result', 'model'))} |", f"|{'---|' * (len(head) + 2)}"]
    for row in small:
        struck = [str(row["struck"][kind]) if "struck" in row else "-" for kind in KINDS]
        same = "the same" if row["model"] == small[0]["model"] else "another"
        same = "compared with" if row is small[0] else same
        cells = [row["network"], f"{row['round_s']:.2f}", f"{row['longest_s']:.1f}", str(row.get("connections", "-"))]
        lines.append(f"| {' | '.join([*cells, *struck, *_carried(row), str(row['finished']), same])} |")
    whole = ["| network | a round, s | connections | MB up | MB down | rounds with a result |", f"|{'---|' * 6}"]
    for row in large:
        cells = [row["network"], f"{row['round_s']:.0f}", str(row["connections"]), *_carried(row), str(row["finished"])]
        whole.append(f"| {' | '.join(cells)} |")
    return {"runs": "\n".join(lines), "large": "\n".join(whole)}


def _carried(row: Mapping[str, Any]) -> list[str]:
    return [f"{row['carried'][way] / 1e6:.1f}" if "carried" in row else "-" for way in ("up", "down")]


def main() -> int:
    """Measure where asked to, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run first")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--check", action="store_true", help="end with 1 where a model differs, or a round is lost")
    given = parser.parse_args()
    if given.measure:
        measure(given.figures)
    rows = json.loads(given.figures.read_text())["rows"]
    print(shown(tables(rows)))
    same = all(row["model"] == rows[0]["model"] for row in rows if row["model_of"] == "digits")
    good = same and all(row["finished"] == row["rounds"] and not any(row["codes"]) for row in rows)
    return 1 if given.check and not good else 0


if __name__ == "__main__":
    sys.exit(main())
