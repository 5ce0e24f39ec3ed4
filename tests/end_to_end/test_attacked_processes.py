"""A malicious aggregator over mutual TLS: every source is a process, names what it refuses, and ends as documented.

The same attackers play against real classes in threat_model/tests, where they succeed with the mitigation switched off.
Where the mitigation is a key of the policy, they succeed here, against a process whose policy leaves it off.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from e2e_processes import Kits, Process, assert_one_clear_line, kits

from securefda.audit.kept import read_kept
from securefda.audit.reconcile.evidence import Evidence, Exhibit
from securefda.audit.statements import Statement, StatementReader
from securefda.bootstrap import rows_of_site
from securefda.cli import main
from securefda.errors import ExitCode
from securefda.protocol.messages import Advertise, MaskedInput, Receipt, Refusal, ShareBundle, Update
from securefda.protocol.roster import Roster
from securefda.site.config import load_source
from securefda.site.kit import load_kit
from threat_model.adversaries.drains_budgets import AbortsRounds
from threat_model.adversaries.framing import Accuser, SessionAgain
from threat_model.adversaries.lone_coordinates import ReadsLoneRows
from threat_model.adversaries.low_rate import LowRate
from threat_model.adversaries.made_model import AsksAndAborts, AsksByModel
from threat_model.adversaries.run_after_run import RenamesRun, RunAfterRun
from threat_model.over_tls import OverTls
from threat_model.scores import RECOVERED_COSINE, cosine
from threat_model.sites import AggregatorSeat

PARAMETERS, BIAS = 9610, 1
"""Of the model of the digits, and its layer of 128 parameters."""

USUAL = ("strategy.warm-up-rounds=0", "model.sources-keep=none", "training.target.learning-rate=0.1")
"""As the attackers ask for it, so that a policy refuses only what a test is about."""
FEDGP = (*USUAL, "strategy.rule=fedgp", "strategy.rounds=1")
PLAIN = (*USUAL, "strategy.rule=source_only", "strategy.rounds=40")
ONE_ROUND = (*PLAIN[:-1], "strategy.rounds=1")
NOISY = (*PLAIN, "training.source.dp.noise-multiplier=1.1")


def attacked(federation: Kits, makes: Callable[[AggregatorSeat], Any], state: str = "target") -> OverTls[Any]:
    return OverTls(federation.kit(federation.target), federation.root / f"{state}.sqlite", makes)


def folder_of(federation: Kits, site: str, name: str) -> Path:
    return federation.root / "folders" / site / name


def started(federation: Kits, folder: str = "first", flags: Iterable[str] = ()) -> dict[str, Process]:
    """All sources, each with a run folder of this name."""
    return {
        site: federation.start(site, f"source.out={folder_of(federation, site, folder)}", flags=flags)
        for site in federation.names
    }


@dataclass(frozen=True)
class Remembered:
    """What a source has on its disk: in the book of its kit, and in a run folder.

    Attributes:
        runs, sessions: how many it began.
        unfinished: rounds that came to no result.
        fuses: rounds of which an update may have left.
        results: rounds whose result it took.
    """

    runs: int = 0
    sessions: int = 0
    unfinished: tuple[int, ...] = ()
    fuses: tuple[int, ...] = ()
    results: tuple[int, ...] = ()


def remembered(federation: Kits, site: str, folder: str = "first") -> Remembered:
    book, state = federation.kit(site) / "local" / "runs.sqlite", folder_of(federation, site, folder) / "state.sqlite"
    with closing(sqlite3.connect(book)) as of_kit, closing(sqlite3.connect(state)) as of_folder:
        rounds = (
            tuple(number for (number,) in base.execute(f"SELECT round FROM {table} ORDER BY round"))
            for base, table in ((of_kit, "unfinished"), (of_folder, "fuses"), (of_folder, "results"))
        )
        counts = (of_kit.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("runs", "sessions"))
        return Remembered(*counts, *rounds)


def refusals(attacker: OverTls[Any], index: int) -> list[str]:
    return [message.body.key for message in attacker.said(index, Refusal)]


def reconciled(federation: Kits, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    """Exit code of ``audit reconcile`` over all kits, and what it found."""
    capsys.readouterr()
    code = main(["audit", "reconcile", str(federation.root / "kits"), "--all", "--format", "json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)["data"]
    return code, found


# T38: a question in each of many runs.


def assert_one_question_was_answered(attacker: OverTls[Any], federation: Kits) -> None:
    assert attacker.adversary.questions == 2 * 128
    for index, site in enumerate(federation.names, start=1):
        assert [len(attacker.said(index, kind)) for kind in (Advertise, ShareBundle, MaskedInput)] == [1, 1, 0]
        assert remembered(federation, site) == Remembered(runs=1, sessions=1, unfinished=(1,))


@pytest.mark.threat("T38")
def test_second_run_on_a_new_connection_is_answered_by_no_process(tmp_path: Path) -> None:
    with kits(tmp_path, settings=FEDGP) as federation:
        with attacked(federation, partial(RunAfterRun, layer=BIAS)) as attacker:
            for source in started(federation).values():
                assert_one_clear_line(source, ExitCode.CONFIG, "belongs to run", "is in run", hint="--out FOLDER")
            for source in started(federation, "second").values():
                assert_one_clear_line(source, ExitCode.POLICY, "release.max-runs", hint="--accept-run")
        assert len(attacker.adversary.sessions) == 1
        assert_one_question_was_answered(attacker, federation)


@pytest.mark.threat("T38")
def test_other_runs_on_the_same_connection_are_refused_three_times_by_every_process(tmp_path: Path) -> None:
    with kits(tmp_path, settings=FEDGP) as federation:
        with attacked(federation, partial(RenamesRun, layer=BIAS)) as attacker:
            for source in started(federation).values():
                words = ("aggregator fails check HEADER_RUN", "this folder belongs to another run")
                assert_one_clear_line(source, ExitCode.CONNECTION, *words, hint="target")
        assert [refusals(attacker, index) for index in (1, 2, 3)] == [["HEADER_RUN"] * 3] * 3
        assert_one_question_was_answered(attacker, federation)


# T40: the model as a question.

MADE = np.zeros(PARAMETERS, np.float32)
MADE[-1] = 30.0
"""It says the last class to every row: the update of its last bias counts the rows of all others."""


@pytest.mark.threat("T40")
def test_made_model_after_a_finished_round_is_trained_by_no_process(tmp_path: Path) -> None:
    """Nobody is accused, and the sources stay: the run ends as the target says."""
    with kits(tmp_path, settings=PLAIN) as federation:
        with attacked(federation, partial(AsksByModel, made=MADE, at_round=2)) as attacker:
            sources = started(federation)
            attacker.until_done()
            attacker.dismiss()
            assert [source.end() for source in sources.values()] == [ExitCode.OK] * 3
        for index, (site, source) in enumerate(sources.items(), start=1):
            (alarm,) = [line for line in source.err if "check" in line]
            assert alarm.startswith(f"{site}: check HEADER_STEP fails, which accuses no site: in ")
            assert "at most 10 is allowed (limits.model-step = 10 in policy.toml" in alarm
            assert refusals(attacker, index) == ["HEADER_STEP"]
            assert [len(attacker.said(index, kind)) for kind in (Advertise, MaskedInput, Receipt)] == [1, 1, 1]
            assert remembered(federation, site) == Remembered(runs=1, sessions=1, fuses=(1,), results=(1,))
        assert attacker.adversary.attack() is None


@pytest.mark.threat("T40")
def test_made_models_after_an_aborted_round_are_trained_by_no_process(tmp_path: Path) -> None:
    made = [MADE * np.float32(scale) for scale in (1, 2, 3)]
    with kits(tmp_path, settings=PLAIN) as federation:
        with attacked(federation, partial(AsksAndAborts, made=made)) as attacker:
            for source in started(federation).values():
                words = ("aggregator fails check HEADER_CHAIN", "not the model of the result", "(header of round 4)")
                assert_one_clear_line(source, ExitCode.CONNECTION, *words, hint="target")
        for index, site in enumerate(federation.names, start=1):
            assert refusals(attacker, index) == ["HEADER_CHAIN"] * 3
            assert [len(attacker.said(index, kind)) for kind in (Advertise, ShareBundle)] == [1, 0]
            assert remembered(federation, site) == Remembered(runs=1, sessions=1, unfinished=(1,))


# T19: rounds that are charged and come to nothing.


def budget(federation: Kits, site: str, command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """What ``securefda budget`` says of a source."""
    settings = federation.kit(site) / "local" / "settings.toml"
    capsys.readouterr()
    assert main(["budget", command, "--config", str(settings), "--format", "json"]) == 0
    data: dict[str, Any] = json.loads(capsys.readouterr().out)["data"]
    return data


@pytest.mark.threat("T19")
@pytest.mark.parametrize(("after", "fuses"), [(Advertise, ()), (MaskedInput, (1, 2, 3))], ids=["after R0", "after R2"])
def test_three_aborted_rounds_are_charged_and_every_process_leaves_before_the_fourth(
    after: type, fuses: tuple[int, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with kits(tmp_path, settings=NOISY) as federation:
        for site in federation.names:
            budget(federation, site, "init", capsys)
        with attacked(federation, partial(AbortsRounds, after=after)) as attacker:
            for source in started(federation).values():
                words = ("release.max-unfinished", "after 3 that came to no result")
                assert_one_clear_line(source, ExitCode.POLICY, *words, hint="--accept-run")
        for index, site in enumerate(federation.names, start=1):
            assert len(attacker.said(index, after)) == 3
            assert refusals(attacker, index) == ["release.max-unfinished"]
            unfinished = Remembered(runs=1, sessions=3, unfinished=(1, 2, 3), fuses=fuses)
            assert remembered(federation, site) == unfinished
            ledger = budget(federation, site, "show", capsys)
            assert ledger["rounds"]["charged"] == 3
            assert 0 < ledger["spent"] < ledger["limit"] / 2
            assert ledger["next_round"]["rounds_left"] == 20  # of 23 that the budget pays for
        code, found = reconciled(federation, capsys)
        assert code == ExitCode.AUDIT
        conduct = [(one["kind"], one["source"], one["target"], len(one["rounds"])) for one in found["conduct"]]
        assert conduct == [("unfinished-rounds", site, "target", 3) for site in federation.names]


# T15: a learning rate that rounds all but the largest update away.


@pytest.mark.threat("T15")
def test_learning_rate_below_that_of_the_policy_is_refused_by_every_process(tmp_path: Path) -> None:
    with kits(tmp_path, settings=FEDGP) as federation:
        with attacked(federation, partial(LowRate, rate=9e-6)) as attacker:
            sources = started(federation)
            attacker.until_done()
            attacker.dismiss()
            for source in sources.values():
                words = ("policy refuses limits.learning-rate-min", "asked 9e-06, allowed at least 0.01")
                assert_one_clear_line(source, ExitCode.POLICY, *words)
        for index, site in enumerate(federation.names, start=1):
            assert refusals(attacker, index) == ["limits.learning-rate-min"]
            assert attacker.said(index, Advertise) == []
            assert remembered(federation, site) == Remembered()


# T39: one session id in two runs, whose folders the operators made one after the other.

SESSION = bytes(range(32))


def play_session(federation: Kits, folder: str, flags: Iterable[str] = ()) -> tuple[OverTls[Any], dict[str, Process]]:
    """A run of one session under this id, to its end."""
    with attacked(federation, partial(SessionAgain, session_id=SESSION), f"target-{folder}") as attacker:
        sources = started(federation, folder, flags)
        attacker.until_done()
        attacker.dismiss()
        for source in sources.values():
            source.end()
    return attacker, sources


@pytest.mark.threat("T39")
def test_session_id_of_an_earlier_run_is_refused_by_every_process(tmp_path: Path) -> None:
    with kits(tmp_path, settings=ONE_ROUND) as federation:
        _, sources = play_session(federation, "first")
        assert [source.end() for source in sources.values()] == [ExitCode.OK] * 3
        attacker, sources = play_session(federation, "second", ["--accept-run"])
        for index, (site, source) in enumerate(sources.items(), start=1):
            words = ("aggregator fails check HEADER_REPLAY", "this session id was used before")
            assert_one_clear_line(source, ExitCode.CONNECTION, *words, hint="target")
            assert refusals(attacker, index) == ["HEADER_REPLAY"]
            assert attacker.said(index, Advertise) == []
            assert remembered(federation, site, "second") == Remembered(runs=1, sessions=1)


def signed_messages(federation: Kits, roster: Roster) -> list[Statement]:
    """All that was kept as evidence, in every log of every site."""
    logs = sorted((federation.root / "kits").glob("*/local/audit/*"))
    return [StatementReader(roster).read(data) for log in logs for data in read_kept(log)]


@pytest.mark.threat("T39")
def test_two_runs_under_one_session_id_prove_nothing_against_a_process_that_answered_in_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sites have lost their books of runs, so that what is left is what evidence takes for a proof."""
    with kits(tmp_path, settings=ONE_ROUND) as federation:
        for folder in ("first", "second"):
            _, sources = play_session(federation, folder)
            assert [source.end() for source in sources.values()] == [ExitCode.OK] * 3
            for site in federation.names:
                (federation.kit(site) / "local" / "runs.sqlite").unlink()
        roster = load_kit(federation.kit(federation.target), datetime.now(UTC)).roster
        said = signed_messages(federation, roster)
        code, found = reconciled(federation, capsys)

    exhibits = []
    for site in federation.names:
        inputs = {one.data: one for one in said if (one.type, one.sender) == ("MaskedInput", site)}
        assert [one.session for one in inputs.values()] == [SESSION.hex()] * 2
        exhibits.append(Exhibit("double-release", site, "two updates", 1, 1, SESSION.hex(), tuple(inputs), ()))
    runs = {row["run"] for row in found["runs"]}
    evidence, trusted = tmp_path / "evidence.json", tmp_path / "roster.json"
    trusted.write_bytes(roster.canonical_bytes())
    evidence.write_bytes(Evidence(roster.federation_id, min(runs), trusted.read_bytes(), tuple(exhibits)).to_bytes())

    judged = main(["audit", "verify-evidence", str(evidence), "--roster", str(trusted), "--format", "json"])
    claims = json.loads(capsys.readouterr().out)["data"]["claims"]
    assert judged == ExitCode.AUDIT
    assert [(claim["accused"], claim["proved"]) for claim in claims] == [(site, False) for site in federation.names]
    assert {claim["what"] for claim in claims} == {"the two messages are of different views, which others chose"}
    accuser = Accuser([one.data for one in said], [roster], [bytes.fromhex(run) for run in sorted(runs)])
    assert accuser.proved(federation.names, Random(0), 300) == set()
    assert (code, found["findings_total"], found["conduct"], len(runs)) == (ExitCode.OK, 0, [], 2)


# T17: a row that alone turns a unit on, read from one source's update.

ONE_STEP = (
    *ONE_ROUND,
    "privacy.visibility=individual",
    "training.source.optimizer=sgd",
    "training.source.learning-rate=0.5",
    "training.source.batch-size=8",
    "training.source.epochs=1",
)


def ask_for_rows(federation: Kits, site: str, least: int) -> None:
    """The owner of a site lets nothing leave behind which fewer rows are."""
    policy = federation.kit(site) / "local" / "policy.toml"
    text, counts = re.subn(r"(?m)^min-rows = 1$", f"min-rows = {least}", policy.read_text())
    assert counts == 1
    policy.write_text(text)
    assert main(["policy", "sign", str(federation.kit(site))]) == 0


def rows_read(tmp_path: Path, least: int) -> int:
    """How many rows of the one source, which keeps back what fewer than ``least`` rows moved, the attacker rebuilds."""
    with kits(tmp_path, 1, settings=ONE_STEP, task="e2e_tasks:FewRows") as federation:
        (site,) = federation.names
        ask_for_rows(federation, site, least)
        with attacked(federation, ReadsLoneRows) as attacker:
            source = federation.start(site)
            attacker.until_done()
            attacker.dismiss()
            assert source.end() == ExitCode.OK
        assert [len(attacker.said(1, kind)) for kind in (Update, Receipt)] == [1, 1]
        config, roster = load_source(federation.kit(site) / "local" / "settings.toml"), attacker.adversary.roster
        images, rows = attacker.adversary.images(), rows_of_site(config, roster, site).features.numpy()
        return sum(max(cosine(image, row) for image in images) > RECOVERED_COSINE for row in rows)


@pytest.mark.threat("T17")
def test_no_row_is_read_from_the_update_of_a_process_whose_policy_asks_for_three(tmp_path: Path) -> None:
    assert rows_read(tmp_path, least=3) == 0


@pytest.mark.threat("T17")
@pytest.mark.control
def test_every_row_is_read_from_the_update_of_a_process_whose_policy_asks_for_one(tmp_path: Path) -> None:
    """No switch: the policy's own ``release.min-rows``."""
    assert rows_read(tmp_path, least=1) == 8
