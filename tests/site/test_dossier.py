"""The two pages before signing say what policy, roster, task and ledgers say, and answer what a reviewer asks."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from securefda.cli import main
from securefda.pages.html import static_page
from securefda.privacy.dp_events import Budget, DpEvent
from securefda.privacy.ledger import Ledger
from securefda.privacy.ledger_storage import DataSet
from securefda.site.config import load_source
from securefda.site.dossier import page_of, read_dossier
from securefda.site.kit import load_kit
from securefda.site.policy.measured import MEMBERS_FOUND, ROUNDS_TO_IMPRINT, members_in, rounds_to_imprint
from securefda.site.privacy_account import ledger_file

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NOISE = ["training.source.dp.noise-multiplier=1.0", "privacy.budget.target-epsilon=4.0"]


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("founded") / "kits"
    made = ["federation", "init", "three_hospitals", "--out", str(root), "--entity", "clinic=University Clinic"]
    assert main([*made, *(part for setting in NOISE for part in ("--set", setting))]) == 0
    return root


@pytest.fixture
def kit(founded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(founded, tmp_path / "kits")) / "hospital-a"


def parts(kit: Path, now: datetime | None = None) -> dict[str, str]:
    """The text of each section of the page, and of its head."""
    now = now or datetime.now(UTC)
    config = load_source(kit / "local" / "settings.toml", (), {})
    html = static_page(page_of(read_dossier(load_kit(kit, now), config, now)), "title", "a test", sheet=True)
    found = re.findall(r'<section id="(\w+)".*?>(.*?)</section>', html, re.DOTALL)
    return {key: " ".join(re.sub(r"<[^>]+>", " ", body).replace("&#39;", "'").split()) for key, body in found}


def edit(kit: Path, **changes: str) -> None:
    """Replace the values of keys in the policy, and sign it."""
    file = kit / "local" / "policy.toml"
    text = file.read_text()
    for key, value in changes.items():
        name = key.replace("_", "-")
        text, count = re.subn(rf"^{name} = (\[.*?\]|.*?)$", f"{name} = {value}", text, flags=re.MULTILINE | re.DOTALL)
        assert count == 1, name
    file.write_text(text)
    assert main(["policy", "sign", str(kit), "--name", "Ada", "--role", "head"]) == 0


def with_another_site(kit: Path) -> None:
    added = ["federation", "add", str(kit.parent), "hospital-d", "--config", "three_hospitals", "--entity", "Charity"]
    assert main(added) == 0


def with_other_columns(kit: Path) -> None:
    file = kit / "local" / "settings.toml"
    columns = 'options = { columns = { age = { type = "number" } }, label = { column = "ill" } }\n'
    file.write_text(
        re.sub(r"^options = .*$", "", file.read_text(), flags=re.MULTILINE).replace("[task]", f"[task]\n{columns}")
    )


def with_own_keys(kit: Path) -> None:
    (kit / "local" / "request.json").write_text("{}")


def with_a_ledger(kit: Path) -> None:
    file = ledger_file(kit, "default")
    file.parent.mkdir(parents=True)
    ledger = Ledger.create(file, DataSet("hospital-a", "default", "ab" * 32, 239), now=1)
    ledger.reserve(DpEvent("00" * 16, 1, 1, 2.0, 0.1, 20, 1.0), Budget(4.0, 1e-5, "rdp"), now=2)


@pytest.mark.parametrize(
    ("change", "where", "before", "after"),
    [
        (
            lambda kit: edit(kit, purpose='"screening"'),
            "head",
            "Purpose (a statement): not stated",
            "Purpose (a statement): screening",
        ),
        (
            lambda kit: edit(kit, legal_basis='"consent"'),
            "head",
            "Legal basis (a statement): not stated",
            "Legal basis (a statement): consent",
        ),
        (
            lambda kit: edit(kit, contract='"no. 7"'),
            "head",
            "sources (a statement): not stated",
            "sources (a statement): no. 7",
        ),
        (lambda kit: edit(kit, authority='"Trust office"'), "parties", "the authority authority:", "Trust office auth"),
        (with_own_keys, "parties", "It made this site's keys, so it can pose", "This site made its own keys"),
        (
            lambda kit: edit(kit, rows_per_person="1"),
            "data",
            "rows of one person not stated",
            "at most 1 (a statement)",
        ),
        (
            lambda kit: edit(kit, rows_per_person="1"),
            "noise",
            "is not stated. For 2 rows",
            "has one row here (a statem",
        ),
        (
            lambda kit: edit(kit, rows_per_person="3", target_epsilon="1.0"),
            "noise",
            "For 2 rows of one person these limits are 99.97 of 100 and 100 of 100",
            "For 3 rows of one person these limits are 95.26 of 100 and 21 of 100",
        ),
        (
            lambda kit: edit(kit, rows_per_person="1000"),
            "noise",
            "For 2 rows of one person",
            "For 1000 rows of one person these limits are 100 of 100 and 100 of 100",
        ),
        (lambda kit: edit(kit, target_epsilon="5000.0"), "learns", "55 of 100", "what it says: 100 of 100"),
        (lambda kit: edit(kit, allowed_rules='["analytic"]'), "noise", "(DP-SGD)", "once, in the second moments"),
        (
            lambda kit: edit(kit, allowed_rules='["source_only", "analytic"]'),
            "noise",
            "(DP-SGD);",
            "(DP-SGD), and once, in the second moments;",
        ),
        (lambda kit: edit(kit, min_others="1"), "leaves", "at least 3 sources", "at least 2 sources"),
        (lambda kit: edit(kit, model_step="3.0"), "learns", "3 finished rounds", "9 finished rounds"),
        (lambda kit: edit(kit, required="false"), "noise", "Noise is required.", "no number bounds what leaves"),
        (
            lambda kit: edit(kit, required="false"),
            "learns",
            "2 of 100 (sums over 3, ε = 4)",
            "99 of 100 (sums over 3, no",
        ),
        (lambda kit: edit(kit, target_epsilon="1.0"), "noise", "at most 98.21 of 100", "at most 73.11 of 100"),
        (lambda kit: edit(kit, target_delta="1e-6"), "noise", "(delta) = 1e-05", "(delta) = 1e-06"),
        (lambda kit: edit(kit, keep_logs_days="30"), "time", "logs: not stated", "logs: 30 days"),
        (lambda kit: edit(kit, keep_models_days="60"), "time", "models: not stated", "models: 60 days"),
        (
            lambda kit: edit(kit, keep='"none"'),
            "time",
            "final model: by the target and each source",
            "by the target alone, if",
        ),
        (lambda kit: edit(kit, max_rounds="9"), "leaves", "16 rounds a run", "9 rounds a run"),
        (lambda kit: edit(kit, max_runs="2"), "leaves", "1 run a day", "2 runs a day"),
        (lambda kit: edit(kit, granularity='"model"'), "leaves", "one number a layer", "one number, coarsely"),
        (lambda kit: edit(kit, allowed_rules='["analytic"]'), "leaves", "the update", "second moments"),
        (lambda kit: edit(kit, recipient='""'), "head", "Clinic (checked)", "model: University Clinic."),
        (
            lambda kit: edit(kit, trusted_peers='["hospital-b", "hospital-c"]'),
            "parties",
            "that none of them gives",
            "Named as trusted: hospital-b, hospital-c",
        ),
        (
            lambda kit: edit(kit, min_others="1", max_colluders="1"),
            "parties",
            "none of them",
            "at most 1 of them passes",
        ),
        (
            lambda kit: edit(kit, min_others="1", max_colluders="1"),
            "learns",
            "with 1 source or more, with",
            "follows the rules, also with 1 source that helps it",
        ),
        (lambda kit: edit(kit, key_agreements='["x25519"]'), "words", "X25519 and MLKEM768", "unbroken (X25519)"),
        (lambda kit: edit(kit, signatures_required="1"), "rest", "no named person has to sign", ""),
        (lambda kit: edit(kit, allowed_tasks="[]"), "data", "pins its options and code", "the policy allows any task"),
        (with_another_site, "parties", "2 other sources", "Charity 3 other sources"),
        (with_another_site, "time", "ends: too few are left", "goes on if enough others are left"),
        (with_other_columns, "data", "the task names none", "2 columns: age, ill"),
        (with_other_columns, "data", "pins its options and code", "this site would not start"),
        (with_a_ledger, "noise", "nothing was charged here", "Spent so far on data set default: ε = "),
        (with_a_ledger, "noise", "nothing was charged here", "the budget pays for 0 rounds in all"),
        (with_a_ledger, "data", "rows, files and this policy", "default: 239 rows"),
    ],
)
def test_the_page_follows_policy_roster_task_and_ledger(
    change: Callable[[Path], None], where: str, before: str, after: str, kit: Path
) -> None:
    first = parts(kit)[where]
    assert before in first
    change(kit)
    second = parts(kit)[where]
    assert after in second
    assert first != second


@pytest.mark.parametrize(
    ("question", "where", "answer"),
    [
        ("to whom", "leaves", "can be opened, with noise of this site University Clinic each round"),
        ("what if the target lies", "learns", "copies single rows into the sum"),
        (
            "what if a hospital colludes",
            "learns",
            "with 1 source or more, with keys that the authority made, or if this site is away in one round sums",
        ),
        (
            "what lies can reveal at most",
            "learns",
            "3 finished rounds were enough not measured 55 of 100",
        ),
        (
            "what if all lie together",
            "learns",
            "holds for all these readers together, lying or not",
        ),
        ("what a row says", "learns", "about whether a row was used; what it says: 100 of 100."),
        ("the number of rows", "noise", "learns from it for certain whether there is one row more"),
        ("the model", "learns", "anyone with the final model whether a row that it knows was used 2 of 100"),
        ("epsilon", "noise", "right in at most 98.21 of 100 cases, and in 50 without"),
        ("what attacks could find at most", "noise", "at most 55 of 100 used rows are found"),
        ("for how long masks hide", "words", "is unbroken (X25519 and MLKEM768)"),
        ("can we stop", "time", "can we stop at any time"),
        ("undo", "time", "No row can be taken out of them again"),
        ("recipient", "head", "Recipient of sums and model: University Clinic (checked)"),
        ("template", "head", "Made from: the planned run"),
    ],
)
def test_a_reviewer_finds(question: str, where: str, answer: str, kit: Path) -> None:
    assert answer in parts(kit)[where], question


def test_what_sums_tell_is_said_where_a_policy_permits_more_than_sums(kit: Path) -> None:
    edit(kit, max_visibility='"individual"', may_leave='["samples"]', required="false")
    leaves = parts(kit)["leaves"]
    assert "number of rows; number of steps, under a rule that does not align updates beside the update" in leaves
    assert "loss, accuracy as sums, where the target asks for a sum" in leaves
    assert "one number a layer, coarsely rounded, where the target asks for a sum the other sources" in leaves
    edit(kit, allowed_rules='["analytic"]')
    assert "loss" not in parts(kit)["leaves"]
    edit(kit, max_visibility='"cohort"', may_leave="[]")
    page = parts(kit)
    assert "number of steps" not in page["leaves"]
    assert "many rounds tell more of this site than one sum does" in page["rest"]


def test_the_state_follows_people_edits_and_days(kit: Path) -> None:
    assert "In force, and nobody has signed it by name" in parts(kit)["head"]
    edit(kit, signatures_required="2")
    assert "Not in force" in parts(kit)["head"]
    assert main(["policy", "sign", str(kit), "--name", "Ben", "--role", "officer"]) == 0
    head = parts(kit)["head"]
    assert "In force" in head
    assert "in the name of Ada (head), Ben (officer)." in head
    (kit / "local" / "policy.toml").write_text((kit / "local" / "policy.toml").read_text() + "# an edit\n")
    assert "was changed after it was signed" in parts(kit)["head"]


def test_an_ended_policy_is_shown_as_ended(kit: Path) -> None:
    file = kit / "local" / "policy.toml"
    file.write_text(re.sub(r'expires = "\d.*"', 'expires = "2026-01-01"', file.read_text()))
    assert "Ended on 2026-01-01" in parts(kit)["head"]


def test_figures_are_those_of_the_committed_studies() -> None:
    committed = json.loads((BENCHMARKS / "model_step.json").read_text())["rounds_to_an_imprinting_model"]
    assert {f"limit {limit:g}": rounds for limit, rounds in ROUNDS_TO_IMPRINT.items()} == committed
    assert [rounds_to_imprint(limit) for limit in (1.0, 3.0, 5.0, 10.0, 30.0, 31.0)] == [9, 9, 3, 3, 1, 0]


@pytest.mark.parametrize(
    ("sources", "epsilon", "sums"),
    [(1, None, (1, None)), (4, 2.0, (3, 4.0)), (5, 4.0, (5, 4.0)), (99, 0.5, (10, 1.0)), (3, 20.0, (3, None))],
)
def test_no_figure_is_of_more_sources_or_more_noise_than_the_site_has(
    sources: int, epsilon: float | None, sums: Any
) -> None:
    found = members_in(sources, epsilon)
    assert (found.in_sums, found.in_model) == MEMBERS_FOUND[sums]
    assert (found.sources, found.epsilon) == sums


def test_the_command_writes_one_file_without_scripts_once(kit: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert main(["policy", "dossier", str(kit), "--out", str(out)]) == 0
    page = out.read_text()
    assert "<script" not in page
    assert 'class="sheet"' in page
    assert main(["policy", "dossier", str(kit), "--out", str(out)]) == 4
    assert out.read_text() == page
    assert main(["policy", "dossier", str(kit.parent / "clinic"), "--out", str(tmp_path / "other.html")]) == 4
    assert not (tmp_path / "other.html").exists()


def test_a_pdf_without_a_browser_is_one_clear_line(
    kit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["policy", "dossier", str(kit), "--out", str(tmp_path / "page.pdf")]) == 4
    error, hint = capsys.readouterr().err.splitlines()
    assert error == "error: --out: a PDF needs Chromium or Chrome, and none is on PATH"
    assert hint == "hint: install one, or name a file that ends in .html and print it from a browser"
    assert not (tmp_path / "page.pdf").exists()
