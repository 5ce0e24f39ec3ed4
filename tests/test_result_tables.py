"""The tables of the results pages: what is written between markers, and which pages are refused."""

import json

import pytest
from benchmark_studies import BENCHMARKS, imported_study

BLOCK = "<!-- table: some/table -->\n\n| old |\n\n<!-- end -->"


@pytest.fixture(scope="module")
def tables():
    with imported_study("tables") as module:
        yield module


@pytest.fixture
def page(tables, tmp_path, monkeypatch):
    """A page with one table, and the only table that is made."""
    monkeypatch.setattr(tables, "PAGES", tmp_path)
    monkeypatch.setattr(tables, "all_tables", lambda _folder: {"some/table": "| new |"})
    path = tmp_path / "page.md"
    path.write_text(f"before\n\n{BLOCK}\n\nafter\n")
    return path


def test_committed_pages_hold_the_committed_figures(tables):
    assert tables.main(["--check"]) == 0


def test_writes_a_table_and_leaves_the_prose(tables, page):
    assert tables.main([]) == 0
    assert page.read_text() == f"before\n\n{BLOCK.replace('old', 'new')}\n\nafter\n"
    assert tables.main(["--check"]) == 0


def test_check_names_a_stale_page_and_writes_nothing(tables, page, capsys):
    before = page.read_text()
    assert tables.main(["--check"]) == 1
    assert capsys.readouterr().err == "stale: page.md; run python benchmarks/tables.py\n"
    assert page.read_text() == before


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no table", "not on the pages exactly once: some/table"),
        (f"{BLOCK}\n{BLOCK}", "not on the pages exactly once: some/table"),
        (f"{BLOCK}\n{BLOCK.replace('some', 'other')}", "no such table: other/table"),
        (BLOCK.replace("<!-- end -->", ""), "page.md: a marker"),
        (f"{BLOCK}\n<!-- end -->", "page.md: a marker"),
        (f"<!-- table: some/table -->\n{BLOCK}", "page.md: a marker"),
    ],
    ids=["none", "twice", "unknown", "no end", "an end alone", "a begin alone"],
)
def test_refuses_pages_whose_markers_are_wrong(tables, page, capsys, text, why):
    page.write_text(text)
    assert tables.main([]) == 1
    assert capsys.readouterr().err.startswith(f"error: {why}")
    assert page.read_text() == text


def test_longest_step_of_a_case_is_over_its_seeds(tables):
    seeds = {"0": {"model": 0.5, "target": 0.0}, "1": {"model": 0.25, "target": 0.0}}
    assert tables.ratios_table({"digits": seeds}).endswith("| digits | 0.50 | – |")


def test_killed_mutants_are_counted_by_package_and_revision(tables):
    results = [
        {"mutant": "securefda/rules/beta.py: one", "outcome": "killed"},
        {"mutant": "securefda/rules/beta.py: two", "outcome": "survived"},
        {"mutant": "securefda/audit/log.py: one", "outcome": "killed"},
    ]
    run = {
        "revision": "0123456789",
        "unmutated": [{"package": "rules"}, {"package": "audit"}],
        "results": results,
    }
    head, _, row = tables.killed_table([run]).split("\n")
    assert head == "| revision | protocol | rounds | rules | site | privacy | audit | all |"
    assert row == "| `0123456` | – | – | 1 of 2 | – | – | 1 of 1 | 2 of 3 |"


def test_killed_mutants_of_renamed_packages_are_counted_under_the_present_names(tables):
    former = ("secagg", "rounds", "adaptation", "policy", "dp", "audit")
    results = [{"mutant": f"securefda/{name}/file.py: one", "outcome": "killed"} for name in former[:5]]
    run = {"revision": "0123456789", "unmutated": [{"package": name} for name in former], "results": results}
    assert tables.killed_table([run]).endswith("| 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 | 1 of 1 | – | 5 of 5 |")


def test_every_file_of_figures_but_the_mutants_is_shown(tables):
    shown = {name.split("/")[0] for name in tables.all_tables(BENCHMARKS)}
    files = {
        path.stem for path in BENCHMARKS.glob("*.json") if json.loads(path.read_text()).keys() != {"seed", "mutants"}
    }
    # The page of GPUs says "not measured" as long as there are no figures.
    of_mutants = {"mutants_before", "mutants_after", "mutants_redrawn"}
    assert of_mutants < files
    assert files - of_mutants | {"mutants", "gpu"} == shown
