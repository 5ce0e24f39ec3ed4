"""``securefda config``: what keys mean, and the settings that a process would have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from securefda.cli import main
from securefda.samples import sample
from securefda.site.config import load_source


def test_paths_are_shown_as_a_user_would_type_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kits = tmp_path / "kits"
    assert main(["federation", "init", "digits", "--out", str(kits)]) == 0
    assert not (kits / "target" / "local" / "policy.toml").exists()  # a target has none
    capsys.readouterr()
    assert main(["config", "show", str(kits / "source-1")]) == 0
    shown = capsys.readouterr().out
    assert f'source.kit settings.toml "{kits}/source-1"' in " ".join(shown.split())
    assert ".." not in shown


def test_dots_stay_where_a_link_leads_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "kept" / "local").mkdir(parents=True)
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "local").symlink_to(tmp_path / "kept" / "local")
    file = tmp_path / "kit" / "local" / "settings.toml"
    file.write_text('[source]\nkit = ".."\nout = "run"\n[task]\nfactory = "a:B"\n')
    assert load_source(file).source.kit.resolve() == tmp_path / "kept"


def test_a_key_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "explain", "strategy.rounds"]) == 0
    assert capsys.readouterr().out == (
        "strategy.rounds\n"
        "  Rounds of the run, at least 1.\n"
        "  takes    whole number\n"
        "  default  20\n"
        "  stands   as rounds in [strategy] of a federation's file, the aggregator's settings\n"
        "  set by   --set strategy.rounds=VALUE; else the variable SECUREFDA_STRATEGY_ROUNDS; else the file\n"
    )


def test_a_table_lists_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "explain", "session"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["key", "default", "what", "it", "means"]
    assert [line.split()[0] for line in lines[1:9]] == [
        "session.graph",
        "session.dropouts",
        "session.threshold",
        "session.bits",
        "session.down-link",
        "session.key-agreement",
        "session.clip",
        "session.max-samples",
    ]


def test_effective_settings_say_where_each_came_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECUREFDA_SESSION_CLIP", "2.5")
    assert main(["config", "show", "digits", "--set", "strategy.rounds=3", "--format", "json"]) == 0
    (rows,) = json.loads(capsys.readouterr().out)["data"]["files"].values()
    found = {row["key"]: (row["value"], row["origin"]) for row in rows}
    assert found["session.clip"] == ("2.5", "SECUREFDA_SESSION_CLIP")
    assert found["strategy.rounds"] == ("3", "--set")
    assert found["strategy.warm-up-rounds"] == ("1", "to fit strategy.rounds (--set)")
    assert found["strategy.rule"] == ('"fedda_auto"', "digits.toml")
    assert found["transport.listen"] == ('"127.0.0.1:0"', "default")


def test_of_a_kit_its_settings_and_its_policy_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["federation", "init", str(sample("three_hospitals")), "--out", str(tmp_path / "kits")]) == 0
    capsys.readouterr()
    kit = tmp_path / "kits" / "hospital-a"
    assert main(["config", "show", str(kit), "--changed"]) == 0
    settings, policy = capsys.readouterr().out.split("\n\n")
    assert settings.startswith(f"{kit / 'local' / 'settings.toml'}\nsource.kit")
    assert policy.startswith(f"{kit / 'local' / 'policy.toml'}\nmax-visibility")
    assert "default" not in settings.split()
    longest, short = (
        next(line for line in policy.splitlines() if line.startswith(key)) for key in ("allowed-t", "min")
    )
    assert len(longest) > 120
    assert len(short) < 60  # a long value does not push what stands in other lines to the right
    assert main(["config", "show", str(tmp_path / "kits" / "clinic"), "--changed"]) == 0
    assert "policy.toml" not in capsys.readouterr().out


def test_a_file_without_a_table_of_ours_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "other.toml"
    file.write_text("[tool]\nx = 1\n")
    assert main(["config", "show", str(file)]) == 4
    assert "has none of the tables [federation], [aggregator] and [source]" in capsys.readouterr().err


def test_option_of_a_task_is_not_sent_to_explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "clinic.csv"
    data.write_text("age,ill\n" + "".join(f"{30 + i % 40},{i % 2}\n" for i in range(200)))
    assert main(["new", str(tmp_path / "tables"), "--tabular", str(data), "--label", "ill"]) == 0
    wrong = ["--set", "task.options.hidden-units=-3"]
    assert main(["task", "check", str(tmp_path / "tables" / "federation.toml"), *wrong]) == 4
    said = capsys.readouterr().err
    assert "error: task.options.hidden-units: must be at least 0, not -3" in said
    assert "hint: the manual's page on the task says what it takes" in said
    assert main(["config", "explain", "task.options.hidden-units"]) == 4
    assert "the manual's page on tables and images lists those of Tabular" in capsys.readouterr().err


def test_errors_of_a_file_come_with_a_hint_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "federation.toml"
    file.write_text(
        '[federation]\nname = "x"\nsources = ["a", "b", "c"]\n[task]\nfactry = "x:Y"\n[session]\nclip = 0\n'
    )
    assert main(["simulate", str(file)]) == 4
    assert capsys.readouterr().err == (
        f"error: task.factry: unknown key ({file})\nhint: did you mean task.factory?\n"
        f"error: session.clip: must be above 0, not 0 ({file})\n"
        "hint: securefda config explain session.clip says what it takes\n"
    )
    assert main(["simulate", str(file), "--format", "json"]) == 4
    said = json.loads(capsys.readouterr().out)
    assert (said["error_code"], said["hint"]) == ("ConfigErrors", "did you mean task.factory?")
    assert [error["message"].partition(":")[0] for error in said["errors"]] == ["task.factry", "session.clip"]
