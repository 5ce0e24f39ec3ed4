"""What a federation needs, from measured figures: bytes of a round, seconds, memory, rows per second, and disk.

    python benchmarks/sizing.py --measure    what no other study has: rows per second, and disk; 5 minutes
    python benchmarks/sizing.py              prints the tables

The other figures are those of ``round_cost.py``, ``masking_session.py``, ``scale.py``, ``memory.py`` and
``dp_speed.py``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from gpu_parts import models
from round_cost_runs import config_of
from round_cost_task import params_of
from studies import markdown, shown, this_machine

from securefda.local.simulator import simulate
from securefda.operations.progress import SilentReporter

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "sizing.json"
LINE = 100e6 / 8
"""Bytes per second of the line for which the tables say how long a transfer takes: 100 Mbit/s."""

MODELS = ("tabular", "digits", "fashion_mnist", "image_folder", "conv 1.1 M")
ROUND_S, TURNS = 0.6, 3
FEDERATIONS = ((3, 100_000), (10, 100_000), (3, 1_100_000))
"""Sources and parameters of the runs whose folders are measured."""

ROUNDS = (2, 6)
"""Rounds of two runs of each; what a round adds is the difference."""

KINDS = ("audit log", "evidence", "models and state")


# --- measuring --------------------------------------------------------------------------------------------------------


def measured() -> dict[str, Any]:
    """All that is measured here."""
    return {
        "machine": this_machine(),
        "training": [training(name) for name in MODELS],
        "disk": [disk(sources, params) for sources, params in FEDERATIONS],
    }


def training(name: str) -> dict[str, Any]:
    """Rows that one thread trains in a second of processor time: a site's round, in batches of the model's own size."""
    torch.set_num_threads(1)
    model = models()[name]()
    steps, took = 1, 0.0
    while True:
        trainer = model.trainer(model.rows(steps * model.batch), "cpu")
        trainer.train(trainer.initial_model(), 1, 1.0)
        rates = []
        for _ in range(TURNS):
            began = time.process_time()
            trainer.train(trainer.initial_model(), 1, 1.0)
            took = time.process_time() - began
            rates.append(steps * model.batch / took)
        if took >= ROUND_S / 2 or steps >= 1000:
            break
        steps = min(1000, max(2 * steps, round(steps * ROUND_S / took)))
    return {
        "model": name,
        "parameters": trainer.n_params,
        "batch": model.batch,
        "rows_per_second": round(median(rates)),
    }


def disk(sources: int, params: int) -> dict[str, Any]:
    """Bytes that a run leaves at the target and, on average, at a source: for good, and for each round."""
    config = config_of(sources, params, "sum")
    found = []
    for rounds in ROUNDS:
        strategy = config.strategy.model_copy(update={"rounds": rounds})
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            simulate(config.model_copy(update={"strategy": strategy}), out, 0, SilentReporter())
            found.append(_bytes_of(out, config.federation.target, len(config.federation.sources)))
    few, many = found
    per_round = {
        side: {kind: round((many[side][kind] - few[side][kind]) / (ROUNDS[1] - ROUNDS[0])) for kind in KINDS}
        for side in few
    }
    for_good = {
        side: {kind: round(few[side][kind] - ROUNDS[0] * per_round[side][kind]) for kind in KINDS} for side in few
    }
    return {"sources": sources, "params": params_of(params), "per_round": per_round, "for_good": for_good}


def _bytes_of(out: Path, target: str, sources: int) -> dict[str, dict[str, float]]:
    """Side -> kind -> bytes; of a source the mean."""
    found = {side: dict.fromkeys(KINDS, 0.0) for side in ("target", "source")}
    for file in out.rglob("*"):
        if not file.is_file():
            continue
        path = file.relative_to(out)
        site = path.parts[1] if path.parts[0] in ("sites", "kits") and len(path.parts) > 2 else target
        if "startup" in path.parts or site == "ca":
            continue
        kind = (
            "models and state"
            if "audit" not in path.parts
            else "evidence"
            if file.name == "messages.bin"
            else "audit log"
        )
        side, share = ("target", 1) if site == target else ("source", sources)
        found[side][kind] += file.stat().st_size / share
    return found


# --- tables -----------------------------------------------------------------------------------------------------------


def tables(
    figures: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    sessions: Sequence[Mapping[str, Any]],
    scale: Sequence[Mapping[str, Any]],
    memory: Mapping[str, Any],
    noise: Mapping[str, Any],
) -> dict[str, str]:
    """Every table as Markdown, by name.

    Args:
        figures: of this script.
        rounds: rows of ``round_cost.json``.
        sessions, scale: cells of ``masking_session.json`` and ``scale.json``.
        memory: ``memory.json``.
        noise: cases of ``dp_speed.json``.
    """
    return {
        "bytes": _bytes_table(rounds, sessions),
        "round": _round_table(rounds, scale),
        "formula": _session_formula(rounds, scale),
        "training": _training_table(figures["training"], noise),
        "memory": _memory_table(memory["source"]),
        "session": _session_table(scale),
        "disk": _disk_table(figures["disk"]),
    }


def _bytes_table(rounds: Sequence[Mapping[str, Any]], sessions: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [
            str(row["sources"]),
            f"{row['params']:,}",
            f"{row['bytes_up'] / row['params']:.2f}",
            f"{row['bytes_down'] / row['params']:.2f}",
            _size(row["bytes_up"] + row["bytes_down"]),
            _size(row["sources"] * (row["bytes_up"] + row["bytes_down"])),
        ]
        for row in sorted(rounds, key=lambda row: (row["params"], row["sources"]))
        if row.get("level") == "sum"
    ]
    rows += [
        [str(cell["sources"]), f"{cell['params']:,}", f"{cell['masked_upload_bytes_per_parameter']:.2f}", "", "", ""]
        for cell in sessions
    ]
    head = (
        "sources",
        "parameters",
        "up, bytes a parameter",
        "down, bytes a parameter",
        "each source",
        "the target's line",
    )
    return markdown(head, rows)


def _round_table(rounds: Sequence[Mapping[str, Any]], scale: Sequence[Mapping[str, Any]]) -> str:
    measured_rounds = {(row["sources"], row["params"]): row for row in rounds if row.get("level") == "sum"}
    rows = []
    for (sources, params), row in sorted(measured_rounds.items(), key=lambda item: (item[0][1], item[0][0])):
        moved = row["bytes_up"] + row["bytes_down"]
        rows.append(
            [str(sources), f"{params:,}", f"{row['seconds']:.2g} s", _on_line(moved), _on_line(sources * moved)]
        )
    for cell in sorted(scale, key=lambda cell: (cell["params"], cell["sources"])):
        if cell["params"] >= 1_000_000 and cell.get("session_s") is not None:
            moved = cell["source_message_bytes_up"] + 8 * cell["params"]
            of_all = cell["sources"] * moved
            row = [f"{cell['session_s']:.2g} s, masking only", _on_line(moved), _on_line(of_all)]
            rows.append([str(cell["sources"]), f"{cell['params']:,}", *row])
    head = (
        "sources",
        "parameters",
        "a round, all sites on two cores",
        "a source's line of 100 Mbit/s adds",
        "if the target has such a line too",
    )
    return markdown(head, rows)


def _session_formula(rounds: Iterable[Mapping[str, Any]], scale: Iterable[Mapping[str, Any]]) -> str:
    """session(N, m), fitted to the masked sessions by least squares of relative errors; what it misses them by, and
    whole rounds.
    """
    sessions = [
        (cell["sources"], cell["params"], cell["session_s"]) for cell in scale if cell.get("session_s") is not None
    ]
    whole = [(row["sources"], row["params"], row["seconds"]) for row in rounds if row.get("level") == "sum"]
    relative = np.array([_terms(sources, params) / seconds for sources, params, seconds in sessions])
    factors = np.linalg.lstsq(relative, np.ones(len(sessions)))[0]
    if (factors < 0).any():
        raise ValueError(f"no sum of costs: the fit has the factors {factors}")
    each, pair, number = 1000 * factors
    cost = rf"{each:.2g}\,N + {pair:.2g}\,N^2 + {number:.2g}\,N\,m / 10^6"
    formula = rf"$$\text{{session}}(N, m) \approx {cost} \text{{ ms}}$$"
    rows = [
        [str(sources), f"{params:,}", what, f"{seconds:.2g} s", f"{fit:.2g} s", f"{100 * (fit / seconds - 1):+.0f} %"]
        for what, points in (("masking only", sessions), ("a round", whole))
        for sources, params, seconds in sorted(points, key=lambda point: (point[1], point[0]))
        for fit in (float(factors @ _terms(sources, params)),)
    ]
    head = ("sources", "parameters", "measured was", "seconds", "formula", "formula is off by")
    return f"{formula}\n\n{markdown(head, rows)}"


def _terms(sources: int, params: int) -> np.ndarray[Any, Any]:
    """What costs time: each source, each pair of them, and each million of numbers that is masked."""
    return np.array([sources, sources**2, sources * params / 1e6])


def _training_table(training_rows: Iterable[Mapping[str, Any]], noise: Mapping[str, Any]) -> str:
    rows = []
    for row in training_rows:
        rate = row["rows_per_second"]
        rows.append([row["model"], f"{row['parameters']:,}", str(row["batch"]), f"{rate:,}", _seconds(10_000 / rate)])
    for name, case in noise.items():
        for way, title in (("hooks", ""), ("ghost", ", ghost clipping")):
            rate = 1000 * case["batch_size"] / case["ms"][f"ours, {way}"]
            shown_rate = [f"{rate:,.0f}", _seconds(10_000 / rate)]
            batch = str(case["batch_size"])
            rows.append([f"{name}, with noise{title}", f"{case['parameters']:,}", batch, *shown_rate])
    head = ("model", "parameters", "batch", "rows per second of one core", "10,000 rows once")
    return markdown(head, rows)


def _memory_table(runs: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for row in runs:
        model = f"{row['params']:,} parameters ({row['model_mb']:.0f} MB)"
        peaks = [f"{row[key]:,.0f} MB" for key in ("source_peak_mb", "target_peak_mb")]
        rows.append([model, str(row["sources"]), *peaks])
    return markdown(("model", "sources", "a source, peak", "the target, peak"), rows)


def _session_table(scale: Sequence[Mapping[str, Any]]) -> str:
    rows = [
        [f"{cell['params']:,}", str(cell["sources"]), f"{cell['aggregator_peak_growth_mb']:,.0f} MB"]
        for cell in sorted(scale, key=lambda cell: (cell["params"], cell["sources"]))
        if cell["params"] >= 1_000_000 and cell.get("aggregator_peak_growth_mb") is not None
    ]
    return markdown(("parameters", "sources", "more memory"), rows)


def _disk_table(federations: Iterable[Mapping[str, Any]]) -> str:
    rows = []
    for one in federations:
        for side in ("target", "source"):
            cells = [
                f"{_size(one['for_good'][side][kind])} + {_size(one['per_round'][side][kind])}"
                if one["per_round"][side][kind] > 0
                else _size(one["for_good"][side][kind])
                for kind in KINDS
            ]
            hundred = sum(one["for_good"][side].values()) + 100 * sum(one["per_round"][side].values())
            rows.append([str(one["sources"]), f"{one['params']:,}", side, *cells, _size(hundred)])
    head = ("sources", "parameters", "site", *(f"{kind}: a run + a round" for kind in KINDS), "100 rounds")
    return markdown(head, rows)


def _on_line(count: float) -> str:
    return _seconds(count / LINE)


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 99.5 else f"{seconds / 60:.0f} min"


def _size(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{max(0.0, count) / 1e3:.3g} kB"


def from_files(folder: Path) -> dict[str, str]:
    """The tables, of the figures that are committed in a folder."""

    def read(name: str) -> Any:
        return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))

    return tables(
        read("sizing"),
        read("round_cost")["rows"],
        read("masking_session")["cells"],
        read("scale")["cells"],
        read("memory"),
        read("dp_speed")["step"]["cases"],
    )


def main() -> None:
    """Measure where asked to, and print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure rows per second and disk first")
    if parser.parse_args().measure:
        FIGURES.write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
    print(shown(from_files(HERE)))


if __name__ == "__main__":
    main()
