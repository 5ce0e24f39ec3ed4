"""``securefda statistics``: one masked sum of tables with noise, shown at the target and at a source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from securefda.cli import main
from securefda.tasks.mapping import read_table

TABLES = Path(__file__).parents[2] / "examples" / "heart_tables"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["statistics", *arguments, "--format", "json"])
    return code, json.loads(capsys.readouterr().out)


def test_statistics_under_noise_are_charged_once_and_every_site_sees_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    noise = "training.source.dp.noise-multiplier=1.0"
    code, at_target = shown(capsys, str(TABLES / "federation.toml"), "--out", str(run), "--set", noise)
    assert code == 0
    data = at_target["data"]
    ages = [
        float(cell)
        for site in ("north", "south", "west")
        for cell in read_table(TABLES / f"{site}.csv", separator=";").cells["age"]
    ]
    age = data["sources"]["age"]
    assert age["mean"] == pytest.approx(sum(ages) / len(ages), abs=3)
    assert 0 < age["noise"] < 0.04
    assert data["site"] == "clinic"
    assert data["own"]["pressure"]["median"] > data["sources"]["pressure"]["median"] + 15
    for site in ("north", "south", "west"):
        lines = [json.loads(line) for line in (run / "sites" / site / "metrics.jsonl").read_text().splitlines()]
        assert [line["epsilon"] > 0 for line in lines] == [True]
    kit, settings = run / "kits" / "north", run / "sites" / "north" / "source.toml"
    code, at_source = shown(capsys, str(kit), "--config", str(settings))
    assert code == 0
    assert at_source["data"]["sources"] == data["sources"]
    assert (at_source["data"]["site"], at_source["data"]["rows"]) == ("north", None)
    for given, line in (
        ([str(TABLES / "federation.toml"), "--out", str(run)], f"{run} holds a run already"),
        ([str(run), "--out", "elsewhere"], "is of a new run or a kit"),
        ([str(run), "--write", "new.toml"], "needs the federation's file"),
        ([str(kit), "--config", str(settings), "--out", str(tmp_path)], "north has no model.safetensors there"),
    ):
        assert main(["statistics", *given]) != 0
        assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["digits"], "task.factory: securefda.tasks.digits:Digits reads no tables that are described by options"),
        (["none.toml"], "none.toml: is missing"),
        (["empty"], "is not a startup kit"),
    ],
)
def test_what_has_no_statistics_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    line: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    assert main(["statistics", *arguments]) != 0
    assert line in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]
