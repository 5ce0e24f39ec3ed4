"""``securefda audit report``: the page runs nothing, stays small, and takes any text; wrong arguments are one line."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from audit_report_logs import ALONE, FEDERATION, RUN, TARGET, Logs
from audit_report_pages import Page, page_of

from securefda.audit.log_records import EVENTS, Decision, Disclosure, Entry, RecordError
from securefda.cli import main
from securefda.operations.records import summarise
from securefda.operations.run_folder import RunFolder
from securefda.pages.html import content_policy

sys.path.append(str(Path(__file__).parents[1] / "audit"))

from run_builder import Run

Capture = pytest.CaptureFixture[str]


pytestmark = pytest.mark.usefixtures("no_disk_sync")


@pytest.fixture
def honest(tmp_path: Path) -> Page:
    return page_of(Run(tmp_path / "run").write(), 0)


def test_the_page_loads_nothing_and_runs_nothing(honest: Page) -> None:
    assert "://" not in honest.source
    assert re.findall(r"url\((?!#)", honest.source) == []
    tags = {tag for tag, _ in honest.tags}
    assert {"script", "link", "img", "iframe", "object", "base", "form"}.isdisjoint(tags)
    links = [value for _, attrs in honest.tags for key, value in attrs.items() if key.endswith(("href", "src"))]
    assert all(link is not None and link.startswith("#") for link in links)
    assert not [key for _, attrs in honest.tags for key in attrs if key.startswith("on")]
    policy = next(attrs["content"] for tag, attrs in honest.tags if tag == "meta" and "http-equiv" in attrs)
    assert policy == content_policy()


def test_ids_are_unique_and_every_reference_resolves(tmp_path: Path) -> None:
    page = page_of(Logs(tmp_path / "run").write(2))
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    named = [attrs["aria-labelledby"] for _, attrs in page.tags if "aria-labelledby" in attrs]
    links = [str(attrs["href"])[1:] for tag, attrs in page.tags if tag == "a"]
    assert set(named) | set(links) <= set(ids)


def test_every_table_can_be_reached_by_keyboard_and_names_its_headings(honest: Page) -> None:
    regions = [attrs for tag, attrs in honest.tags if attrs.get("role") == "region"]
    assert len(regions) == len(honest.tables)
    assert all(attrs["tabindex"] == "0" for attrs in regions)
    assert all(attrs.get("scope") in ("row", "col") for tag, attrs in honest.tags if tag == "th")


PLANTED = "<script>alert('planted')</script>"


def test_what_an_organisation_or_a_folder_is_called_cannot_become_markup(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run", entities={"source-1": PLANTED})
    logs.write(1)
    hostile = tmp_path / "run" / "<img src=x onerror=alert(1)>"
    shutil.copytree(logs.path("source-2"), hostile)
    shutil.rmtree(logs.path("source-2"))
    page = page_of(tmp_path / "run")
    assert page.row("sites", "source-1")[2] == PLANTED
    assert page.row("logs", "source-2")[-1] == "<img src=x onerror=alert(1)>"
    assert {"script", "img"}.isdisjoint(tag for tag, _ in page.tags)


@pytest.mark.parametrize("name", ["type", "peer", "session", "digest"])
def test_no_text_of_a_message_can_hold_markup(name: str) -> None:
    fields: dict[str, Any] = {"type": "Update", "peer": "target", "digest": "ab" * 32, name: PLANTED}
    with pytest.raises(RecordError):
        Entry("sent", **fields)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (Decision, ("allowed", PLANTED)),
        (Decision, (PLANTED, "min-others")),
        (Disclosure, (PLANTED, "update", 1)),
        (Disclosure, ("sum", PLANTED, 1)),
    ],
)
def test_no_text_about_a_message_can_hold_markup(kind: Any, values: tuple[Any, ...]) -> None:
    with pytest.raises(RecordError):
        kind(*values)


@pytest.mark.parametrize("kind", sorted(EVENTS))
def test_no_fact_but_an_origin_can_hold_markup(kind: str) -> None:
    taken = {one.name for one in EVENTS[kind].facts if one.holds(PLANTED) or one.holds([PLANTED])}
    assert taken <= {"origin"}


def test_markup_in_an_origin_never_comes_to_the_page(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run", sources=1)
    logs.begin()
    head = {"origin": f"securefda/1/{FEDERATION}/{PLANTED}", "size": 1, "root": "ab" * 32}
    logs.event("source-1", "checkpoint-cosigned", **head)
    page = page_of(logs.close())
    assert "script" not in {tag for tag, _ in page.tags}


def test_what_figures_are_called_cannot_become_markup(tmp_path: Path) -> None:
    Logs(tmp_path / "run").write(1)
    line = {"round": 1, "mean_beta": 0.5, "survivors": [PLANTED], "levels": {PLANTED: "sum"}, "status": "finished"}
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(line | {"emptied": [PLANTED]}) + "\n")
    summary = summarise((), run_id=RUN, task=PLANTED, strategy={}, visibility={}, rounds_planned=1, status="finished")
    RunFolder(tmp_path / "run").write_summary(summary)
    site = tmp_path / "run" / "sites" / PLANTED.replace("/", "")
    site.mkdir(parents=True)
    (site / "metrics.jsonl").write_text(json.dumps({"round": 1, "beta": 0.5}) + "\n")
    page = page_of(tmp_path / "run")
    assert "script" not in {tag for tag, _ in page.tags}
    assert "β per source" in page.text  # in which that site has a line


def test_a_log_of_many_rounds_and_kinds_makes_a_page_of_bounded_size(tmp_path: Path) -> None:
    logs = Logs(tmp_path / "run", sources=1, noise=False)
    logs.begin()
    for number in range(1, 1501):
        shown = [ALONE] * (1 + number % 53)
        for one in shown[:3]:
            logs.message("source-1", TARGET, "Update", number, 1, one)
        logs.event("source-1", "alarm", number, check=f"check-{number}", accused=[])
    logs.close()
    page = page_of(tmp_path / "run")
    assert len(page.source) < 400_000
    assert len(page.tables["events"]) <= 241
    assert len(page.tables["incidents"]) <= 121
    assert "more rows are not listed" in page.text
    assert "more entries are not listed" in page.text


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("missing", [], "is no folder"),
        ("empty", [], "has no log of a run at or below it"),
        ("run", ["--run", "ff" * 16], "--run: there is no log of run"),
        ("run", ["--out", "nowhere/page.html"], "--out: nowhere/page.html is in a folder that does not exist"),
        ("run", ["--out", "."], "--out: . is a folder"),
        ("run", ["--roster", "none.json"], "none.json: is missing"),
    ],
)
def test_wrong_arguments_are_one_clear_line_and_write_nothing(
    name: str, options: list[str], said: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Logs(tmp_path / "run", sources=1).write(1)
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["audit", "report", name, *options]) == 4
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") <= 2
    assert not list(tmp_path.rglob("*.html"))


def test_logs_of_several_runs_are_separated_by_name(tmp_path: Path, capsys: Capture) -> None:
    folder = Run(tmp_path / "all" / "one").write()
    Logs(tmp_path / "all" / "two", sources=1).write(1)
    assert main(["audit", "report", str(tmp_path / "all")]) == 4
    assert "there are logs of 2 runs" in capsys.readouterr().err
    assert f"run {RUN}" in page_of(tmp_path / "all", None, "--run", RUN).text
    assert folder.exists()


@pytest.mark.parametrize("name", ["\x1b[31m", "\x9b31m", "\u202e", "\udcff"], ids=["escape", "C1", "bidi", "not UTF-8"])
def test_a_folders_name_controls_no_terminal_and_no_page(name: str, tmp_path: Path, capsys: Capture) -> None:
    Run(tmp_path / "run").write()
    site, page = tmp_path / "run/sites/hospital-a", tmp_path / "page.html"
    hostile = site.rename(site.with_name(f"a{name}b"))
    shutil.copytree(hostile, site.with_name(f"copy{name}"))
    (site.with_name(f"copy{name}") / "local/audit/00" / "tail").mkdir(parents=True)
    (site.with_name(f"copy{name}") / "local/audit/00" / "checkpoint").write_bytes(b"\0")

    for command in (["verify", hostile], ["reconcile", tmp_path / "run", "--all"], ["report", tmp_path / "run"]):
        written = ["--out", str(page)] if command[0] == "report" else []
        main(["audit", *map(str, command), *written])
        out, err = capsys.readouterr()
        assert not controls(out + err), command
        main(["audit", *map(str, command), *written, "--format", "json"])
        assert json.loads(capsys.readouterr().out)["data"]
    assert "a?" in page.read_text(encoding="utf-8")
    assert not controls(page.read_text(encoding="utf-8"))


def controls(text: str) -> list[str]:
    return [mark for mark in text if not (mark.isprintable() or mark == "\n")]
