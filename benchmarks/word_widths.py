"""What narrow words cost: accuracy of simulated runs by width of a parameter's word, and how parts fit their ranges.

Every run is `securefda simulate` of an example with another ``session.bits``. All widths share seeds, so they share
data, first model and batches. Accuracy is the mean of the last five rounds on the target's test rows. Writes JSON.

    python benchmarks/word_widths.py --data-dir DIR [--task digits ...] [--seeds 5] --out benchmarks/word_widths.json
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter
from securefda.protocol.packing import WORD_BITS
from securefda.site.config import load_federation

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
RULES = ("source_only", "fedda_auto", "fedgp_auto")
LAST_ROUNDS = 5
TASKS: dict[str, tuple[str, ...]] = {
    "digits": (),
    "fed_heart": ("task.data-dir={data}/fed_heart",),
    "colored_mnist": ("task.data-dir={data}/mnist",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description="accuracy by width of a parameter's word")
    parser.add_argument("--data-dir", default="", help="holds fed_heart and mnist")
    parser.add_argument("--task", action="append", choices=TASKS, help="all of them unless given")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=0, help="of the run; 0: those of the example")
    parser.add_argument("--out", type=Path, required=True, help="JSON; what is there of other tasks stays")
    given = parser.parse_args()
    figures = json.loads(given.out.read_text()) if given.out.exists() else {}
    for task in given.task or TASKS:
        figures[task] = [_measured(task, rule, given) for rule in RULES]
        given.out.write_text(json.dumps(figures, indent=1) + "\n")


def _measured(task: str, rule: str, given: argparse.Namespace) -> dict[str, Any]:
    """Of one rule: for each width accuracy by seed in percent, and what became of its rounds."""
    of_widths = {}
    for bits in WORD_BITS:
        runs = [_run(task, rule, bits, seed, given) for seed in range(given.seeds)]
        sums = {key: sum(run[key] for run in runs) for key in ("rounds", "lost", "refused", "emptied", "zeroed")}
        largest = max(run["most_clipped"] for run in runs)
        of_widths[str(bits)] = {"accuracy": [run["accuracy"] for run in runs], **sums, "most_clipped": largest}
    wide = of_widths[str(WORD_BITS[-1])]["accuracy"]
    for width in of_widths.values():
        differences = [one - other for one, other in zip(width["accuracy"], wide, strict=True)]
        width["difference"] = round(statistics.mean(differences), 3)
        spread = statistics.stdev(differences) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
        width["standard_error"] = round(spread, 3)
    return {"rule": rule, "seeds": given.seeds, "widths": of_widths}


def _run(task: str, rule: str, bits: int, seed: int, given: argparse.Namespace) -> dict[str, Any]:
    overrides = [
        f"strategy.rule={rule}",
        f"session.bits={bits}",
        "training.target.threads=1",
        "training.source.threads=1",
    ]
    overrides += [one.format(data=given.data_dir) for one in TASKS[task]]
    overrides += [f"strategy.rounds={given.rounds}"] if given.rounds else []
    config = load_federation(EXAMPLES / f"{task}.toml", overrides)
    with tempfile.TemporaryDirectory() as folder:
        simulate(config, Path(folder), seed, SilentReporter())
        rounds = _lines(Path(folder) / "metrics.jsonl")
        own = [
            line
            for name in config.federation.sources
            for line in _lines(Path(folder) / "sites" / name / "metrics.jsonl")
        ]
    parts = [line for line in own if line.get("samples")]
    accuracies = [line["accuracy"] for line in rounds if line["status"] == "finished"][-LAST_ROUNDS:]
    return {
        "accuracy": round(100 * statistics.mean(accuracies), 3),
        "rounds": len(rounds),
        "lost": sum(line["status"] == "lost" for line in rounds),
        "refused": sum(len(line["refused"]) for line in rounds),
        "emptied": sum(len(line.get("emptied", ())) for line in rounds),
        "zeroed": sum(line["zeroed"] for line in parts),
        "most_clipped": max((line["clipped"] for line in parts), default=0),
    }


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


if __name__ == "__main__":
    main()
