"""Two processes in one folder: the second ends with one clear line, and the first loses nothing by it."""

from __future__ import annotations

import re
import signal
import socket
import sqlite3
import threading
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path

from e2e_processes import Kits, Process, assert_one_clear_line, free_port, kits

from securefda.audit.reading import open_log
from securefda.cli import main
from securefda.errors import ExitCode
from securefda.operations.run_folder import read_run
from securefda.operations.state import read_state
from securefda.privacy.ledger_storage import read_chain

SHORT = ("strategy.rounds=1", "strategy.warm-up-rounds=0")
ENDLESS = ("strategy.rounds=5000", "strategy.warm-up-rounds=1")


def _add_ledger(site: str, made: Kits, *arguments: str) -> Process:
    settings = str(made.kit(site) / "local" / "settings.toml")
    return Process(["budget", *arguments, "--config", settings])


def test_a_second_target_or_source_of_a_kit_ends_and_the_run_goes_on(tmp_path: Path) -> None:
    with kits(tmp_path, settings=SHORT) as made:
        target = made.start("target").until("listens on")
        source = made.start("source-1").until("joined")
        second = made.start("target")
        assert_one_clear_line(
            second, ExitCode.CONFIG, "target/local/run/state.sqlite: another process uses it", hint="stop it"
        )
        state = read_state(made.run_folder)
        assert state is not None
        assert (state.process, state.error) == (target.process.pid, "")
        elsewhere = tmp_path / "elsewhere"
        for flags in ((), ("--out", str(elsewhere))):
            assert_one_clear_line(
                made.start("source-1", flags=flags),
                ExitCode.CONFIG,
                f"another process of this site is running, with the run folder {made.kit('source-1')}/local/run",
                hint="let it go on, or stop it first",
            )
        assert not elsewhere.exists()
        others = [made.start(site) for site in ("source-2", "source-3")]
        assert [process.end() for process in (target, source, *others)] == [0] * 4
        assert made.summary()["rounds"] == 1


def test_a_second_run_in_a_folder_names_the_processes_of_the_first(tmp_path: Path) -> None:
    command = ["run", "digits", "--out", str(tmp_path / "run"), *(part for text in ENDLESS for part in ("--set", text))]
    first = Process(command).until("round 1 of")
    for fresh in ([], ["--fresh"]):
        second = Process([*command, *fresh])
        assert_one_clear_line(second, ExitCode.CONFIG, "run: is in use by target (process", hint="end the run first")
    first.until("round", count=4)
    first.interrupt(signal.SIGINT)
    rounds = read_run(tmp_path / "run").rounds
    assert [line["round"] for line in rounds] == list(range(1, len(rounds) + 1))
    assert len(rounds) >= 3


def test_a_ledger_in_use_can_be_shown_and_is_not_made_again(tmp_path: Path) -> None:
    noisy = ("training.source.dp.noise-multiplier=2.0", "privacy.budget.target-epsilon=100000", *ENDLESS)
    with kits(tmp_path, settings=noisy) as made:
        assert all(_add_ledger(site, made, "init").end() == 0 for site in made.names)
        running = made.start_all()
        running["target"].until("round 2 of")
        shown = [_add_ledger("source-1", made, "show") for _ in range(2)]
        second = _add_ledger("source-1", made, "init")
        assert [process.end() for process in shown] == [0, 0]
        assert_one_clear_line(second, ExitCode.BUDGET, "exists already", hint="budget show")
        running["target"].until("round 4 of")
        assert all(process.process.poll() is None for process in running.values())


class Switch:
    """The address of a federation's aggregators: passes each new connection on to the one that is named now."""

    def __init__(self, port: int) -> None:
        self.to = 0
        self._server = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                source, _ = self._server.accept()
                aggregator = socket.create_connection(("127.0.0.1", self.to))
            except OSError:  # closed, or nobody listens there
                return
            for one, other in ((source, aggregator), (aggregator, source)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._server.close()


def test_two_runs_at_once_charge_one_ledger_and_lose_nothing(tmp_path: Path) -> None:
    noise = "training.dp.noise-multiplier=2.0"
    with kits(tmp_path, settings=("privacy.budget.target-epsilon=100000", *ENDLESS)) as made:
        for site in made.names:
            policy = made.kit(site) / "local" / "policy.toml"
            policy.write_text(re.sub("^max-runs = .*", "max-runs = 2", policy.read_text(), flags=re.MULTILINE))
            assert main(["policy", "sign", str(made.kit(site))]) == 0
        assert _add_ledger("source-1", made, "init", "--set", noise).end() == 0
        switch = Switch(made.port)
        runs = []
        for number in (1, 2):
            switch.to = free_port()
            listens = f"transport.listen=127.0.0.1:{switch.to}"
            started = [
                made.start("target", listens, f"aggregator.out={tmp_path}/run-{number}/target").until("listens on")
            ]
            for site in made.names:
                out = f"source.out={tmp_path}/run-{number}/{site}"
                more = (noise,) if site == "source-1" else ()
                started.append(made.start(site, out, *more).until("joined"))
            runs.append(started)
        for target, *_ in (*runs, *runs):
            target.until("round ", count=sum("round " in line for line in target.err) + 3)
        assert all(process.process.poll() is None for started in runs for process in started)
        for target, source, *_ in runs:
            source.interrupt(signal.SIGINT)
            target.interrupt(signal.SIGINT)
        switch.close()

        kit = made.kit("source-1")
        with closing(sqlite3.connect(kit / "local" / "ledgers" / "training-rows.sqlite")) as ledger:
            rows = read_chain(ledger.execute("SELECT number, body, digest FROM rows ORDER BY number"))
        charged = {row.number: row for row in rows if row.kind == "reserved"}
        logs = sorted((kit / "local" / "audit").iterdir())
        assert len(logs) == 2
        written = [
            (log.name, record.entry.dp)
            for log in logs
            for record in open_log(log).records()
            if record.entry.dp is not None
        ]
        places = [dp.ledger_rows for _, dp in written]
        assert len(set(places)) == len(places) >= 12
        for run, dp in written:
            row = charged[dp.ledger_rows]
            assert (row.fields["event"]["run"], row.digest.hex()) == (run, dp.ledger_digest)
        assert len(charged) - len(places) <= 2  # of each run, the signal may have come between the two
        turns = [run for run, _ in sorted(written, key=lambda one: one[1].ledger_rows)]
        assert sum(before != after for before, after in pairwise(turns)) >= 2  # the runs took turns
        assert _add_ledger("source-1", made, "show", "--set", noise).end() == 0
        for log in logs:
            assert Process(["audit", "verify", str(log), "--witnesses", "0"]).end() == 0
