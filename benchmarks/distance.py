"""What a round takes over long lines: a masked one, a plain one, and a masked one whose sources train for a while.

    sudo python benchmarks/distance.py --measure    run all, write distance.json
    python benchmarks/distance.py [--check]    from distance.json: print the table

A target and five sources are processes in network namespaces of their own, with the commands that people type. Each
source has a line to the target: two TUN devices, between which this script holds back every packet for half the round
trip and lets through so many bits a second each way. What crosses it is TCP of the system, slow start included. Needs
Linux, root and the command ``ip``.

A round lasts from one beginning to the next; figures are medians over the rounds but the first. ``--check`` ends with 1
where a bar of `BARS` does not hold.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from studies import as_text, markdown, this_machine, told

HERE = Path(__file__).resolve().parent
FIGURES = HERE / "distance.json"
SOURCES, PARAMS, ROUNDS = 5, 100_000, 7
LINES = ((0, 0), (20, 100), (100, 100), (200, 100), (100, 10))
"""Milliseconds of a round trip, and Mbit/s each way; 0 is as fast as the machine."""
KINDS = {
    "plain": ("privacy.visibility=individual", "strategy.rule=source_only"),
    "sum": ("privacy.visibility=sum", "strategy.rule=fedgp_auto"),
}
TRAINING_S = (0.0, 0.5)
"""How long the sources train."""
BARS = {(100, 100): 2.0}
"""Line -> how many times the plain round a masked one may take, at either time of training."""
HOST, PORT, MTU = "10.77.255.1", 40_000, 1500
_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Line:
    """One way of a line: packets of one device come out of the other, later and one after the other."""

    def __init__(self, source: int, sink: int, delay_s: float, bits_per_s: float) -> None:
        self._source, self._sink, self._delay_s, self._bits_per_s = source, sink, delay_s, bits_per_s
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._news = threading.Condition()
        for work in (self._take, self._give):
            threading.Thread(target=work, daemon=True).start()

    def _take(self) -> None:
        free_at = 0.0
        with contextlib.suppress(OSError):  # the device is gone
            while packet := os.read(self._source, 65_536):
                now = time.monotonic()
                free_at = max(now, free_at) + (8 * len(packet) / self._bits_per_s if self._bits_per_s else 0.0)
                with self._news:
                    self._under_way.append((free_at + self._delay_s, packet))
                    self._news.notify()

    def _give(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._under_way)
                due, packet = self._under_way.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            with contextlib.suppress(OSError):
                os.write(self._sink, packet)


def _tun(name: str, namespace: str, address: str) -> int:
    """Make a device in a namespace; returns the descriptor at whose other end it is."""
    descriptor = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", name.encode(), _TUN_WITHOUT_HEADER))
    _ip("link", "set", name, "netns", namespace)
    for words in (("addr", "add", address, "dev", name), ("link", "set", name, "mtu", str(MTU), "up")):
        _ip("-n", namespace, *words)
    return descriptor


@contextlib.contextmanager
def network(round_trip_ms: int, mbit_per_s: int) -> Iterator[None]:
    """Namespaces ``sfda-0``, of the target, to ``sfda-5``, with their lines."""
    namespaces, descriptors = [f"sfda-{number}" for number in range(SOURCES + 1)], []
    try:
        for namespace in namespaces:
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", "sfda-0", "addr", "add", f"{HOST}/32", "dev", "lo")
        for number in range(1, SOURCES + 1):
            ends = [
                _tun(f"sfda-t{number}", "sfda-0", f"10.77.{number}.1/30"),
                _tun(f"sfda-s{number}", f"sfda-{number}", f"10.77.{number}.2/30"),
            ]
            descriptors += ends
            _ip("-n", f"sfda-{number}", "route", "add", "default", "via", f"10.77.{number}.1")
            for source, sink in (ends, reversed(ends)):
                Line(source, sink, round_trip_ms / 2000, 1e6 * mbit_per_s)
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
        for namespace in namespaces:
            subprocess.run(["ip", "netns", "del", namespace], check=False)


def round_seconds(kind: str, training_s: float, folder: Path) -> list[float]:
    """Run a federation over the present network; seconds of each round but the first.

    Raises:
        RuntimeError: a site ended with an error.
    """
    sites = ["target", *(f"source-{number}" for number in range(1, SOURCES + 1))]
    factory, options = "round_cost_task:Wide", {"parameters": PARAMS}
    (folder / "federation.toml").write_text(
        f'[federation]\nname = "distance"\nsources = {json.dumps(sites[1:])}\n'
        f'[task]\nfactory = "{factory}"\n[task.options]\nparameters = {options["parameters"]}\n'
    )
    settings = (
        *(*KINDS[kind], f"strategy.rounds={ROUNDS}", "strategy.warm-up-rounds=0"),
        *("training.source.batch-size=8", "training.target.batch-size=4", "logging.level=warning"),
        *("transport.join-deadline-s=600", "transport.phase-deadline-s=120"),
    )
    sets = [word for setting in settings for word in ("--set", setting)]
    base = [sys.executable, "-m", "securefda"]
    paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": paths}
    init = ["federation", "init", "federation.toml", "--out", "kits", "--address", f"{HOST}:{PORT}", *sets]
    quietly: dict[str, Any] = {"cwd": folder, "stdout": subprocess.DEVNULL}
    subprocess.run([*base, *init], check=True, env=environment, stderr=subprocess.DEVNULL, **quietly)
    processes = []
    for number, site in enumerate(sites):
        role = "source" if number else "aggregator"
        start = [role, "start", "--config", f"kits/{site}/local/settings.toml"]
        own = environment | ({"SECUREFDA_PAUSE_S": str(training_s)} if number else {})
        start = ["ip", "netns", "exec", f"sfda-{number}", *base, *start]
        with (folder / f"{site}.txt").open("w") as told:
            processes.append(subprocess.Popen(start, env=own, stderr=told, **quietly))
    for site, process in zip(sites, processes, strict=True):
        if process.wait(1200):
            raise RuntimeError(f"{kind}: {site} ended with an error: {(folder / f'{site}.txt').read_text()[-500:]}")
    lines = (folder / "kits" / "target" / "local" / "run" / "metrics.jsonl").read_text().splitlines()
    return [sum(json.loads(line)["seconds"].values()) for line in lines[1:]]


def measured() -> Iterator[dict[str, Any]]:
    """A row for each line and time of training."""
    for round_trip_ms, mbit_per_s in LINES:
        for training_s in TRAINING_S:
            row: dict[str, Any] = {"round_trip_ms": round_trip_ms, "mbit_per_s": mbit_per_s, "training_s": training_s}
            for kind in KINDS:
                with network(round_trip_ms, mbit_per_s), tempfile.TemporaryDirectory() as name:
                    row[f"{kind}_s"] = round(median(round_seconds(kind, training_s, Path(name))), 3)
            row["times_plain"] = round(row["sum_s"] / row["plain_s"], 2)
            print(row, flush=True)
            yield row


def tables(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Seconds of a round by line, under their name."""
    head = ("round trip", "Mbit/s", "sources train", "plain, s", "masked, s", "times plain")
    lines = (
        (
            f"{row['round_trip_ms']} ms" if row["round_trip_ms"] else "none",
            str(row["mbit_per_s"] or "no limit"),
            f"{row['training_s']:g} s",
            *(f"{row[name]:.2f}" for name in ("plain_s", "sum_s", "times_plain")),
        )
        for row in rows
    )
    return {"rounds": markdown(head, lines)}


def misses(rows: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each bar that does not hold."""
    return [
        f"MISSED: {row['times_plain']} times plain over {row['round_trip_ms']} ms, {bar} asked for"
        for row in rows
        if (bar := BARS.get((row["round_trip_ms"], row["mbit_per_s"]))) and row["times_plain"] > bar
    ]


def main() -> int:
    """Measure if asked to, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--check", action="store_true")
    asked = parser.parse_args()
    if asked.measure:
        FIGURES.write_text(as_text(list(measured()), this_machine()))
    rows = json.loads(FIGURES.read_text())["rows"]
    return told(tables(rows), misses(rows), check=asked.check)


if __name__ == "__main__":
    sys.exit(main())
