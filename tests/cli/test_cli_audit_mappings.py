"""``audit report --map``: the answers follow the log, the policy and the ledger, and what is not answered is said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from audit_report_logs import RUN, Logs
from audit_report_pages import page_of

from securefda.audit.log_records import DpSpent, Entry
from securefda.audit.report.mapped import FACTS
from securefda.audit.report.mappings import MAPPINGS, Question
from securefda.cli import main

ROOT = Path(__file__).parents[2]
QUESTIONS = [question for text in MAPPINGS.values() for question in text.questions]

pytestmark = pytest.mark.usefixtures("no_disk_sync")


def mapped(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    """The questions of all texts by text and question."""
    wanted = [part for name in MAPPINGS for part in ("--map", name)]
    main(["audit", "report", str(folder), "--out", str(folder.parent / "page.html"), "--format", "json", *wanted])
    texts = json.loads(capsys.readouterr().out)["data"]["mappings"]
    return {f"{text['name']}: {one['asks']}": one for text in texts for one in text["questions"]}


class SpendsMore(Logs):
    def charge(self, site: str, number: int) -> None:
        dp = DpSpent("dp-sgd", "rdp", "1.2", "0.05", "1.0", "1e-05", "7.5", 20, number, "ab" * 32)
        self.logs[site].append(Entry("event", "ledger-updated", number, dp=dp))


class Stricter(Logs):
    def policy(self, site: str) -> bytes:
        data = super().policy(site)
        assert b"target-epsilon = 8.0" in data
        return data.replace(b"target-epsilon = 8.0", b"target-epsilon = 3.0")


EPSILON = "nist-800-226: How strong is the guarantee, over everything released?"
LIMIT = "nist-800-226: What is the most that may be spent, and who set that?"
MECHANISM = "nist-800-226: Which mechanism adds the noise, and how is it added up?"
LEFT = "ehds: What left the sites, and to whom?"
EXTRACTION = (
    "edpb-28-2024: How likely is direct extraction of personal data of those in the training data, also by probability?"
)


@pytest.mark.parametrize(
    ("other", "changed", "said"),
    [
        (lambda folder: Logs(folder, bare=("source-2",)), {LEFT, EXTRACTION}, "individual: in clear"),
        (Stricter, {LIMIT}, "rounds with noise cost at most epsilon 3 at delta"),
        (SpendsMore, {EPSILON, MECHANISM, EXTRACTION}, "epsilon 7.5 at delta 1e-05"),
    ],
    ids=["log", "policy", "ledger"],
)
def test_answers_follow_the_log_the_policy_and_the_ledger(
    other: Any, changed: set[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = mapped(Logs(tmp_path / "one" / "run").write(1), capsys)
    after = mapped(other(tmp_path / "two" / "run").write(1), capsys)
    differ = {name for name in before if before[name]["answers"] != after[name]["answers"]}
    assert changed <= differ
    untouched = {"iso-27559: Was re-identification tried?", "ehds: For which purpose were the data used?"}
    assert not untouched & differ
    assert any(said in one["answer"] for name in changed for one in after[name]["answers"])


class Agreed(Logs):
    def policy(self, site: str) -> bytes:
        data = super().policy(site)
        for key, value in (("purpose", b'"screening"'), ("legal-basis", b'"consent"'), ("keep-logs-days", b"30")):
            data, count = re.subn(rb"(?m)^%s = .*$" % key.encode(), b"%s = %s" % (key.encode(), value), data)
            assert count == 1
        return data


def test_answers_have_what_the_policies_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = mapped(Logs(tmp_path / "one" / "run").write(1), capsys)
    after = mapped(Agreed(tmp_path / "two" / "run").write(1), capsys)
    for asks, said in (
        ("ehds: For which purpose were the data used?", "source-1 states: screening"),
        ("ehds: Which data permit allows it?", "source-1 states: consent"),
        ("ehds: How long are the logs kept?", "source-1 states: logs are kept for 30 days."),
        ("edpb-28-2024: Is there a legal basis for the processing?", "source-1 states: consent"),
    ):
        assert said in [one["answer"] for one in after[asks]["answers"]]
        assert said not in [one["answer"] for one in before[asks]["answers"]]


def test_without_noise_what_needs_a_ledger_is_not_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = mapped(Logs(tmp_path / "run", noise=False).write(1), capsys)
    assert found[MECHANISM]["status"] == "not answered"
    assert found[MECHANISM]["not_answered"] == "no record here says: mechanism"
    assert found[EPSILON]["status"] == "in part"
    assert any(
        "Nothing bounds what the sums and the model reveal" in one["answer"] for one in found[EPSILON]["answers"]
    )


def test_each_answer_names_the_record_or_the_page_that_supports_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = mapped(Logs(tmp_path / "run").write(1), capsys)
    assert all(one["support"] for question in found.values() for one in question["answers"])
    assert any(one["support"].startswith("ledger-updated in round 1: row 1") for one in found[EPSILON]["answers"])
    assert any("policy.toml with SHA-256" in one["support"] for one in found[LIMIT]["answers"])


def test_the_page_has_the_questions_and_what_is_not_answered(tmp_path: Path) -> None:
    page = page_of(Logs(tmp_path / "run").write(1), None, "--map", "ehds")
    table = page.tables["map-ehds-heading"]
    assert [row[0] for row in table[1:]] == [question.under for question in MAPPINGS["ehds"].questions]
    assert "not answered by this system: all of it" in page.text
    assert "it is no legal opinion, and says nothing about conformity" in page.text


def test_a_text_that_is_not_known_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Logs(tmp_path / "run").write(1)
    assert main(["audit", "report", str(folder), "--run", RUN, "--map", "hipaa"]) == 4
    assert "nist-800-226, edpb-28-2024, ehds, iso-27559" in capsys.readouterr().err
    assert not (folder / "audit.html").exists()


def test_the_table_of_texts_is_whole() -> None:
    assert {name for question in QUESTIONS for name in question.facts} == set(FACTS)
    assert all(text.title and text.dated and text.source.startswith("http") for text in MAPPINGS.values())
    assert all(any(question.open for question in text.questions) for text in MAPPINGS.values())
    assert all((ROOT / question.see).is_file() for question in QUESTIONS if question.see)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.asks[:40])
def test_a_question_has_an_answer_or_says_what_is_not_answered(question: Question) -> None:
    assert question.facts or question.system or question.open
    assert bool(question.system) == bool(question.see)
