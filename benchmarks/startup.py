"""How long the command takes to start: a source until it has joined, the demo, and commands that train nothing.

    python benchmarks/startup.py --measure [--repeats 7]    measure, write startup.json: about six minutes
    python benchmarks/startup.py [--check]                  print the tables from startup.json

*A source*: ``source start`` from its kit until it says that it has joined an aggregator that listens already, over
``import torch`` in a process of the same Python until that is done. The two take turns, and a ratio is of neighbours;
each source starts in an empty folder. *The demo*: ``securefda demo`` as it stands, from the call to its end, with the
processor time of all its processes. *Other commands*: processor time from start to end, and in one more run which
libraries they import.

Figures are medians. ``--check`` ends with 1 where a bar is missed. Take a machine without other work; how much of it
others took is among the figures.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from round_cost_runs import Load
from studies import markdown, of_bounds, this_machine

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "startup.json"
COMMAND = (sys.executable, "-m", "securefda.cli")
HEAVY = ("torch", "opacus", "sklearn", "scipy", "grpc", "matplotlib")
"""Libraries of which a command is asked whether it imports them."""

MOST_OF_TORCH = 1.5
"""A source until it has joined, over ``import torch``."""
MOST_OF_THE_DEMO_S = 15.0
BARRED, SHOWS_A_BUDGET = "torch", "budget show --config SETTINGS"
"""What no command that trains nothing may import; but a budget is compared with the site's rows, which are tensors."""

REPEATS = 7
FEWEST = 5
_JOINED, _LISTENS = "joined; waiting for", "listens on"
_WAIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds of one process with all that it has started: by the clock on the wall, and of processors."""

    wall: float
    processor: float


def measured(repeats: int) -> dict[str, Any]:
    """All figures, each part with what else the machine did meanwhile."""
    found: dict[str, Any] = {"machine": this_machine(), "repeats": repeats}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, measure in (("source", source_figures), ("demo", demo_figures), ("light", light_figures)):
            print(f"measuring: {part}", file=sys.stderr, flush=True)
            load = Load()
            (folder / part).mkdir()
            figures = measure(folder / part, repeats)
            others = {"load": round(load.at_first, 1), "others": round(load.of_others(), 2)}
            found[part] = {"figures": figures} | others
    return found


def source_figures(folder: Path, repeats: int) -> dict[str, Any]:
    """``import torch`` and a source's start in turns; the first of each warms the disk and does not count."""
    with _aggregator(folder, max(4, repeats + 2)) as kits:  # one never comes, so the run goes on waiting
        turns = []
        for turn in range(repeats + 1):
            source = (*COMMAND, "source", "start", "--config", str(_settings(kits, f"source-{turn + 1}")))
            runs = {
                "import_torch": (sys.executable, "-c", "import torch; print('imported', flush=True)"),
                "source": source,
            }
            said = {"import_torch": "imported", "source": _JOINED}
            order = list(runs) if turn % 2 == 0 else list(runs)[::-1]
            turns.append({name: _until(runs[name], said[name]) for name in order})
    return {name: [_rounded(turn[name]) for turn in turns[1:]] for name in ("import_torch", "source")}


@contextmanager
def _aggregator(folder: Path, sources: int) -> Iterator[Path]:
    """One of the digits that listens and waits for its sources; the folder has the kits of all."""
    kits = folder / "kits"
    names = json.dumps([f"source-{number + 1}" for number in range(sources)])
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    of_all = ("--set", f"federation.sources={names}", "--address", address, "--out", str(kits))
    _run("federation", "init", "digits", *of_all)
    waits = ("--set", "transport.join-deadline-s=3600")
    target = (*COMMAND, "aggregator", "start", "--config", str(_settings(kits, "target")), *waits)
    process = _speaking(target)
    try:
        _wait_for(process, _LISTENS)
        yield kits
    finally:
        _end(process)


def _settings(kits: Path, site: str) -> Path:
    return kits / site / "local" / "settings.toml"


def _until(command: Sequence[str], words: str) -> Taken:
    """What a process takes until it says these words; then it is ended."""
    began = time.perf_counter()
    process = _speaking(command)
    try:
        _wait_for(process, words)
        return Taken(time.perf_counter() - began, _processor_s(process.pid))
    finally:
        _end(process)


def _speaking(command: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=_environment())


def _wait_for(process: subprocess.Popen[str], words: str) -> None:
    """Raises RuntimeError: it ended without them; what it said is in the error."""
    said = []
    for line in process.stdout or ():
        said.append(line)
        if words in line:
            return
    raise RuntimeError(f"{process.args} never said {words!r}:\n{''.join(said)}")


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=_WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def _processor_s(pid: int) -> float:
    """Of a process that runs, all its threads, to a nanosecond or so: of each thread what the scheduler counts."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def _environment() -> dict[str, str]:
    """As somebody has it who has set nothing of threads."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "OPENBLAS_"))}


def demo_figures(folder: Path, repeats: int) -> list[dict[str, float]]:
    """Each demo in a folder of its own."""
    return [_rounded(_whole("demo", "--out", str(folder / str(repeat)))) for repeat in range(repeats)]


def light_figures(folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Of every command that trains nothing, on what a short run with noise has left."""
    rows = []
    for name, command in _light_commands(folder).items():
        imported = _imports_of(command)  # first, so that the files are in memory
        taken = [_rounded(_whole(*command)) for _ in range(repeats)]
        rows.append({"command": name, "imports": imported, "taken": taken})
    return rows


def _light_commands(folder: Path) -> dict[str, tuple[str, ...]]:
    """What is shown of a command -> its arguments."""
    run, kits = folder / "run", folder / "run" / "kits"
    noise = ("training.source.dp.noise-multiplier=1", "privacy.budget.target-epsilon=1000")
    short = ("strategy.rounds=2", "strategy.warm-up-rounds=0", *noise)
    _run("run", "digits", "--out", str(run), *(word for setting in short for word in ("--set", setting)))
    policy = kits / "source-1" / "local" / "policy.toml"
    plan = "--rounds 10 --samples 239 --batch 32 --epsilon 4 --delta 1e-5"
    return {
        "--help": ("--help",),
        "threats": ("threats",),
        "config show digits": ("config", "show", "digits"),
        "policy explain POLICY digits": ("policy", "explain", str(policy), "digits", "--site", "source-1"),
        "audit verify LOG": ("audit", "verify", str(kits / "source-1" / "local" / "audit")),
        "audit reconcile RUN": ("audit", "reconcile", str(run)),
        SHOWS_A_BUDGET: ("budget", "show", "--config", str(run / "sites/source-1/source.toml")),
        f"budget plan {plan}": ("budget", "plan", *plan.split()),
    }


def _imports_of(command: Sequence[str]) -> list[str]:
    """Which of the heavy libraries a command imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *COMMAND[1:], *command],
        env=_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    modules = set(re.findall(r"^import time: +\d+ \| +\d+ \| +(\S+)$", done.stderr, re.MULTILINE))
    return [name for name in HEAVY if name in modules]


def _run(*command: str) -> None:
    """Raises RuntimeError: the command failed; what it said is in the error."""
    done = subprocess.run([*COMMAND, *command], env=_environment(), check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command} ended with {done.returncode}:\n{done.stderr}")


def _whole(*command: str) -> Taken:
    """What a command takes from its call to its end, with all the processes that it starts and waits for."""
    began = time.perf_counter()
    process = subprocess.Popen(
        [*COMMAND, *command], env=_environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    taken = Taken(time.perf_counter() - began, usage.ru_utime + usage.ru_stime)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return taken


def _rounded(taken: Taken) -> dict[str, float]:
    return {name: round(value, 3) for name, value in asdict(taken).items()}


def ratios(source: Mapping[str, Any]) -> list[float]:
    """A source until it has joined over ``import torch``, turn by turn, by the clock on the wall."""
    pairs = zip(source["source"], source["import_torch"], strict=True)
    return [ours["wall"] / torch["wall"] for ours, torch in pairs]


def misses(figures: Mapping[str, Any]) -> list[str]:
    """A line for each bar that is missed."""
    wrong = []
    if figures["repeats"] < FEWEST:
        wrong.append(f"MISSED: medians of {figures['repeats']}, at least {FEWEST} are needed")
    ratio = median(ratios(figures["source"]["figures"]))
    if ratio > MOST_OF_TORCH:
        wrong.append(f"MISSED: a source takes {ratio:.2f} times import torch until it has joined: {MOST_OF_TORCH:g}")
    seconds = median(run["wall"] for run in figures["demo"]["figures"])
    if seconds > MOST_OF_THE_DEMO_S:
        wrong.append(f"MISSED: the demo takes {seconds:.1f} s: {MOST_OF_THE_DEMO_S:g} s")
    light = figures["light"]["figures"]
    barred = [row["command"] for row in light if BARRED in row["imports"] and row["command"] != SHOWS_A_BUDGET]
    return wrong + [f"MISSED: {command} imports {BARRED}" for command in barred]


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """Every table as Markdown, by name."""
    return {"start": _start_table(figures), "light": _light_table(figures), "load": _load_table(figures)}


def _start_table(figures: Mapping[str, Any]) -> str:
    source, demo = figures["source"]["figures"], figures["demo"]["figures"]
    found = ratios(source)
    ratio = f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})"
    rows = [
        ("`import torch`", *_both(source["import_torch"]), ""),
        ("`source start` until it has joined", *_both(source["source"]), ""),
        ("that over `import torch`", ratio, _over(source), f"{MOST_OF_TORCH:g}"),
        ("`securefda demo`", *_both(demo), f"{MOST_OF_THE_DEMO_S:g} s"),
    ]
    head = ("median (range)", "seconds", "processor seconds", "bar for the seconds")
    return markdown(head, rows)


def _over(source: Mapping[str, Any]) -> str:
    pairs = zip(source["source"], source["import_torch"], strict=True)
    return f"{median(ours['processor'] / torch['processor'] for ours, torch in pairs):.2f}"


def _both(runs: Sequence[Mapping[str, float]]) -> tuple[str, str]:
    return _spread([run["wall"] for run in runs]), _spread([run["processor"] for run in runs])


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def _light_table(figures: Mapping[str, Any]) -> str:
    rows = [
        (f"`{row['command']}`", *_both(row["taken"]), ", ".join(row["imports"]) or "none")
        for row in figures["light"]["figures"]
    ]
    return markdown(("command, median (range)", "seconds", "processor seconds", "imports of " + ", ".join(HEAVY)), rows)


def _load_table(figures: Mapping[str, Any]) -> str:
    titles = {"source": "a source", "demo": "the demo", "light": "other commands"}
    rows = [(title, f"{figures[part]['load']:g}", f"{figures[part]['others']:g}") for part, title in titles.items()]
    return markdown(("part", "load as it began", "cores that other work took"), rows)


if __name__ == "__main__":
    sys.exit(
        of_bounds(
            __doc__ or "",
            FIGURES,
            measured,
            tables,
            misses,
            repeats=(REPEATS, f"of everything; the figures need {FEWEST}"),
        )
    )
