"""``securefda audit report``: the page says what the logs say, and proves what they prove."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from audit_report_logs import RUN, TARGET, Logs
from audit_report_pages import Page, page_of

from securefda.audit.kept import FILE
from securefda.audit.log_records import Decision
from securefda.cli import main
from securefda.operations.records import summarise
from securefda.operations.run_folder import RunFolder
from securefda.protocol.messages import Visibility

sys.path.append(str(Path(__file__).parents[1] / "audit"))

from run_builder import ROSTER, HangsUp, Run, folder_of
from run_builder import RUN as ONE_RUN

Capture = pytest.CaptureFixture[str]


pytestmark = pytest.mark.usefixtures("no_disk_sync")


@pytest.fixture
def honest(tmp_path: Path) -> Page:
    """Of logs with real messages, which agree, under a roster that is trusted."""
    (tmp_path / "trusted.json").write_bytes(ROSTER.canonical_bytes())
    return page_of(Run(tmp_path / "run").write(), 0, "--roster", str(tmp_path / "trusted.json"))


def test_logs_that_agree_are_verified_and_said_to(honest: Page) -> None:
    assert "The logs of all 4 sites verify, and agree with each other and with the signed messages." in honest.text
    assert "✓ In order" in honest.text
    assert "Attention" not in honest.source
    assert {"td care", "td failed"}.isdisjoint(f"{tag} {attrs.get('class')}" for tag, attrs in honest.tags)
    assert [row[1].split()[0] for row in honest.tables["logs"][1:]] == ["verified"] * 4
    assert "No alarm, no abort and no refusal is recorded." in honest.text


def test_the_matrix_has_what_was_disclosed_at_each_level(honest: Page) -> None:
    heading, *rows = honest.tables["matrix"]
    assert heading == ["from \\ to", "hospital-t", "hospital-a", "hospital-b", "hospital-c"]
    assert rows[0][2] == "3 × model, in clear"
    disclosed = honest.row("matrix", "hospital-a")[1]
    assert "1 × update, in clear" in disclosed
    assert "1 × update, in a cohort of ≥ 3" in disclosed
    assert "1 × update, in a sum of ≥ 3" in disclosed
    assert honest.row("matrix", "hospital-b")[2:] == ["–", "–", "–"]


def test_rounds_at_different_levels_are_different_rows(honest: Page) -> None:
    rows = {row[0]: row[1] for row in honest.tables["by-round"][1:]}
    assert set(rows) == {"1", "2", "3"}
    assert "update; sum: as a term of one sum over at least 3 sources" in rows["1"]
    assert "update; cohort: as a term of a cohort's sum over at least 3 sources" in rows["2"]
    assert "update; individual: in clear, readable by the receiver" in rows["3"]


def test_sums_and_updates_in_clear_are_listed_apart_at_the_top(honest: Page) -> None:
    assert "3 updates left in clear, of hospital-a, hospital-b, hospital-c." in honest.text
    assert "6 updates left only under masks, in sums over at least 3 sources." in honest.text


def test_rounds_alike_are_one_row_with_a_range(tmp_path: Path) -> None:
    page = page_of(Logs(tmp_path / "run").write(7))
    assert [row[0] for row in page.tables["by-round"][1:]] == ["1 to 7"]
    assert page.row("matrix", "source-1")[1] == "7 × update, in a sum of ≥ 3"


def test_epsilon_stands_beside_the_limit_of_the_policy_that_was_loaded(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run")
    page = page_of(logs.write(4))
    row = page.row("epsilons", "source-2")
    assert row[1:5] == ["0.5040", "8 (its policy)", "6 %", "1e-05"]
    assert page.row("epsilons", TARGET)[5].startswith("no charge in this log")
    assert "limit 8" in page.source


def test_logs_in_order_of_a_run_without_noise_are_no_single_green_tick(tmp_path: Path) -> None:
    class Bare(Run):
        levels = (Visibility.SUM, Visibility.SUM)

        def alter_event(self, site: str, kind: str, number: int, facts: dict[str, Any]) -> dict[str, Any] | None:
            return None if kind == "ledger-updated" else facts

    (tmp_path / "trusted.json").write_bytes(ROSTER.canonical_bytes())
    page = page_of(Bare(tmp_path / "run").write(), 0, "--roster", str(tmp_path / "trusted.json"))
    assert page.states == ["done", "care"]
    assert "✓ In order" in page.text
    assert "hospital-a, hospital-b, hospital-c, each: 2 contributions left only in sums" in page.text
    assert "Nothing bounds what the sums and the model reveal about a row" in page.text
    assert "epsilons" not in page.tables


def test_an_update_in_clear_without_noise_is_red_beside_logs_in_order(tmp_path: Path) -> None:
    page = page_of(Logs(tmp_path / "run", noise=False, bare=("source-2",)).write(1))
    assert page.states[1] == "failed"
    assert "✕ source-2: 1 contribution left in clear." in page.text


def test_training_that_diverged_and_a_loss_that_rose_stand_at_the_top(tmp_path: Path, capsys: Capture) -> None:
    folder = Logs(tmp_path / "run").write(1)
    run = RunFolder(folder)
    for number, loss in enumerate((1.0, 0.5, 2.0, 3.0), 1):
        run.append_round({"round": number, "loss": loss, "refused": {"source-1": "DIVERGED"} if number == 3 else {}})
    page = page_of(folder)
    assert page.states[2:] == ["care"]
    assert "source-1 said in round 3 that its training diverged." in page.text
    assert "The target's loss rose from 0.75 in round 2 to 2.5 in round 4, means of 2 rounds." in page.text
    out = capsys.readouterr().out
    assert "training    source-1 said in round 3 that its training diverged." in out


def test_a_round_without_a_charge_is_not_hidden_by_those_with_one(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run", sources=2)
    logs.begin()
    logs.round(1)
    logs.noise = False
    logs.round(2)
    page = page_of(logs.close())
    lines = "source-1, source-2: something left it without a charge in round 2: no noise is known to bound it."
    assert lines in page.text


def test_more_than_the_limit_is_said(tmp_path: Path) -> None:
    class Spends(Logs):
        def charge(self, site: str, number: int) -> None:
            super().charge(site, 2000 * number)

    page = page_of(Spends(tmp_path / "run", sources=2).write(1))
    assert "source-1: epsilon 10.3306 is spent; its policy's limit is 8." in page.text
    assert "source-2: epsilon 11.2698 is spent; its policy's limit is 8." in page.text


def test_a_policy_is_put_in_words_once_for_all_sites_with_its_numbers(tmp_path: Path) -> None:
    page = page_of(Logs(tmp_path / "run").write(1))
    assert page.text.count("The aggregator can learn") == 1
    assert "The policies of source-2, source-3 say the same." in page.text


def test_a_policy_file_that_is_not_the_one_of_the_run_is_not_explained(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run", sources=1)
    logs.write(1)
    file = logs.path("source-1").parent.parent / "policy.toml"
    file.write_bytes(file.read_bytes() + b"# later\n")
    page = page_of(tmp_path / "run")
    assert "the policy.toml beside the log is another one by now" in page.row("sites", "source-1")[4]
    assert "The aggregator can learn" not in page.text
    assert page.row("epsilons", "source-1")[2] == "not known here"


def test_alarms_aborts_and_refusals_stand_with_who_blames_whom(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run")
    logs.begin()
    logs.round(1)
    logs.event("source-1", "alarm", 1, check="header.previous-checkpoint", accused=["target"])
    logs.event(TARGET, "aborted", 1, check="survivors", accused=["source-2", "source-3"])
    logs.message("source-2", TARGET, "Refusal", 1, 1, decision=Decision("refused", "min-others"))
    logs.event("source-2", "refused", 1, check="min-others")
    logs.close()
    page = page_of(tmp_path / "run")
    assert [row[:4] for row in page.tables["incidents"][1:5]] == [
        ["alarm", "header.previous-checkpoint", "target", "source-1"],
        ["abort", "survivors", "source-2, source-3", "target"],
        ["refusal", "min-others", "–", "source-2"],
        ["refusal sent", "min-others", "–", "source-2"],
    ]
    said = "source-2 is blamed by target; source-3 is blamed by target; target is blamed by source-1"
    assert f"Recorded: 1 alarm, 1 abort, 1 refusal. By their own word, which proves nothing: {said}." in page.text
    assert "source-1: 1 alarm: header.previous-checkpoint; it blames target, by its own word." in page.text
    assert "target, source-1, source-2, source-3: its log has no end" in page.text.replace(
        "source-1, source-2, source-3, target:", "target, source-1, source-2, source-3:"
    )
    assert any("Alarm: header.previous-checkpoint; accused: target." in row[1] for row in page.tables["events"])


def test_an_abort_that_several_sites_record_is_one_line_with_their_names_in_order(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run")
    logs.begin()
    logs.round(1)
    for site in ("source-3", TARGET, "source-1"):
        logs.event(site, "aborted", 1, check="QUORUM", accused=[])
    logs.close()
    assert "source-1, source-3, target: 1 aborted session: QUORUM." in page_of(tmp_path / "run").text


@pytest.mark.parametrize("here", [("source-2",), (TARGET,), (TARGET, "source-2")])
def test_a_refusal_is_counted_once_however_many_tell_of_it(here: tuple[str, ...], tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run")
    logs.begin()
    for number in (1, 2):
        logs.message("source-2", TARGET, "Refusal", number, 1, decision=Decision("refused", "min-others"))
        logs.event("source-2", "refused", number, check="min-others")
    logs.close()
    for site in set(logs.sites) - set(here):
        shutil.rmtree(logs.path(site))
    page = page_of(tmp_path / "run")
    assert "refusals, by a policy or a check 2" in page.text
    assert "alarms and aborts 0" in page.text


def test_the_page_says_when_it_was_made_and_has_a_glossary_and_a_block_to_sign(honest: Page) -> None:
    assert re.search(r"This page was made on \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC by securefda", honest.text)
    assert (
        "Its verdict is: In order. On what was disclosed it says: Bounded by noise, but not the target's rows. Name"
        in (honest.text)
    )
    assert {"glossary", "signoff"} <= {str(attrs.get("id")) for _, attrs in honest.tags}


def test_bytes_are_those_of_each_sites_own_log(tmp_path: Path) -> None:
    page = page_of(Logs(tmp_path / "run").write(1))
    assert page.row("traffic", "source-1") == ["source-1", "3", "78.6 KiB", "2", "39.2 KiB"]


def test_one_log_alone_says_what_it_cannot_know(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run")
    logs.write(2)
    shutil.copytree(logs.path(TARGET), tmp_path / "alone" / RUN)
    page = page_of(tmp_path / "alone", None)
    assert "sites whose log is here and verifies 1 of 4" in page.text
    assert "There is one log here only, and nothing to compare it with" in page.text
    assert "at which level, only their own logs say" in page.text
    assert "2 × MaskedInput, as only the receiver says" in page.row("matrix", "source-1")[1]
    assert page.row("sites", "source-1")[3:] == ["not here", "not known"]


def test_lost_evidence_is_said_apart_from_the_logs(tmp_path: Path, capsys: Capture) -> None:
    kept = folder_of(Run(tmp_path / "run").write(), "hospital-b") / FILE
    data = bytearray(kept.read_bytes())
    data[20] ^= 1
    kept.write_bytes(data)

    code = main(["audit", "report", str(tmp_path / "run"), "--format", "json"])
    envelope = json.loads(capsys.readouterr().out)
    page = page_of(tmp_path / "run", 13)

    (log,) = (log for log in envelope["data"]["logs"] if log["party"] == "hospital-b")
    assert (code, envelope["error_code"], log["sound"]) == (13, "EvidenceLost", True)
    assert [lost["kind"] for lost in log["kept_messages"]["findings"]] == ["evidence-damaged"]
    assert "sites whose log is here and verifies 4 of 4" in page.text
    assert "Tampering or a broken promise" in page.text
    assert "evidence-damaged: record" in page.row("logs", "hospital-b")[1]


def test_the_page_of_one_run_counts_all_runs(tmp_path: Path, capsys: Capture) -> None:
    folder = Run(tmp_path / "run").write()
    HangsUp(folder, "ee" * 16, hours=3).write()
    one = page_of(folder, 0, "--run", ONE_RUN)
    HangsUp(folder, "dd" * 16, hours=4).write()
    capsys.readouterr()

    code = main(["audit", "report", str(folder), "--run", ONE_RUN, "--format", "json"])
    envelope = json.loads(capsys.readouterr().out)
    two = page_of(folder, 13, "--run", ONE_RUN)

    rows = [row[:2] + row[3:7] for row in one.tables["runs"] if row[1] == "hospital-a"]
    assert rows == [
        [ONE_RUN, "hospital-a", "completed", "3", "3", "0"],
        ["ee" * 16, "hospital-a", "without an end: broken off; took something and brought no result", "1", "0", "1"],
    ]
    assert "took something from hospital-a and brought it no result" not in one.text
    assert (code, envelope["error_code"]) == (13, "TargetConduct")
    assert [one["source"] for one in envelope["data"]["conduct"]] == ["hospital-a", "hospital-b", "hospital-c"]
    assert "2 runs of hospital-t took something from hospital-a and brought it no result" in two.text


def test_what_stands_behind_a_changed_record_is_not_counted(tmp_path: Path, capsys: Capture) -> None:
    logs = Logs(tmp_path / "run", bare=("source-1",))
    logs.write(3)
    tail = logs.path("source-1") / "tail"
    data = tail.read_bytes()
    place = data.index(b'"round":2')
    tail.write_bytes(data[:place] + b'"round":7' + data[place + 9 :])
    page = page_of(tmp_path / "run", 13)
    assert "the log of source-1: edited, the record is not the one that was signed" in capsys.readouterr().err
    assert "was edited" in page.row("logs", "source-1")[1]
    assert "Tampering or a broken promise" in page.text
    assert "source-1, record " in page.text
    assert page.row("matrix", "source-1")[1] == "1 × update, in clear"
    assert page.row("matrix", "source-2")[1].startswith("3 × ")


def test_a_run_whose_log_counts_in_part_is_not_called_broken_off(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run", bare=("source-1",))
    logs.write(3)
    tail = logs.path("source-1") / "tail"
    tail.write_bytes(tail.read_bytes().replace(b'"type":"Header"', b'"type":"Headex"', 1))
    runs = {row[1]: row for row in page_of(tmp_path / "run", 13).tables["runs"]}
    assert runs["source-1"][3] == "not known"
    assert runs["source-1"][-1].startswith("nothing")
    assert "edited at record" in runs["source-1"][-1]
    assert runs["source-2"][3] == "failed"


def test_logs_that_contradict_each_other_end_with_13_and_the_first_divergence(tmp_path: Path, capsys: Capture) -> None:
    class Spends(Run):
        def spent(self, site: str, number: int) -> dict[str, str]:
            return {"epsilon": "0.001"} if (site, number) == ("hospital-b", 2) else {}

    page = page_of(Spends(tmp_path / "run").write(), 13)
    assert "error: wrong-epsilon: hospital-b says" in capsys.readouterr().err
    assert "Tampering or a broken promise" in page.text
    assert "hospital-b says that epsilon 0.001 is spent" in page.text


def test_another_roster_than_that_of_the_run_is_a_finding(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run")
    logs.write(1)
    other = Logs(tmp_path / "other", entities={"source-1": "Another hospital"})
    other.close()
    file = tmp_path / "other.json"
    file.write_bytes(other.roster.canonical_bytes())
    page = page_of(tmp_path / "run", 13, "--roster", str(file))
    assert "the run began under the roster with digest" in page.row("logs", "source-1")[1]


def test_a_log_without_cosignature_is_vouched_for_by_its_own_key_only(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run", sources=1)
    logs.begin()
    for site in logs.sites:
        logs.sign(site, ())
        logs.logs[site].close()
    page = page_of(tmp_path / "run")
    assert page.row("logs", "source-1")[5] == "no site"
    assert "0 of 1 witnesses cosigned the newest checkpoint" in page.text
    assert "lacks cosignatures" in page.row("logs", "source-1")[1]
    # Nothing was tampered with, and no cell says so in red.
    assert page.row("sites", "source-1")[3].startswith("lacks cosignatures, see Verification")
    assert 'class="failed"' not in page.source


def test_of_two_copies_of_a_log_one_is_counted(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run")
    logs.write(2)
    shutil.copytree(logs.path("source-1"), tmp_path / "run" / "copy")
    page = page_of(tmp_path / "run")
    assert "2 × update, in a sum of ≥ 3" in page.row("matrix", "source-1")[1]
    assert any("another copy of this log counts" in row[1] for row in page.tables["logs"])


def test_what_looks_like_a_log_and_is_none_stands_beside_the_good_ones(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run")
    logs.write(1)
    foreign = tmp_path / "run" / "foreign"
    foreign.mkdir()
    (foreign / "checkpoint").write_bytes(b"\x00binary")
    page = page_of(tmp_path / "run", 13)
    assert "foreign has the files of a log, and cannot be read" in page.text
    assert "2 × " not in page.row("matrix", "source-1")[1]


def test_beta_is_from_the_run_folder_or_said_to_be_missing(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run")
    logs.write(2)
    assert "Only the target's run folder has it" in page_of(tmp_path / "run").text
    lines = [{"round": number, "mean_beta": 0.25, "status": "finished"} for number in (1, 2)]
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    page = page_of(tmp_path / "run")
    assert "Mean β" in page.text
    assert "They are not signed, and no log vouches for them." in page.text


@pytest.mark.parametrize("line", ["{", '{"round": "<b>"}', '{"mean_beta": 1}', '{"round": [1], "mean_beta": {}}'])
def test_a_run_folder_with_damaged_figures_costs_the_figures_only(line: str, tmp_path: Path) -> None:
    Logs(tmp_path / "run").write(1)
    (tmp_path / "run" / "metrics.jsonl").write_text(f"{line}\n")
    page = page_of(tmp_path / "run")
    assert "matrix" in page.tables
    assert "β" in page.text


def test_figures_of_another_run_are_not_shown(tmp_path: Path) -> None:
    Logs(tmp_path / "run").write(1)
    other = summarise((), run_id="ff" * 16, task="a:B", strategy={}, visibility={}, rounds_planned=1, status="finished")
    RunFolder(tmp_path / "run").write_summary(other)
    assert f"the run folder's figures are of another run, {'ff' * 16}" in page_of(tmp_path / "run").text


def test_a_log_gets_no_file_that_is_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = Logs(tmp_path / "run", sources=1)
    logs.write(1)
    monkeypatch.chdir(tmp_path)
    before = sorted(logs.path(TARGET).rglob("*"))
    main(["audit", "report", str(logs.path(TARGET))])
    assert sorted(logs.path(TARGET).rglob("*")) == before
    assert (tmp_path / "audit.html").exists()


def test_json_says_what_was_found(tmp_path: Path, capsys: Capture) -> None:
    folder = Run(tmp_path / "run").write()
    assert main(["audit", "report", str(folder)]) == 0
    assert "Attention. The keys are from the log's own roster" in capsys.readouterr().out
    assert main(["audit", "report", str(folder), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["page"] == str(folder / "audit.html")
    assert (folder / "audit.html").exists()
    assert [log["sound"] for log in data["logs"]] == [True] * 4
    assert (data["compared"], data["findings"], data["missing"]) == (True, [], [])
