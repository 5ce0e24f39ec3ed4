"""Peak memory of the processes of a federation, as Linux counts it, what a source sends, and how long a round takes.

    python benchmarks/memory.py --measure             measure all below, write memory.json
    python benchmarks/memory.py [--check]             print the tables from memory.json
    python benchmarks/memory.py source|aggregator     measure one case, print one JSON object

``source``: a real run with real training, one process per site; the largest peak of a source against what importing
torch takes plus twelve times the model, what a source sends in the first and in the last round, and the seconds of a
later round beside those of a plain one, rule ``source_only`` with updates in clear. ``aggregator``: how
far the aggregator's memory rises during one masked session, with few sources and with many; random vectors stand in for
training, so that nothing else is seen. Sizes are in MB (10^6 bytes), or in vectors of four bytes per parameter.
``--check`` ends with 1 where a source takes
or sends more than it may. Neither depends on the load.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from studies import markdown, told
from torch import Tensor, nn

from securefda.bench.resources import this_machine
from securefda.bench.secagg.job import Job
from securefda.bench.secagg.parties import parties
from securefda.local.launcher import run_processes
from securefda.operations.progress import SilentReporter
from securefda.site.config import FederationConfig
from securefda.tasks import Samples, Task

SAMPLING_S = 0.005
ALLOWED_MODELS = 12
FEWER_MODELS, LARGE = 10, 20_000_000
"""What a source with a large model may take above torch, and from how many parameters on."""
MOST_BYTES = 2.6
"""For each parameter, in a round after the first."""
_INPUTS, _OUTPUTS = 1024, 16
FIGURES = Path(__file__).resolve().parent / "memory.json"
WIDTHS = (4800, 10_567, 23_535, 82_611)
"""Of the models of a source: 5.0, 11.0, 24.5 and 86 million parameters."""
CASES = (
    (3, WIDTHS[0]),
    (3, WIDTHS[1]),
    (5, WIDTHS[1]),
    (10, WIDTHS[1]),
    (3, WIDTHS[2]),
    (5, WIDTHS[2]),
    (3, WIDTHS[3]),
)
"""Sources, and width of the model."""
SOURCES, ROUNDS = 3, 3
FEW, MANY, PARAMS = 3, 8, 5_000_000


class WideTask(Task):
    """A model of about ``width`` * 1040 parameters and next to no activations, on random rows."""

    separate_rows = True

    def model(self) -> nn.Module:
        width = self.settings.count("width", 4800, low=1, high=1 << 20)
        return nn.Sequential(nn.Linear(_INPUTS, width), nn.Linear(width, _OUTPUTS))

    def train_data(self, site: str) -> Samples:
        generator = torch.Generator().manual_seed(len(site) + ord(site[-1]))
        return Samples(torch.randn(32, _INPUTS, generator=generator), torch.arange(32) % _OUTPUTS)

    def test_data(self, site: str) -> Samples:
        return self.train_data(site)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels)

    def metrics(self, outputs: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": float((outputs.argmax(dim=1) == labels).double().mean())}


class PeakSampler:
    """Reads the peaks of this process's children until it is stopped.

    The kernel keeps the peak itself, so that one reading after it is enough however short it was.
    """

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> PeakSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLING_S):
            for process in _children():
                self._read(process)

    def _read(self, process: Path) -> None:
        try:
            settings_file = Path((process / "cmdline").read_text().split("\0--config\0")[1].split("\0")[0])
            peak = peak_bytes((process / "status").read_text())
        except (OSError, IndexError, ValueError):
            return  # it ended, or has not become a site's process yet
        site = settings_file.parent.name
        self.peaks[site] = max(self.peaks.get(site, 0), peak)


def _children() -> list[Path]:
    tasks = Path("/proc/self/task").iterdir()
    return [Path("/proc") / pid for task in tasks for pid in (task / "children").read_text().split()]


def peak_bytes(status: str) -> int:
    """VmHWM of a /proc/PID/status, which a process that is ending no longer has (ValueError)."""
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    raise ValueError("no peak")


def import_torch_bytes() -> int:
    """Peak of a process that imports torch and nothing else."""
    code = "import torch; print(open('/proc/self/status').read())"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return peak_bytes(done.stdout)


def run_figures(sources: int, width: int, rounds: int, **changes: Any) -> tuple[dict[str, int], list[Any]]:
    """Peak of each process in bytes, by site, and the lines of the rounds."""
    config = FederationConfig.model_validate(
        {
            "federation": {"name": "memory", "sources": [f"source-{number}" for number in range(1, sources + 1)]},
            "task": {"factory": "memory:WideTask", "options": {"width": width}},
            "strategy": {"rule": "fedgp_auto", "rounds": rounds, "warm-up-rounds": 0} | changes.get("strategy", {}),
            "privacy": changes.get("privacy", {}),
            "transport": {"phase-deadline-s": 600.0, "join-deadline-s": 600.0},
        }
    )
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory() as folder, PeakSampler() as sampler:
        run_processes(config, Path(folder) / "run", 0, SilentReporter(), as_copies=False)
        lines = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    return sampler.peaks, lines


def source_figures(sources: int, width: int, rounds: int) -> dict[str, float]:
    peaks, lines = run_figures(sources, width, rounds)
    _, plain = run_figures(
        sources, width, rounds, strategy={"rule": "source_only"}, privacy={"visibility": "individual"}
    )
    of_round, of_plain = (
        fmean(sum(line["seconds"].values()) for line in later[1:] or later) for later in (lines, plain)
    )
    params = width * (_INPUTS + 1 + _OUTPUTS) + _OUTPUTS
    model, torch_bytes = 4 * params, import_torch_bytes()
    peak = max(size for site, size in peaks.items() if site != "target")
    return {
        "sources": sources,
        "params": params,
        "model_mb": model / 1e6,
        "import_torch_mb": torch_bytes / 1e6,
        "source_peak_mb": peak / 1e6,
        "allowed_mb": (torch_bytes + ALLOWED_MODELS * model) / 1e6,
        "above_torch_in_models": (peak - torch_bytes) / model,
        "target_peak_mb": peaks["target"] / 1e6,
        "start_s": lines[0]["seconds"].get("join", 0.0),
        "round_s": of_round,
        "plain_round_s": of_plain,
        "times_plain": of_round / of_plain,
        "sent_in_first_round": fmean(lines[0]["bytes_up"].values()) / params,
        "sent_in_last_round": fmean(lines[-1]["bytes_up"].values()) / params,
    }


def aggregator_figures(few: int, many: int, params: int) -> dict[str, float]:
    figures: dict[str, float] = {"params": params, "vector_mb": 4 * params / 1e6}
    for sources in (few, many):
        with tempfile.TemporaryDirectory() as folder, parties(Job(folder, sources, params, 0), sources) as running:
            running.round("sum")  # the first one also warms up what the libraries keep
            growth = running.round("sum")["peak_growth_bytes"]
        figures[f"growth_of_{sources}_sources_mb"] = growth / 1e6
        figures[f"growth_of_{sources}_sources_in_vectors"] = growth / (4 * params)
    return figures


def measured() -> dict[str, Any]:
    """All cases."""
    return {
        "machine": this_machine(),
        "source": [_rounded(source_figures(sources, width, ROUNDS)) for sources, width in CASES],
        "aggregator": _rounded(aggregator_figures(FEW, MANY, PARAMS)),
    }


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in figures.items()}


def misses(figures: Mapping[str, Any]) -> list[str]:
    """A line for each model with which a source takes or sends more than it may."""
    wrong = []
    for row in figures["source"]:
        allowed = FEWER_MODELS if row["params"] >= LARGE else ALLOWED_MODELS
        if row["above_torch_in_models"] > allowed:
            models = row["above_torch_in_models"]
            wrong.append(f"MISSED: {row['params']} parameters: a source takes {models} models: {allowed}")
        if row["params"] >= LARGE and row["sent_in_last_round"] > MOST_BYTES:
            wrong.append(f"MISSED: a source sends {row['sent_in_last_round']} bytes for each parameter: {MOST_BYTES}")
    return wrong


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """Both tables as Markdown, by name."""
    rows, aggregator = figures["source"], figures["aggregator"]
    head = (
        "parameters",
        "sources",
        "peak of a source",
        "above torch",
        "peak of the target",
        "bytes a parameter, first",
    )
    of_model = [
        (
            f"{row['params'] / 1e6:.1f} M ({row['model_mb']:.0f} MB)",
            f"{row['sources']:.0f}",
            f"{row['source_peak_mb']:.0f} MB",
            f"{row['above_torch_in_models']:.1f} models",
            f"{row['target_peak_mb']:.0f} MB",
            f"{row['sent_in_first_round']:.2f}",
            f"{row['sent_in_last_round']:.2f}",
            f"{row['plain_round_s']:.1f} s",
            f"{row['round_s']:.1f} s",
            f"{row['times_plain']:.2f}",
        )
        for row in rows
    ]
    rises = []
    for sources in (FEW, MANY):
        mb, vectors = (aggregator[f"growth_of_{sources}_sources_{unit}"] for unit in ("mb", "in_vectors"))
        rises.append([str(sources), f"{mb:.0f} MB = {vectors:.1f} vectors"])
    sessions = ["sources", f"rise during a session of {aggregator['params']:,} parameters"]
    return {
        "source": markdown([*head, "later", "a plain round", "a masked one", "times plain"], of_model),
        "aggregator": markdown(sessions, rises),
    }


def main() -> int:
    """Measure one case or all, or print what was measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", nargs="?", choices=("source", "aggregator"), help="one case, printed")
    parser.add_argument("--measure", action="store_true", help="measure all cases, and write the figures")
    parser.add_argument("--check", action="store_true", help="end with 1 where a source takes or sends too much")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--sources", type=int, default=SOURCES)
    parser.add_argument("--many", type=int, default=MANY, help="aggregator: the larger federation")
    parser.add_argument("--width", type=int, default=WIDTHS[0], help="source: the model has 1041 parameters times this")
    parser.add_argument("--params", type=int, default=PARAMS, help="aggregator: parameters")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    if given.what is not None:
        of_source = given.what == "source"
        one = (
            source_figures(given.sources, given.width, given.rounds)
            if of_source
            else aggregator_figures(given.sources, given.many, given.params)
        )
        print(json.dumps(_rounded(one), indent=1))
        return 0
    if given.measure:
        given.figures.write_text(json.dumps(measured(), indent=1) + "\n")
    figures = json.loads(given.figures.read_text())
    return told(tables(figures), misses(figures), check=given.check)


if __name__ == "__main__":
    sys.exit(main())
