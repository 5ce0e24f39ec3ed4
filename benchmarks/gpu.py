"""What a GPU does for training here: tests, a whole run, speed, DP-SGD beside Opacus, accuracy and memory.

    python benchmarks/gpu.py --measure [--check]            # on a machine with CUDA, at most 8 minutes
    python benchmarks/gpu.py --measure --device cpu --size smallest --figures /tmp/gpu.json     # tries the script
    python benchmarks/gpu.py                                # prints the tables of the figures

It runs from a clone without installation, and without network. Packages that are missing are named; a part that needs
none of them is measured all the same. Each part has a process of its own and a limit of time. The figures are written
after each part, and a part that fails is recorded with its error; called again, the script measures what is missing.
``--check`` ends with 1 where a part has failed, a step of DP-SGD takes over 1.3 times as long as Opacus' by itself, or
the accuracy on the device differs from that on the CPU by more than seeds do.
"""

# ruff: noqa: PLC0415 - this file has to start with any Python and no package

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from studies import markdown, shown

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
FIGURES = HERE / "gpu.json"
sys.path.insert(0, str(ROOT))  # the clone may not be installed

LIMIT_S = 440
BOUNDS_S = {"tests": 120, "run": 100, "training": 130, "dp": 70, "accuracy": 90, "memory": 60}
"""The parts, in order of worth, and how long each may take."""

_TORCH = ("cryptography", "numpy", "scikit-learn", "torch", "typing-extensions")
_FEDERATION = (*_TORCH, "grpcio", "protobuf", "pydantic", "safetensors", "tomli-w")
NEEDS = {
    "tests": (*_TORCH, "hypothesis", "opacus", "pydantic", "pytest"),
    "run": (*_FEDERATION, "jinja2", "matplotlib", "pillow", "rich", "typer"),
    "training": (*_TORCH, "pillow", "pydantic"),
    "dp": (*_TORCH, "opacus"),
    "accuracy": _FEDERATION,
    "memory": _TORCH,
}
"""Packages that a part cannot do without."""

LEAST_NOISE = 0.002
"""One row of the 500 on which the federation is tested."""

_END_S = 10.0
_SHORTEST_S = 5.0
_CONFIG, _MISSED = 4, 1
_KEYS = {"device", "machine", "opacus", "parts", "revision", "size", "torch"}


class Unmeasurable(Exception):
    """Nothing can be measured here; ``hint`` says how to change that."""

    def __init__(self, why: str, *, hint: str) -> None:
        super().__init__(why)
        self.hint = hint


# --- what is installed ------------------------------------------------------------------------------------------------


def requirements() -> dict[str, str]:
    """Package -> the versions that the project takes of it, as ``pyproject.toml`` has them, and those of the tests."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tested = [line for line in project["optional-dependencies"]["dev"] if line in ("hypothesis", "pytest")]
    pattern = re.compile(r"([A-Za-z0-9._-]+)(.*)")
    return dict(pattern.fullmatch(line).groups() for line in (*project["dependencies"], *tested))  # type: ignore[union-attr, misc]


def installed(package: str) -> str | None:
    """The version that is installed; None where it is not."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def lacking(wanted: Mapping[str, str], find: Callable[[str], str | None] = installed) -> dict[str, str]:
    """Packages that are not there or not as they are wanted -> a word about each: ``torch>=2.7 (there is 2.1)``."""
    found = {}
    for package, versions in wanted.items():
        there = find(package)
        if there is None:
            found[package] = f"{package}{versions}"
        elif not _fits(there, versions):
            found[package] = f"{package}{versions} (there is {there})"
    return found


def _fits(there: str, versions: str) -> bool:
    if not versions:
        return True
    operator, wanted = versions[:2], _numbers(versions[2:])
    return _numbers(there) == wanted if operator == "==" else _numbers(there) >= wanted


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text.partition("+")[0])]


_PROBE = """
import json, torch
if not torch.cuda.is_available():
    build = "a build for CPUs" if torch.version.cuda is None and torch.version.hip is None else "a build with CUDA"
    raise SystemExit(f"torch {torch.__version__} is {build}, and sees no usable GPU")
about = torch.cuda.get_device_properties(0)
torch.ones(1, device="cuda").item()
print(json.dumps({"kind": "cuda", "name": about.name, "memory_gb": round(about.total_memory / 1e9),
                  "capability": f"{about.major}.{about.minor}", "cuda": torch.version.cuda or torch.version.hip}))
"""


def device_here(kind: str) -> dict[str, Any]:
    """The device that is measured. Raises Unmeasurable where it cannot be used, with what PyTorch says."""
    if kind == "cpu":
        return {"kind": "cpu", "name": "the CPU itself"}
    done = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, check=False)
    if done.returncode:
        hint = "--device cpu --figures FILE tries the script without a GPU"
        raise Unmeasurable(f"no GPU: {last_line(done.stderr)}", hint=hint)
    return dict(json.loads(done.stdout))


# --- measuring --------------------------------------------------------------------------------------------------------


def measure(figures: dict[str, Any], parts: Iterable[str], limit: float, save: Callable[[], None]) -> None:
    """Measure parts into ``figures["parts"]``, until ``limit`` seconds have passed; ``save`` is called after each."""
    deadline = time.monotonic() + limit
    for part in parts:
        missing = [
            figures["lacking"][package] for package in NEEDS[part] or requirements() if package in figures["lacking"]
        ]
        bound = min(BOUNDS_S[part], deadline - time.monotonic())
        if missing:
            result: dict[str, Any] = {"status": "missing", "error": f"missing packages: {', '.join(missing)}"}
        elif bound < _SHORTEST_S:
            result = {"status": "not reached", "error": f"the {limit:g} s were over before it"}
        else:
            result = one_part(part, figures["device"]["kind"], figures["size"], bound)
        figures["parts"][part] = result
        save()
        print(f"{part}: {result['status']}{f', {error}' if (error := result.get('error')) else ''}", file=sys.stderr)


def one_part(part: str, device: str, size: str, bound: float) -> dict[str, Any]:
    """Run a part for at most ``bound`` seconds; what it measured until then is kept, whatever became of it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "log").open("w+b") as log:
        file = Path(folder) / "figures.json"
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        process = subprocess.Popen(
            [sys.executable, str(HERE / "gpu_parts.py"), part, device, size, str(file)],
            env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "TMPDIR": folder},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(bound)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        log.seek(0)
        said = log.read().decode(errors="replace")
        result: dict[str, Any] = {"status": "ok", "seconds": round(time.monotonic() - began, 1)}
        if file.is_file():
            result["figures"] = json.loads(file.read_text(encoding="utf-8"))
        if code is None:
            return {**result, "status": "too long", "error": f"stopped after {bound:.0f} s"}
        if code:
            print(said[-2000:], file=sys.stderr)
            return {**result, "status": "failed", "error": last_line(said) or f"ended with {code}"}
        return result


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and those that it started, in order first."""
    for sent, wait in ((signal.SIGTERM, _END_S), (signal.SIGKILL, 1.0)):
        until = time.monotonic() + wait
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sent)
            while time.monotonic() < until:
                process.poll()
                os.killpg(process.pid, 0)
                time.sleep(0.05)


def last_line(text: str) -> str:
    """The last line that says something, as a traceback ends."""
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    return lines[-1][:400] if lines else ""


def revision() -> str | None:
    """Of the clone; None where git cannot tell."""
    git = shutil.which("git")
    if git is None:
        return None
    done = subprocess.run([git, "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or None


# --- tables -----------------------------------------------------------------------------------------------------------


def tables(figures: Mapping[str, Any] | None) -> dict[str, str]:
    """A table for each part in Markdown; none where nothing was measured."""
    made: dict[str, Callable[[Any], str]] = {
        "tests": _tests,
        "run": _run,
        "training": _training,
        "dp": _dp,
        "accuracy": _accuracy,
        "memory": _memory,
    }
    if figures is None:
        return {}
    return {"machine": _machine(figures)} | {
        part: _with_error(figures["parts"].get(part, {"error": "it was not asked for"}), table)
        for part, table in made.items()
    }


def _with_error(part: Mapping[str, Any], table: Callable[[Any], str]) -> str:
    error = part.get("error")
    if "figures" not in part:
        return f"Not measured: {error}."
    return table(part["figures"]) + (f"\n\nIncomplete: {error}." if error else "")


def _machine(figures: Mapping[str, Any]) -> str:
    device, machine = figures["device"], figures["machine"]
    rows = [
        ("device", " ".join(str(device[key]) for key in ("name", "cuda") if key in device)),
        ("memory of the device", f"{device['memory_gb']} GB" if "memory_gb" in device else "–"),
        ("processor", f"{machine['cores']} cores, {machine['processor']}"),
        ("memory", f"{machine['memory_gb']} GB"),
        ("PyTorch", figures["torch"]),
        ("Opacus", figures["opacus"] or "–"),
        ("revision", f"`{figures['revision'][:7]}`" if figures["revision"] else "–"),
    ]
    return markdown(("", ""), rows)


def _tests(found: Mapping[str, Any]) -> str:
    counts = [str(found[kind]) for kind in ("passed", "passed_on_device", "failed", "skipped")]
    return markdown(("passed", "of them on the device", "failed", "skipped"), [counts])


def _run(found: Mapping[str, Mapping[str, Any]]) -> str:
    rows = [
        (
            *(where, str(of["sites"]), str(of["rounds"]), f"{of['seconds']:.1f} s", f"{of['final_accuracy']:.3f}"),
            "–" if of["device_memory_mb"] is None else f"{of['device_memory_mb']:,} MB",
        )
        for where, of in found.items()
    ]
    return markdown(("all sites on", "sites", "rounds", "whole run", "last accuracy", "GPU memory in use"), rows)


def _training(found: Mapping[str, Any]) -> str:
    rows = []
    for model in found["models"]:
        rates = [f"{model['rows_per_second'][where]:,.0f}" for where in ("cpu", "device")]
        named = (model["model"], f"{model['parameters']:,}", str(model["batch"]), model["on"]["cpu"])
        rows.append((*named, *rates, f"{model['gain']:.2f}"))
    head = ("model", "parameters", "batch", "CPU", "rows/s on the CPU", "rows/s on the device", "gain")
    return markdown(head, rows)


def _dp(found: Mapping[str, Any]) -> str:
    rows = [
        (
            f"{name}, {mode}",
            f"{case['parameters']:,}",
            *(f"{case['ms'][way]:.2f} ms" for way in ("plain", f"opacus, {mode}", f"ours, {mode}")),
            f"{case['ratios'][f'ours over opacus, {mode}']:.2f}",
        )
        for name, case in found["cases"].items()
        for mode in ("hooks", "ghost")
    ]
    return markdown(("case", "parameters", "plain step", "Opacus", "ours", "over Opacus"), rows)


def _accuracy(found: Mapping[str, Any]) -> str:
    of = found["accuracies"]
    rows = [(where, *(f"{100 * value:.1f}" for value in values)) for where, values in of.items()]
    head = ("accuracy, %", *(f"seed {seed}" for seed in range(len(of["cpu"]))))
    return markdown(head, rows) + (
        f"\n\nMean difference {100 * found['difference']:+.2f} points; "
        f"standard deviation over seeds, on the CPU, {100 * found['noise']:.2f}."
    )


def _memory(found: Mapping[str, Any]) -> str:
    kinds = ("model_mb", "import_torch_mb", "host_peak_mb", "device_allocated_mb", "device_reserved_mb")
    rows = [
        (of["model"], of["on"], *("–" if of[kind] is None else f"{of[kind]:,.0f}" for kind in kinds))
        for of in found["processes"]
    ]
    head = ("model", "trains on", "model, MB", "import of torch", "host peak", "device peak", "device reserved")
    return markdown(head, rows)


def misses(figures: Mapping[str, Any]) -> list[str]:
    """A line for each requirement that does not hold."""
    parts = figures["parts"]
    unmeasured = {part: parts.get(part, {}).get("error", "it was not asked for") for part in BOUNDS_S}
    found = [f"{part}: {why}" for part, why in unmeasured.items() if parts.get(part, {}).get("status") != "ok"]
    dp = parts.get("dp", {}).get("figures", {"cases": {}})
    for name, case in dp["cases"].items():
        over = {what: ratio for what, ratio in case["ratios"].items() if "opacus" in what and ratio > dp["allowed"]}
        found += [f"dp: {name}: {what} is {ratio}, allowed is {dp['allowed']}" for what, ratio in over.items()]
    if (of := parts.get("accuracy", {}).get("figures")) and abs(of["difference"]) > max(of["noise"], LEAST_NOISE):
        found.append(f"accuracy: differs by {of['difference']:+.4f}, seeds by {of['noise']:.4f}")
    return found


# --- the command ------------------------------------------------------------------------------------------------------


def read(file: Path) -> dict[str, Any] | None:
    """The figures in ``file``; None where there are none. Raises Unmeasurable where they cannot be read."""
    if not file.is_file():
        return None
    other = "name another file with --figures"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unmeasurable(f"{file} cannot be read: {error}", hint=other) from error
    if not isinstance(found, dict) or not found.keys() >= _KEYS:
        raise Unmeasurable(f"{file} holds no figures of this script", hint=other)
    return found


def _begun(given: argparse.Namespace) -> dict[str, Any]:
    """What is known before the first part: the figures in the file, where they are of this device and revision.

    Raises:
        Unmeasurable: nothing can be measured, or the file has other figures.
    """
    without = lacking(requirements())
    if without:
        print(f"missing packages: {', '.join(without.values())}", file=sys.stderr)
    if "torch" in without:
        raise Unmeasurable(f"nothing can be measured without {without['torch']}", hint="install the packages")
    if given.device == "cpu" and given.figures == FIGURES:
        raise Unmeasurable(f"{FIGURES.name} is for figures of a GPU", hint="name another file with --figures")
    if not os.access(given.figures.resolve().parent, os.W_OK):
        raise Unmeasurable(f"{given.figures}: its folder is missing or not writable", hint="name another file")
    from securefda.bench.resources import this_machine

    about = {
        "device": device_here(given.device),
        "size": given.size,
        "revision": revision(),
        "torch": installed("torch"),
        "opacus": installed("opacus"),
    }
    known = None if given.again else read(given.figures)
    if differ := [key for key in about if known and known[key] != about[key]]:
        why = f"{given.figures} has figures of another {differ[0]}"
        raise Unmeasurable(why, hint="replace them with --again, or name another file with --figures")
    parts = {} if known is None else {name: part for name, part in known["parts"].items() if part["status"] == "ok"}
    return {**about, "machine": this_machine(), "lacking": without, "parts": parts}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure where asked to, then print the tables and check."""
    if sys.version_info < (3, 11):  # noqa: UP036 - nothing has checked it before
        print(f"error: Python 3.11 to 3.13 is needed, this is {sys.version.split()[0]}", file=sys.stderr)
        return _CONFIG
    given = _arguments(arguments)
    try:
        return _measured(given)
    except Unmeasurable as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return _CONFIG
    except KeyboardInterrupt:
        print("interrupted; called again, it goes on", file=sys.stderr)
        return _MISSED


def _measured(given: argparse.Namespace) -> int:
    if given.measure:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the part at work is ended first
        figures = _begun(given)

        def save() -> None:
            new = given.figures.with_suffix(".new")
            new.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            new.replace(given.figures)

        measure(figures, [part for part in given.parts if part not in figures["parts"]], given.limit, save)
    figures_now = read(given.figures)
    print(shown(tables(figures_now)))
    if not given.check:
        return 0
    wrong = ["no figures"] if figures_now is None else misses(figures_now)
    for line in wrong:
        print(f"MISSED: {line}", file=sys.stderr)
    return _MISSED if wrong else 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure what the file of figures lacks")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="what is compared with the CPU")
    parser.add_argument("--size", choices=("full", "smallest"), default="full", help="how much is measured")
    parser.add_argument("--parts", nargs="+", choices=BOUNDS_S, default=list(BOUNDS_S), metavar="PART")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for all parts together")
    parser.add_argument("--again", action="store_true", help="replace the figures in the file")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--check", action="store_true", help="end with 1 where a requirement does not hold")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
