"""A federation on the disk for the tests of the dashboard: real kits, and what the processes of its sites write."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from stand_ins import Ticks

from securefda.audit.log import AuditLog
from securefda.audit.log_records import Decision, Disclosure, DpSpent, Entry
from securefda.audit.signed_notes import LogName
from securefda.cli import main
from securefda.dashboard.page_server import page_of, rendered
from securefda.dashboard.site_reader import SiteReader
from securefda.disk import read_file
from securefda.operations.records import RoundLine, SiteLine, summarise
from securefda.operations.run_folder import RunFolder, append_line
from securefda.operations.state import STATE_FILE, StateWriter, state_file
from securefda.pages.parts import Facts, Lines, Page, Section, Table, Tiles
from securefda.samples import sample
from securefda.site.authority import load_signing_key

RUN, OTHER_RUN = "0123456789abcdef" * 2, "fedcba9876543210" * 2
TARGET, SOURCES = "clinic", ("hospital-a", "hospital-b", "hospital-c")
UPDATE = Disclosure("sum", "update", 3)


def make_kits(folder: Path) -> Path:
    """The kits of the README's federation, for a run of twelve rounds."""
    example = sample("three_hospitals")
    assert main(["federation", "init", str(example), "--out", str(folder), "--set", "strategy.rounds=12"]) == 0
    return folder


class Site:
    """One site: its kit, and its run folder as its process writes it."""

    def __init__(self, kits: Path, name: str) -> None:
        self.kits, self.name, self.kit = kits, name, kits / name
        self.run = self.kit / "local" / "run"
        self.clock = Ticks()

    @contextmanager
    def log(self, run: str = RUN) -> Iterator[Callable[..., None]]:
        """Open the log for writing, as a process has it, until the block ends; gives what appends a record."""
        key_file = self.kit / "startup" / "signing.key"
        key = load_signing_key(str(key_file), read_file(key_file))
        name = LogName("three-hospitals", self.name, run)
        with AuditLog.open(self.kit / "local" / "audit", name, key, self.clock) as log:
            if not log.size:
                facts = {"release": "0.1.0", "task": "digits", "strategy": "fedgp_auto", "roster": "0" * 64}
                log.append(Entry("event", "run-began", facts=facts))

            def append(direction: Any, kind: str, round_number: int = 0, **fields: Any) -> None:
                if direction != "event":
                    fields = {"peer": TARGET, "digest": sha256(kind.encode()).hexdigest(), "bytes": 100, **fields}
                log.append(Entry(direction, kind, round=round_number, attempt=min(round_number, 1), **fields))

            yield append

    @contextmanager
    def process(self) -> Iterator[StateWriter]:
        """A process that says what it does, as this one does, until the block ends."""
        self.run.mkdir(parents=True, exist_ok=True)
        with state_file(
            self.run, site=self.name, role="target" if self.name == TARGET else "source", interval_s=0
        ) as state:
            yield state

    def kill(self) -> None:
        """Leave the state as a process leaves it that is killed: what it said last, and nobody there."""
        with self.process() as state:
            state.set("training", round=2, rounds=12, run=RUN)
            kept = (self.run / STATE_FILE).read_bytes()
        said = json.loads(kept) | {"started": "another time"}
        (self.run / STATE_FILE).write_text(json.dumps(said))

    def target_round(self, number: int, **changes: Any) -> None:
        """A line of the aggregator's metrics."""
        line = RoundLine(
            round=number,
            rule="fedgp_auto",
            accuracy=0.5 + number / 100,
            loss=2.0 - number / 10,
            mean_beta=0.1 * number,
            survivors=list(SOURCES),
            levels=dict.fromkeys(SOURCES, "sum"),
            seen=[{"level": "sum", "members": list(SOURCES), "rows": 717, "loss": 1.0, "accuracy": 0.5}],
            attempts=1,
            seconds={"training and R0 advertise": 0.25, "R4 unmask": 0.05},
            bytes_up=dict.fromkeys(SOURCES, 2048),
            bytes_down=dict.fromkeys(SOURCES, 4096),
            status="finished",
        )
        RunFolder(self.run).append_round(line | changes)  # type: ignore[arg-type, typeddict-item]

    def source_round(self, number: int, **changes: Any) -> None:
        """A line of a source's metrics."""
        line = SiteLine(round=number, attempt=1, level="sum", rule="fedgp_auto", beta=0.25, samples=239, loss=1.5)
        self.run.mkdir(parents=True, exist_ok=True)
        append_line(self.run / "metrics.jsonl", line | changes)

    def summary(self, rounds: int, **changes: Any) -> None:
        """The summary of a run that ended."""
        lines = [RoundLine(round=number, accuracy=0.5, status="finished") for number in range(1, rounds + 1)]
        given: dict[str, Any] = {
            "run_id": RUN,
            "task": "securefda.tasks.digits:Digits",
            "strategy": {"rule": "fedgp_auto"},
            "visibility": dict.fromkeys(SOURCES, "sum"),
            "rounds_planned": 12,
            "status": "finished",
        }
        RunFolder(self.run).write_summary(summarise(lines, **(given | changes)))

    def update_left(self, append: Callable[..., None], number: int, **fields: Any) -> None:
        """A round in which an update left, with its charge where ``epsilon`` is given."""
        append("received", "Header", number)
        if epsilon := fields.get("epsilon"):
            dp = DpSpent("dp-sgd", "rdp", "4.5", "0.125", "1.0", "1e-05", repr(epsilon), 16, number, "0" * 64)
            append("event", "ledger-updated", number, dp=dp)
        allowed = Decision("allowed", "max-visibility")
        append("sent", "MaskedInput", number, disclosure=UPDATE, decision=allowed, bytes=38_645)
        append("received", "Result", number)


class Pages:
    """What the page of one folder says, look after look."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self.reader = SiteReader(folder, clock)

    def look(self) -> Shown:
        """The page now."""
        return Shown(page_of(self.reader.look()))


class Shown:
    """A page, and what is on it by the keys of its sections."""

    def __init__(self, page: Page) -> None:
        self.page, self.state = page, page.state
        self.html = "".join(html for _, _, html in rendered(page).sections)

    def section(self, key: str) -> Section:
        return next(one for one in self.page.sections if one.key == key)

    def has(self, key: str) -> bool:
        return any(one.key == key and one.parts for one in self.page.sections)

    def tiles(self) -> dict[str, str]:
        """Label -> value."""
        return {label: value for part in self._parts("figures", Tiles) for value, label, _ in part.tiles}

    def rows(self, key: str) -> list[tuple[str, ...]]:
        return [tuple(row) for part in self._parts(key, Table) for row in part.rows]

    def lines(self, key: str) -> list[str]:
        return [text for part in self._parts(key, Lines) for _, text in part.lines]

    def facts(self, key: str) -> dict[str, str]:
        return {name: value for part in self._parts(key, Facts) for name, value in part.facts}

    def _parts(self, key: str, kind: type[Any]) -> list[Any]:
        return [part for part in self.section(key).parts if isinstance(part, kind)] if self.has(key) else []


def copied(kits: Path, to: Path) -> Path:
    """The same kits once more, for a test that writes into them."""
    return shutil.copytree(kits, to / "kits")
