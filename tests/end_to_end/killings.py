"""A federation whose processes are killed at drawn points, one after the other, and what must hold afterwards.

Which process is killed, at which kind of point and at the how manyth of them from then on, follows from the seed. What
the others do at that moment does not: they are real processes.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from e2e_processes import Kits, Process, kits, runs
from fork_server import REPOSITORY
from killed_site import EXCHANGE, KINDS, Countdowns

from securefda.cli import main
from securefda.errors import ExitCode
from securefda.privacy.ledger_storage import read_chain

HERE = Path(__file__).resolve().parent
NO_MORE: Mapping[str, tuple[str, ...]] = MappingProxyType({})
SOURCES, NOISY = 4, ("source-1", "source-2")
NOISE = ("training.dp.noise-multiplier=2.0",)
SETTINGS = (
    "transport.heartbeat-s=0.3",
    "strategy.rounds=5000",
    "strategy.warm-up-rounds=1",
    "privacy.budget.target-epsilon=100000",
)
MOST_POINTS = {"disk": 150, "message": 120, "training": 4, EXCHANGE: 300}
LONGEST_MOMENT_S = 0.6
FOLLOWS = "+1"
"""At the end of a name: the process that the site's own starts, to train with it."""
REACH_S, ROUND_S = 20.0, 90.0
STARTED_AGAIN = {ExitCode.CONNECTION, ExitCode.QUORUM, ExitCode.FAILED}
"""What a process may end with by itself because others are gone: its site starts it again."""


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill: a process, a kind of point, and at the how manyth of them; for a ``moment``, after how many seconds."""

    site: str
    kind: str
    count: float


def drawn_kills(seed: int, sites: tuple[str, ...]) -> Iterator[Kill]:
    """The kills of a seed, without end. Early points are drawn more often than late ones."""
    draw = random.Random(seed)
    while True:
        site, kind = draw.choice(sites), draw.choice((*KINDS, "moment"))
        if kind == "training" and site not in NOISY:
            kind = "moment"
        yield Kill(site, kind, _count(draw, kind))


def drawn_kills_of_ranks(seed: int, site: str) -> Iterator[Kill]:
    """As :func:`drawn_kills`, of the two processes in which one site trains."""
    draw = random.Random(seed)
    kinds = {site: (*KINDS, EXCHANGE, "moment"), site + FOLLOWS: ("training", EXCHANGE, "moment")}
    while True:
        place = draw.choice(list(kinds))
        kind = draw.choice(kinds[place])
        yield Kill(place, kind, _count(draw, kind))


def _count(draw: random.Random, kind: str) -> float:
    if kind == "moment":
        return round(draw.uniform(0.0, LONGEST_MOMENT_S), 3)
    return int(MOST_POINTS[kind] ** draw.random())


@dataclass
class Account:
    """What became of the kills.

    Attributes:
        struck: kills by role and kind.
        missed: kills whose point was not reached in time; the process was killed then and there, as a ``moment``.
        ended: how often a process that was not killed ended by itself, by role and exit code.
        rounds: finished and lost.
        charged: rounds that the ledgers of noisy sources hold.
        trained: rounds for which noise was drawn.
        released: vectors that left, each of another round or another source.
        logs: how many were verified.
    """

    struck: Counter[str] = field(default_factory=Counter)
    missed: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    rounds: Counter[str] = field(default_factory=Counter)
    charged: int = 0
    trained: int = 0
    released: int = 0
    logs: int = 0

    def add(self, other: Account) -> None:
        """Count another federation in."""
        self.struck += other.struck
        self.ended += other.ended
        self.rounds += other.rounds
        for name in ("missed", "charged", "trained", "released", "logs"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Killings:
    """One federation under kills."""

    def __init__(self, federation: Kits, own: Mapping[str, tuple[str, ...]] = NO_MORE, team: str = "") -> None:
        """Make ledgers and policies. ``own`` are more settings of some sites, ``team`` is one in two processes."""
        self.federation, self.account, self._own, self._team = federation, Account(), own, team
        self.sites = (federation.target, *federation.names)
        places = (*self.sites, *([team + FOLLOWS] if team else []))
        self._countdowns = {place: Countdowns(federation.root / f"kill-{place}") for place in places}
        self.live: dict[str, Process] = {}
        self._prepare()

    def _prepare(self) -> None:
        """Ledgers for noisy sources, and policies that do not stop at the third round without a result."""
        for site in self.federation.names:
            policy = self.federation.kit(site) / "local" / "policy.toml"
            text, count = re.subn("^max-unfinished = .*", "max-unfinished = 10000", policy.read_text(), flags=re.M)
            assert count == 1
            policy.write_text(text)
            assert main(["policy", "sign", str(policy.parents[1])]) == 0
        for site in NOISY:
            settings = self.federation.kit(site) / "local" / "settings.toml"
            assert main(["budget", "init", "--config", str(settings), *_sets(NOISE)]) == 0

    def start(self, site: str) -> None:
        """Start a site's process, and with it the one that follows it in a team, killable and under a witness."""
        settings = (*(NOISE if site in NOISY else ()), *self._own.get(site, ()))
        own = {
            "SECUREFDA_KILL": str(self.federation.root / f"kill-{site}"),
            "SECUREFDA_WITNESS": str(self.witness_of(site)),
            "SECUREFDA_KIT": str(self.federation.kit(site)),
            "PYTHONPATH": os.pathsep.join(map(str, (REPOSITORY, HERE, HERE.parent / "support"))),
        }
        if site == self._team:
            settings = (*settings, "training.processes=2")
        self.live[site] = self.federation.start(site, *settings, module="killed_site", env=own)

    def witness_of(self, place: str) -> Path:
        """What a site's processes said that they were about to do."""
        return self.federation.root / f"witness-{place}"

    def run(self, kills: Iterator[Kill], count: int) -> None:
        """Start all sites, kill ``count`` times, see that the run goes on, and end it."""
        self.begin()
        for _ in range(count):
            self.kill(next(kills))
        self.end()

    def begin(self) -> None:
        """Start all sites and wait for a round."""
        for site in self.sites:
            self.start(site)
        self._until_a_round_of_all()

    def end(self) -> None:
        """See that the run goes on, end all sites, and look at what they leave. Raises AssertionError."""
        self._until_a_round_of_all()
        for process in self.live.values():
            process.interrupt(signal.SIGTERM)
        self._check()

    def kill(self, kill: Kill) -> None:
        """Kill one process at its point, or where it does not get there, after a while; start its site again."""
        place, kind, countdowns = kill.site, kill.kind, self._countdowns[kill.site]
        site = place.removesuffix(FOLLOWS)
        self.keep_up()
        process, until = self.live[site], time.monotonic() + ROUND_S
        while place != site and not self._follower() and process.process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        until = time.monotonic() + REACH_S
        if kill.kind == "moment":
            time.sleep(kill.count)
        else:
            countdowns.set(kill.kind, int(kill.count))
            while process.process.poll() is None and time.monotonic() < until:
                self.keep_up(but=site)
                time.sleep(0.01)
            missed = process.process.poll() is None
            countdowns.set(kill.kind, 0)
            if missed:
                self.account.missed += 1
                kind = "moment"
        if place != site and not runs(self._follower()) and process.process.poll() is None:
            place = site  # on a busy machine the process that follows can take longer to start than a point is awaited
        if place == site:
            process.process.kill()
        elif runs(follower := self._follower()):
            os.kill(follower, signal.SIGKILL)
        code = process.end()
        if place != site or code == -signal.SIGKILL:
            self.account.struck[f"{self._role(place)} {kind}"] += 1
        if code != -signal.SIGKILL:
            self._ended(site, code)
        else:
            self._start_again(site)

    def _follower(self) -> int:
        """The number of the process that follows the team's present one; 0 before it is there."""
        file, leader = self.federation.root / f"kill-{self._team + FOLLOWS}.pid", str(self.live[self._team].process.pid)
        said = file.read_text().split() if file.exists() else ["0", ""]
        return int(said[0]) if said[1] == leader else 0

    def keep_up(self, but: str = "") -> None:
        """Start again what has ended by itself, as its site would; ``but`` names a site that waits."""
        for site, process in self.live.items():
            if site != but and (code := process.process.poll()) is not None:
                self._ended(site, code)

    def _ended(self, site: str, code: int) -> None:
        process = self.live[site]
        process.end()
        assert code in STARTED_AGAIN, f"{site} ended with {code}:\n{process.text}"
        assert any(line.startswith("error: ") for line in process.err), process.text
        assert "Traceback" not in process.text, process.text
        self.account.ended[f"{self._role(site)} {code}"] += 1
        self._start_again(site)

    def _start_again(self, site: str) -> None:
        """Start a site whose process has ended, once the one that follows it has ended too."""
        if site == self._team:
            follower, until = self._follower(), time.monotonic() + REACH_S
            while runs(follower):
                assert time.monotonic() < until, "the process that follows outlives the one that leads"
                time.sleep(0.01)
        self.start(site)

    def _role(self, place: str) -> str:
        if place == self._team:
            return "leader"
        if place.endswith(FOLLOWS):
            return "follower"
        return "aggregator" if place == self.federation.target else "source"

    def _until_a_round_of_all(self) -> None:
        """Wait for a finished round that every source was in, begun from now on."""
        until, before = time.monotonic() + ROUND_S, len(self._rounds())
        while time.monotonic() < until:
            self.keep_up()
            if any(line["survivors"] == self.federation.names for line in self._rounds()[before + 1 :]):
                return
            time.sleep(0.05)
        raise AssertionError("no round of all sources:\n" + "\n".join(p.text for p in self.live.values()))

    def _rounds(self) -> list[dict[str, Any]]:
        file = self.federation.run_folder / "metrics.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def _check(self) -> None:
        account, rounds = self.account, self._rounds()
        assert [line["round"] for line in rounds] == list(range(1, len(rounds) + 1))
        account.rounds.update(line["status"] for line in rounds)
        for site in self.sites:
            logs = list((self.federation.kit(site) / "local" / "audit").iterdir())
            assert len(logs) == 1, f"{site} has {len(logs)} logs of one run"
            assert main(["audit", "verify", str(logs[0]), "--witnesses", "0"]) == 0
            account.logs += 1
        for site in self.federation.names:
            account.released += releases_once(witnessed(self.witness_of(site)))
        if self._team:
            said = witnessed(self.witness_of(self._team + FOLLOWS))
            assert not said, f"a process that follows spoke to the aggregator, or drew noise: {said}"
        for site in NOISY:
            trained, charged = self._ledger(site)
            assert_charged(trained, charged)
            account.trained += len(trained)
            account.charged += len(charged)

    def _ledger(self, site: str) -> tuple[dict[tuple[str, int, int], int], dict[tuple[str, int, int], int]]:
        """Steps by run, round and attempt: of which noise was drawn, and which are charged."""
        lines = [line for line in witnessed(self.witness_of(site)) if line["what"] == "trains"]
        trained = {(line["run"], line["round"], line["attempt"]): line["steps"] for line in lines}
        assert len(trained) == len(lines), "noise was drawn twice for one attempt"
        ledger = self.federation.kit(site) / "local" / "ledgers" / "training-rows.sqlite"
        with closing(sqlite3.connect(ledger)) as database:
            rows = read_chain(database.execute("SELECT number, body, digest FROM rows ORDER BY number"))
        events = [row.fields["event"] for row in rows if row.kind == "reserved"]
        return trained, {(event["run"], event["round"], event["attempt"]): event["steps"] for event in events}


def witnessed(file: Path) -> list[dict[str, Any]]:
    """The lines of a witness; one that a kill cut off is left out."""
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]]


def releases_once(lines: list[dict[str, Any]]) -> int:
    """How many vectors left a source. Raises AssertionError where two were of one round."""
    rounds = {line["session"]: line["round"] for line in lines if line["what"] == "header"}
    released: dict[int, set[tuple[str, str]]] = defaultdict(set)
    for line in lines:
        if line["what"] == "released":
            released[rounds[line["session"]]].add((line["session"], line["digest"]))
    twice = {number: sorted(sent) for number, sent in released.items() if len(sent) > 1}
    assert not twice, f"more than one release of a round: {twice}"
    return len(released)


def assert_charged(trained: dict[tuple[str, int, int], int], charged: dict[tuple[str, int, int], int]) -> None:
    """The ledger holds every attempt for which noise was drawn, with all its steps."""
    low = {of: steps for of, steps in trained.items() if charged.get(of, 0) < steps}
    assert not low, f"trained and not charged: {low}"


def _sets(settings: tuple[str, ...]) -> list[str]:
    return [part for text in settings for part in ("--set", text)]


def kill_a_federation(root: Path, seed: int, count: int, team: str = "") -> Account:
    """A federation of its own, killed ``count`` times; with ``team``, the two processes of this source alone are.

    Raises:
        AssertionError: something does not hold that must; it says what.
    """
    with kits(root, SOURCES, settings=SETTINGS) as federation:
        killings = Killings(federation, team=team)
        killings.run(drawn_kills_of_ranks(seed, team) if team else drawn_kills(seed, killings.sites), count)
        return killings.account
