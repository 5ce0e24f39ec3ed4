"""The register and its pages: everything that they name exists, and none is stale."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from securefda.errors import ConfigError
from securefda.threat_register import load_register
from threat_model import generate
from threat_model.register import FOLDER, ROOT, files_by_threat, register

pytestmark = pytest.mark.machinery

PAGES = {
    "aggregator.md": {"HbC-A", "Mal-A"},
    "colluding-sources.md": {"COL"},
    "source.md": {"CS", "MS"},
    "network.md": {"NET"},
    "outsider.md": {"OUT"},
    "insider.md": {"INS"},
}
ROW = """
[[threat]]
id = "T01"
title = "a threat"
attackers = ["Mal-A"]
asset = "an update"
levels = ["sum"]
status = "mitigated"
mitigation = "a check"
modules = ["securefda/protocol/session_checks.py"]
residual = "none"
control = true
"""


def test_threats_are_those_that_were_given_an_id() -> None:
    missing = {"T23", "T24", "T25", "T26"}
    expected = [name for name in (f"T{number:02}" for number in range(1, 51)) if name not in missing]
    assert [threat.id for threat in register().threat] == expected


def test_every_module_of_a_mitigation_is_there_and_can_be_imported() -> None:
    modules = sorted({module for threat in register().threat for module in threat.modules})
    for module in modules:
        assert (ROOT / module).is_file(), module
        if module.endswith(".py"):
            importlib.import_module(module.removesuffix(".py").replace("/", "."))
    assert len(modules) > 20


def test_every_mitigated_threat_has_a_positive_control() -> None:
    assert [threat.id for threat in register().threat if threat.status == "mitigated" and not threat.control] == []


@pytest.mark.parametrize(
    ("row", "key"),
    [
        (ROW.replace("title", "titel"), "threat.0.titel"),
        (ROW.replace('title = "a threat"\n', ""), "threat.0.title"),
        (ROW.replace('"a threat"', '""'), "threat.0.title"),
        (ROW.replace('"T01"', '"T1"'), "threat.0.id"),
        (ROW.replace("Mal-A", "Eve"), "threat.0.attackers.0"),
        (ROW.replace('["sum"]', '["total"]'), "threat.0.levels.0"),
        (ROW.replace('["sum"]', "[]"), "threat.0.levels"),
        (ROW.replace('"mitigated"', '"fixed"'), "threat.0.status"),
        (ROW.replace("control = true", 'control = "yes"'), "threat.0.control"),
        (ROW.replace('["securefda/protocol/session_checks.py"]', "[]"), "T01"),
        (ROW.replace('"mitigated"', '"planned"'), "T01"),
        (ROW.replace('"mitigated"', '"planned"').replace("= true", "= false") + 'condition = "noise"\n', "T01"),
        (ROW + ROW, "threat"),
        (ROW.replace("T01", "T02") + ROW, "threat"),
        ("threats = 1\n" + ROW, "threats"),
        ("", "threat"),
    ],
    ids=[
        "unknown key",
        "missing key",
        "empty text",
        "no id",
        "no attacker of ours",
        "no level of ours",
        "no level",
        "no status of ours",
        "no truth value",
        "mitigated by nothing",
        "control of nothing",
        "condition of nothing",
        "an id twice",
        "ids that fall",
        "unknown table",
        "empty",
    ],
)
def test_malformed_register_is_refused_with_the_key(row: str, key: str, tmp_path: Path) -> None:
    (tmp_path / "threats.toml").write_text(ROW)
    assert len(load_register(tmp_path).threat) == 1
    (tmp_path / "threats.toml").write_text(row)
    with pytest.raises(ConfigError) as refused:
        load_register(tmp_path)
    assert refused.value.key == key


@pytest.mark.parametrize(("page", "codes"), PAGES.items(), ids=PAGES)
def test_page_of_an_attacker_names_its_threats_and_no_others(page: str, codes: set[str]) -> None:
    text = (FOLDER / "attackers" / page).read_text()
    attempts = text.split("**What it can try.**")[1].split("**What it gets.**")[0]
    own = {threat.id for threat in register().threat if codes & set(threat.attackers)}
    assert set(re.findall(r"T\d\d", attempts)) == own


def test_there_is_a_page_for_every_attacker() -> None:
    assert {path.name for path in (FOLDER / "attackers").iterdir()} == set(PAGES)
    assert {code for threat in register().threat for code in threat.attackers} == set().union(*PAGES.values())


def test_links_of_the_pages_lead_somewhere() -> None:
    links = [(page, link) for page in FOLDER.rglob("*.md") for link in re.findall(r"\]\(([^)#:]+)", page.read_text())]
    broken = [(page.name, link) for page, link in links if not (page.parent / link).exists()]
    assert broken == []
    assert len(links) > 20


def test_tests_of_a_threat_are_found_by_their_marks(tmp_path: Path) -> None:
    (tmp_path / "threat_model" / "tests").mkdir(parents=True)
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    marked = 'import pytest\n\n@pytest.mark.threat("T01", "T02")\ndef test_a(): ...\n'
    (tmp_path / "threat_model" / "tests" / "test_a.py").write_text(marked)
    (tmp_path / "tests" / "deep" / "test_b.py").write_text('import pytest\npytestmark = [pytest.mark.threat("T02")]\n')
    (tmp_path / "tests" / "deep" / "test_c.py").write_text("text = \"pytest.mark.threat('T03')\"\n")
    assert files_by_threat(tmp_path) == {
        "T01": ("threat_model/tests/test_a.py",),
        "T02": ("tests/deep/test_b.py", "threat_model/tests/test_a.py"),
    }


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one threat and the pages that state the guarantee, all of them written."""
    for page in (generate.WORDED_IN, *generate.QUOTED_IN):
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(f"before\n{generate.BEGIN}\n> as it was\n{generate.END}\nafter\n")
    residual = 'residual = "as in T01, T02 and T99; see decision 0001 and docs/explanation/limits.md"'
    rows = ROW.replace('residual = "none"', residual) + ROW.replace("T01", "T02")
    (tmp_path / "threat_model" / "threats.toml").write_text(rows)
    (tmp_path / "threat_model" / "decisions").mkdir()
    (tmp_path / "threat_model" / "decisions" / "0001-why.md").touch()
    assert generate.main([], tmp_path) == 0
    return tmp_path


def test_a_page_links_the_threats_decisions_and_pages_it_names(tree: Path) -> None:
    page = (tree / "threat_model/threats/T01.md").read_text()
    links = dict(re.findall(r"\[([^\]]+)\]\(([^)]+)\)", page))
    assert links["T02"] == "T02.md"
    assert links["decision 0001"] == "../decisions/0001-why.md"
    assert links["docs/explanation/limits.md"] == "../../docs/explanation/limits.md"
    assert not {"T01", "T99"} & set(links)


def test_a_condition_is_named_in_the_list_and_on_the_page(tree: Path) -> None:
    rows = tree / "threat_model/threats.toml"
    rows.write_text(rows.read_text() + 'condition = "only with noise"\n')
    assert generate.main([], tree) == 0
    listed, page = ((tree / f"threat_model/threats/{name}.md").read_text() for name in ("README", "T02"))
    assert "[T02: a threat](T02.md), **only with noise** |" in listed
    assert "[mitigated](../README.md#the-register), **only with noise**\n" in page


def test_a_page_of_a_threat_that_is_gone_is_found_and_removed(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = tree / "threat_model/threats/T03.md"
    gone.touch()
    assert generate.main(["--check"], tree) == 1
    assert capsys.readouterr().err == "stale: threat_model/threats/T03.md; run python -m threat_model.generate\n"
    assert generate.main([], tree) == 0
    assert not gone.exists()
    assert generate.main(["--check"], tree) == 0


@pytest.mark.parametrize("page", generate.QUOTED_IN)
def test_other_words_for_the_guarantee_are_found_and_replaced(
    page: str, tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = (tree / page).read_text()
    (tree / page).write_text(written.replace("as it was", "in other words"))
    assert generate.main(["--check"], tree) == 1
    assert capsys.readouterr().err == f"stale: {page}; run python -m threat_model.generate\n"
    assert generate.main([], tree) == 0
    assert (tree / page).read_text() == written


def test_a_page_without_its_place_for_the_guarantee_is_refused(tree: Path) -> None:
    (tree / "SECURITY.md").write_text("no place\n")
    with pytest.raises(ValueError, match=r"SECURITY\.md"):
        generate.main(["--check"], tree)
