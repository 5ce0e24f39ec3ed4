"""The register, its table and its pages: everything that they name exists."""

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
LATER = {"sfda-sa-1.md"}
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
    expected = [name for name in (f"T{number:02}" for number in range(1, 50)) if name not in missing]
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
    pages = [FOLDER / "README.md", *(FOLDER / "attackers").glob("*.md"), *(FOLDER / "decisions").glob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)\)", page.read_text())]
    broken = [(page.name, link) for page, link in links if link not in LATER and not (page.parent / link).exists()]
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


def test_stale_table_is_found_and_renewed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{generate.BEGIN}\n| T01 | as it was |\n{generate.END}\nafter\n")
    monkeypatch.setattr(generate, "README", readme)
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    assert generate.main(["--check"]) == 1
    assert capsys.readouterr().err == "stale: README.md; run python -m threat_model.generate\n"
    assert "as it was" in readme.read_text()
    assert generate.main([]) == 0
    assert generate.main(["--check"]) == 0
    text = readme.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert all(f"| {threat.id} |" in text for threat in register().threat)


def test_table_is_made_only_between_its_markers() -> None:
    with pytest.raises(ValueError, match="markers"):
        generate.with_table(f"{generate.BEGIN}\n{generate.BEGIN}\n{generate.END}\n", "table")
