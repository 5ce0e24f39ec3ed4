"""``securefda audit privacy``: what it prints of an honest site, how a fault ends it, and that it leaves nothing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from budget_owner import Owner

from securefda.cli import main
from securefda.samples import sample
from threat_model.sites import roster_of
from threat_model.switches import switched_off
from threat_model.without_noise import noise_scaled

FEDERATION = """
[federation]
name = "drawn"
target = "clinic"
sources = ["east", "west", "north"]
[task]
factory = "audited_tasks:Drawn"
[training.source]
optimizer = "sgd"
learning-rate = 0.1
batch-size = 24
dp.noise-multiplier = 4.0
"""
OURS = "securefda*"
BELOW = "below the ledger: nothing contradicts it"
ABOVE = "ABOVE the ledger: do not train with these settings"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files; tasks beside this file are found."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


@pytest.fixture
def federation(tmp_path: Path) -> Path:
    file = tmp_path / "federation.toml"
    file.write_text(FEDERATION)
    return file


def audit(*arguments: object) -> int:
    return main(["audit", "privacy", *map(str, arguments)])


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    envelope: dict[str, Any] = json.loads(capsys.readouterr().out)
    return envelope


def test_an_honest_site_is_below_its_ledger_in_text_and_in_json(
    federation: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its guesses would have to be five standard deviations better than they are on average to end it otherwise."""
    asked = ["--canaries", "600", "--trainings", "10", "--rounds", "2"]
    assert audit(federation, *asked, "--site", "west") == 0
    text = capsys.readouterr().out
    assert audit(federation, *asked, "--delta", "1e-6", "--format", "json") == 0
    data = found(capsys)["data"]

    shown = dict(line.split("  ", 1) for line in text.splitlines() if "  " in line)
    assert shown["site"].strip() == "west, 24 rows"
    assert shown["budget"].strip() == "epsilon 8 at delta 1e-05 by rdp"
    assert shown["noise"].strip() == "on sums of gradients: noise multiplier 4, clip norm 1"
    assert shown["training"].strip() == "2 rounds of 1 step, sampling rate 1"
    assert shown["canaries"].strip() == "600 in 10 trainings, up to 60 in each"
    assert shown["verdict"].strip() == BELOW
    assert "proves nothing about it" in " ".join(text.split())
    assert "Nothing was released, and the site's ledger was not touched" in " ".join(text.split())
    assert (data["site"], data["release"], data["guesses"], data["delta"]) == ("east", "training", 150, 1e-6)
    assert (data["above_ledger"], data["verdict"]) == (False, BELOW)
    assert 0 <= data["epsilon_at_least"] < data["epsilon_of_ledger"] < 2
    assert list(temporary.glob(OURS)) == []


def test_a_quarter_of_the_noise_ends_with_an_exit_code_of_its_own(
    federation: Path, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """About 632 of 750 guesses are right, six standard deviations more than the ledger allows."""
    with switched_off(noise_scaled(0.25), roster=roster_of(3)):
        assert audit(federation, "-q", "--canaries", "3000", "--trainings", "30") == 17
    out, err = capsys.readouterr()

    assert out.splitlines()[9].split("  ")[-1].strip() == ABOVE
    line, hint, *rest = err.splitlines()
    assert line.startswith(f"error: east is {ABOVE}; epsilon is at least 1.")
    assert line.endswith("and the ledger counts 1.0126")
    assert hint.startswith("hint: audit again: by chance at most 5% of audits end so")
    assert (rest, list(temporary.glob(OURS))) == ([], [])


def test_a_site_audits_by_its_kit_and_its_own_ledger_stays_as_it_was(owner: Owner, temporary: Path) -> None:
    owner.train(1)
    before, files = owner.ledgers(), sorted(owner.kit.rglob("*"))
    owner.capsys.readouterr()

    assert audit(owner.kit, "--canaries", "40", "--trainings", "1", "--format", "json") == 0

    data = found(owner.capsys)["data"]
    assert (data["site"], data["samples"], data["noise_multiplier"]) == ("source-1", 144, 1.1)
    assert (data["sampling_rate"], data["steps"], data["rounds"]) == (0.2, 10, 1)
    assert (owner.ledgers(), sorted(owner.kit.rglob("*"))) == (before, files)
    assert list(temporary.glob(OURS)) == []


def test_a_target_audits_by_its_kit_and_hears_where_no_result_could_be_above(owner: Owner) -> None:
    owner.capsys.readouterr()
    little = ["--canaries", "40", "--trainings", "1", "--set", "training.dp.noise-multiplier=0.5"]

    assert audit(owner.kit.with_name("target"), *little) == 0

    out = " ".join(owner.capsys.readouterr().out.split())
    assert "site target, 100 rows" in out
    weak = "warning: no result could be above this ledger, since 10 guesses show at most epsilon 1.05"
    assert re.search(rf"{weak}\d*: more --canaries show more A result", out)
    assert audit(owner.kit.with_name("target"), *little, "--guesses", "10", "--rounds", "2") == 0
    out = " ".join(owner.capsys.readouterr().out.split())
    assert "more --canaries and --guesses show more, and fewer --rounds cost less" in out


def test_a_policy_of_the_analytic_rule_is_audited_by_its_moments(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ("strategy.rule=analytic", "strategy.rounds=1", "strategy.warm-up-rounds=0")
    noise = "training.source.dp.noise-multiplier=2"
    rule = [argument for setting in (*settings, noise) for argument in ("--set", setting)]
    few = ["--canaries", "40", "--trainings", "1", "--format", "json"]
    heart = sample("fed_heart")
    assert main(["federation", "init", str(heart), "--out", str(tmp_path / "kits"), *rule]) == 0
    capsys.readouterr()

    for place in ([tmp_path / "kits" / "va"], [heart, "--site", "va", *rule]):
        assert audit(*place, *few) == 0
        data = found(capsys)["data"]
        assert (data["site"], data["release"], data["steps"], data["sampling_rate"]) == ("va", "moments", 1, 1.0)
        assert data["max_grad_norm"] is None  # the target sets it


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        ([], 4, "training.source.dp.noise-multiplier: is 0 at source-1: no epsilon is claimed, so none is audited"),
        (
            ["--site", "target"],
            4,
            "training.target.dp.noise-multiplier: is 0 at target: no epsilon is claimed, so none",
        ),
        (["--site", "nowhere"], 4, "--site nowhere: is no site of this federation"),
        (["--config", "x"], 4, "--config: is of a kit's site, and this is a federation's file"),
        (["--canaries", "0"], 4, "arguments: invalid value for '--canaries'"),
        (["--canaries", "10"], 4, "--guesses: 2 guesses prove nothing, even if all are right"),
        (["--delta", "1"], 4, "--delta: must be between 0 and 1, not 1"),
        (["--set", "strategy.rule=nonsense"], 4, "strategy.rule: must be"),
        (
            ["--set", "training.source.dp.noise-multiplier=1e300"],
            4,
            "training.source.dp.noise-multiplier: is so small, or so large, that no finite epsilon is known",
        ),
    ],
)
def test_what_cannot_be_asked_is_one_line(
    arguments: list[str], code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit("digits", *arguments) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {line}")
    assert len(err.splitlines()) <= 2


def test_a_source_that_a_rule_asks_for_nothing_is_not_audited(capsys: pytest.CaptureFixture[str]) -> None:
    noise = "training.source.dp.noise-multiplier=2"
    assert audit("digits", "--set", noise, "--set", "strategy.rule=target_only") == 4
    assert capsys.readouterr().err.startswith("error: strategy.rule = target_only: no updates are asked of source-1")


@pytest.mark.parametrize(
    "settings", [("strategy.rule=source_only", "training.target.dp.noise-multiplier=2"), ("strategy.rule=analytic",)]
)
def test_a_target_that_trains_in_no_round_is_not_audited(
    settings: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    given = [part for setting in (*settings, "strategy.rounds=1") for part in ("--set", setting)]
    assert audit("digits", "--site", "target", *given) == 4
    rule = settings[0].partition("=")[2]
    assert capsys.readouterr().err.startswith(f"error: strategy.rule = {rule}: no updates are asked of target")


def test_a_kit_of_another_site_or_without_a_permitted_release_is_refused(owner: Owner) -> None:
    for arguments, line in (
        (["--site", "source-2"], f"--site: {owner.kit} is the kit of source-1"),
        (["--moments"], "allowed-rules: no second moments are asked of source-1"),
    ):
        owner.capsys.readouterr()
        assert audit(owner.kit, *arguments) == 4
        assert owner.capsys.readouterr().err.startswith(f"error: {line}")
