"""How fast DP-SGD is here: its noise on one core, and a step beside Opacus by itself.

    python benchmarks/dp_speed.py --measure    run dp_noise.py and dp_step.py, write dp_speed.json: about four minutes
    python benchmarks/dp_speed.py [--check]    print the tables from dp_speed.json

The two scripts say what they measure; both go by processor time on one thread. ``--check`` ends with 1 where the noise
comes slower than it should, or a step with ghost clipping on the larger model takes too long beside Opacus'. Take a
machine without other work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from studies import markdown, of_bounds, this_machine

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "dp_speed.json"

LEAST_MILLION_PER_S = 50.0
MOST_OF_OPACUS = 1.3
BARRED_RATES = ("normal", "added_in_place")
BARRED_STEP = ("wide", "ghost")
TURNS = 9

RATES = {
    "normal": "noise alone",
    "added_to": "added to a float32 gradient, rounded to the grid",
    "added_in_place": "the same, in place, as a step does it",
    "torch_float32_one_normal": "torch, one float32 normal",
    "torch_float64_four_normals": "torch, sum of four float64 normals",
}
PARTS = {
    "aes_256_ctr": "AES-256-CTR",
    "bits_to_uniforms": "bits to uniforms",
    "logarithms": "logarithms",
    "roots": "roots",
    "bits_to_angles": "bits to angles",
    "cosines": "cosines",
    "sines": "sines",
    "sums_of_products": "sums of products",
    "rest": "rest",
}
CASES = {"digits": "9,610 parameters, batches of 32", "wide": "1.13 M parameters, batches of 64"}
MODES = {"hooks": "per-sample gradients", "ghost": "ghost clipping"}


def measured(turns: int) -> dict[str, Any]:
    """What the two scripts print, and the machine."""
    load = os.getloadavg()[0]
    found = {
        "noise": _of("dp_noise.py"),
        "step": _of("dp_step.py", "--device", "cpu", "--repeats", str(turns)),
    }
    return {"machine": this_machine(), "load": round(load, 1), **found}


def _of(script: str, *arguments: str) -> dict[str, Any]:
    print(f"measuring: {script}", file=sys.stderr, flush=True)
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / script), *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=os.environ | one_thread)
    return dict(json.loads(done.stdout))


def misses(figures: Mapping[str, Any]) -> list[str]:
    """A line for each bar that is missed."""
    wrong = []
    rates = figures["noise"]["million_values_per_s_of_a_core"]
    for name in BARRED_RATES:
        if rates[name] < LEAST_MILLION_PER_S:
            said = f"{rates[name]:g} million values per second of a core"
            wrong.append(f"MISSED: {RATES[name]}: {said}: {LEAST_MILLION_PER_S:g}")
    case, mode = BARRED_STEP
    ratio = figures["step"]["cases"][case]["ratios"][f"ours over opacus, {mode}"]
    if ratio > MOST_OF_OPACUS:
        wrong.append(f"MISSED: a step, {CASES[case]}, {MODES[mode]}: {ratio:g} times Opacus': {MOST_OF_OPACUS:g}")
    return wrong


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """Every table as Markdown, by name."""
    return {
        "step": _step_table(figures["step"]["cases"]),
        "noise": _noise_table(figures["noise"]),
        "parts": _parts_table(figures["noise"]),
    }


def _step_table(cases: Mapping[str, Any]) -> str:
    rows = []
    for case, found in cases.items():
        for mode, title in MODES.items():
            ms, ratios = found["ms"], found["ratios"]
            over = f"{ratios[f'ours over opacus, {mode}']:.2f}"
            bar = f"{MOST_OF_OPACUS:g}" if (case, mode) == BARRED_STEP else ""
            alone = [_short(ms[name]) for name in (f"ours, {mode}", f"opacus, {mode}", "plain")]
            plain = f"{ratios[f'ours over plain, {mode}']:.1f}"
            noise = _short(found["noise_ms"]["ours"])
            rows.append([CASES[case], title, alone[0], alone[1], over, bar, alone[2], plain, noise])
    head = (
        "processor ms of a step",
        "",
        "ours",
        "Opacus alone",
        "ours over Opacus",
        "bar",
        "plain",
        "ours over plain",
        "noise of ours",
    )
    return markdown(head, rows)


def _noise_table(noise: Mapping[str, Any]) -> str:
    rates = noise["million_values_per_s_of_a_core"]
    rows = [
        [title, f"{rates[name]:.0f}", f"{LEAST_MILLION_PER_S:g}" if name in BARRED_RATES else ""]
        for name, title in RATES.items()
    ]
    return markdown((f"{noise['processor']}; torch {noise['torch']}", "million values per second", "bar"), rows)


def _parts_table(noise: Mapping[str, Any]) -> str:
    parts = noise["ns_per_value"]
    rows = [[title, f"{parts[name]:.1f}"] for name, title in PARTS.items()]
    rows += [["in all", f"{noise['ns_per_value_in_all']:.1f}"], ["the bar", f"{1e3 / LEAST_MILLION_PER_S:.1f}"]]
    return markdown(("noise alone", "ns per value"), rows)


def _short(milliseconds: float) -> str:
    return f"{milliseconds:.3g}" if milliseconds < 100 else f"{milliseconds:.0f}"


if __name__ == "__main__":
    sys.exit(of_bounds(__doc__ or "", FIGURES, measured, tables, misses, turns=(TURNS, "of the step")))
