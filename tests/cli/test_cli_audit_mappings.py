"""``audit report --map``: the answers follow the log, the policy and the ledger, and what is not answered is said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from audit_report_logs import RUN, Logs
from audit_report_pages import page_of
from signed_messages import kept_form

from securefda.audit.log_records import DpSpent, Entry
from securefda.audit.report.mapped import FACTS
from securefda.audit.report.mappings import MAPPINGS, Question
from securefda.cli import main
from securefda.protocol.messages import NO_CONTEXT, NO_SESSION, Refusal, Signer
from securefda.transport.wire import encode

ROOT = Path(__file__).parents[2]
ASKED = [(name, question) for name, text in MAPPINGS.items() for question in text.questions]
QUESTIONS = [question for _, question in ASKED]

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


class Diverges(Logs):
    def close(self) -> Path:
        signer = Signer(self.sites.index("source-1"), self.keys["source-1"], encode)
        self.kept["source-1"].keep(kept_form(signer.sign(NO_SESSION, NO_CONTEXT, Refusal("DIVERGED"))))
        return super().close()


class LosesRounds(Logs):
    def message(self, sender: str, receiver: str, kind: str, *args: Any, **options: Any) -> None:
        if kind != "Result":
            super().message(sender, receiver, kind, *args, **options)


def with_policy(**changes: str) -> type[Logs]:
    """Logs of sites whose policies have other values for some keys."""

    class Agreed(Logs):
        def policy(self, site: str) -> bytes:
            text = super().policy(site).decode()
            for name, value in changes.items():
                key = name.replace("_", "-")
                text, count = re.subn(rf"(?m)^{key} = .*$", f"{key} = {value}", text)
                assert count == 1, key
            return text.encode()

    return Agreed


def with_event(kind: str, number: int = 0, *, first: bool = True, **facts: Any) -> type[Logs]:
    """Logs in which each source has one more event, or with ``first`` off says something else in one of its own."""

    class Says(Logs):
        def event(self, site: str, what: str, at: int = 0, **said: Any) -> None:
            changed = said | facts if what == kind and not first else said
            super().event(site, what, at, **changed)
            if first and what == "policy-loaded":
                super().event(site, kind, number, **facts)

    return Says


EPSILON = "nist-800-226: How strong is the guarantee, over everything released?"
LIMIT = "nist-800-226: What is the most that may be spent, and who set that?"
MECHANISM = "nist-800-226: Which mechanism adds the noise, and how is it added up?"
LEFT = "ehds: What left the sites, and to whom?"
EXTRACTION = (
    "edpb-28-2024: How likely is direct extraction of personal data of those in the training data, also by probability?"
)
CHANGES: dict[str, tuple[Any, set[str], str]] = {
    "log: an update in clear": (
        lambda folder: Logs(folder, bare=("source-2",)),
        {"levels"},
        "individual: in clear",
    ),
    "log: without noise": (lambda folder: Logs(folder, noise=False), {"bounds"}, "Nothing bounds what the sums"),
    "log: another task": (with_event("run-began", first=False, task="hearts"), {"task"}, "for the task hearts"),
    "log: a model that was kept": (
        with_event("model-kept", model="ab" * 32),
        {"model", "integrity", "period"},
        "source-1 kept the final model",
    ),
    "log: an alarm": (
        with_event("alarm", check="ORDER", accused=["target"]),
        {"incidents", "integrity", "period"},
        "3 alarms",
    ),
    "log: a refusal since training diverged": (Diverges, {"training"}, "source-1 signed a refusal that says"),
    "log: rounds without a result": (LosesRounds, {"conduct"}, "rounds lost: 4"),
    "ledger": (SpendsMore, {"epsilon", "mechanism"}, "epsilon 7.5000 at delta 1e-05"),
    "policy: budget": (
        with_policy(target_epsilon="3.0"),
        {"limit"},
        "rounds with noise cost at most epsilon 3 at delta",
    ),
    "policy: others": (with_policy(min_others="1"), {"trust"}, "at least 1 other site that it trusts"),
    "policy: purpose": (with_policy(purpose='"screening"'), {"purpose"}, "source-1 states: screening"),
    "policy: legal basis": (with_policy(legal_basis='"consent"'), {"legal basis"}, "source-1 states: consent"),
    "policy: columns": (with_policy(columns='["age"]'), {"columns"}, "no column of a table but age"),
    "policy: days": (
        with_policy(keep_logs_days="30"),
        {"days that logs and models are kept"},
        "source-1 states: logs are kept for 30 days.",
    ),
    "roster: an organisation": (
        lambda folder: Logs(folder, entities={"source-1": "Charity"}),
        {"actors"},
        "source-1: source, Charity.",
    ),
    "roster: a site": (
        lambda folder: Logs(folder, 4),
        {"unit", "actors", "recipients"},
        "source-4: one row, added or removed.",
    ),
}
"""What is changed, the facts that say it, and what one of the answers then says."""


@pytest.mark.parametrize(("other", "facts", "said"), CHANGES.values(), ids=CHANGES)
def test_every_question_with_such_a_fact_follows_what_is_changed(
    other: Any, facts: set[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = mapped(Logs(tmp_path / "one" / "run").write(1), capsys)
    after = mapped(other(tmp_path / "two" / "run").write(1), capsys)
    differ = {name for name in before if before[name]["answers"] != after[name]["answers"]}
    assert {f"{name}: {question.asks}" for name, question in ASKED if facts & set(question.facts)} <= differ
    assert "iso-27559: Was re-identification tried?" not in differ
    assert any(said in one["answer"] for name in differ for one in after[name]["answers"])


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
    assert MAPPINGS["ehds"].compared in page.text


def test_every_text_says_what_it_was_compared_with_and_when() -> None:
    assert all(re.search(r"compared with .* in November 2026", text.compared) for text in MAPPINGS.values())


def test_a_text_that_is_not_known_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Logs(tmp_path / "run").write(1)
    assert main(["audit", "report", str(folder), "--run", RUN, "--map", "hipaa"]) == 4
    assert "nist-800-226, edpb-28-2024, ehds, iso-27559" in capsys.readouterr().err
    assert not (folder / "audit.html").exists()


def test_the_table_of_texts_is_whole() -> None:
    assert {name for question in QUESTIONS for name in question.facts} == set(FACTS)
    assert all(
        text.title and text.dated and text.compared and text.source.startswith("http") for text in MAPPINGS.values()
    )
    assert all(any(question.open for question in text.questions) for text in MAPPINGS.values())
    assert all((ROOT / question.see).is_file() for question in QUESTIONS if question.see)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.asks[:40])
def test_a_question_has_an_answer_or_says_what_is_not_answered(question: Question) -> None:
    assert question.facts or question.system or question.open
    assert bool(question.system) == bool(question.see)
