"""``securefda budget plan``: the planner's numbers, with the guarantee beside every epsilon; what cannot be planned."""

from __future__ import annotations

import json
import tomllib
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from securefda.cli import main
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import ASSUMPTIONS, GUARANTEE, DpEvent
from securefda.site.config import TrainingSection
from securefda.site.policy import SourcePolicy

PLAN = ["budget", "plan"]
SCHEDULE = ["--rounds", "50", "--samples", "199", "--batch", "16", "--epochs", "1"]
DELTA = ["--delta", "1e-5"]
FEW = ["--rounds", "2", "--samples", "199", "--batch", "16", *DELTA]
SVG = "{http://www.w3.org/2000/svg}"


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*PLAN, *arguments, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["exit_code"]) == ("ok", 0)
    data: dict[str, Any] = found["data"]
    return data


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*PLAN, *arguments]) == 0
    return capsys.readouterr().out


def in_one_line(text: str) -> str:
    return " ".join(text.split())


def charged(noise: float, rounds: int) -> float:
    """Epsilon of rounds of 13 steps, each of which draws a row with 1/13, as the ledger would count them."""
    return epsilon([DpEvent("run", number, 0, noise, 1 / 13, 13, 1.0) for number in range(1, rounds + 1)], 1e-5)


def test_plan_for_an_epsilon_gives_the_least_noise_with_rate_steps_and_curve(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = planned(capsys, *SCHEDULE, *DELTA, "--epsilon", "3")

    noise = found["noise_multiplier"]
    assert found["epsilon"] == charged(noise, 50) <= 3 < charged(round(noise - 0.001, 3), 50)
    assert (found["sampling_rate"], found["steps_per_round"], found["steps"]) == (1 / 13, 13, 650)
    assert found["epsilon_after_round"] == [charged(noise, count) for count in range(51)]
    assert sum(found["epsilon_of_round"]) == pytest.approx(found["epsilon"])
    assert found["mean_epsilon_per_round"] == pytest.approx(found["epsilon"] / 50)
    assert (found["target_epsilon"], found["accountant"], found["warnings"]) == (3, "rdp", [])


def test_what_a_plan_says_to_paste_makes_a_site_train_so(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--rounds", "12", "--samples", "239", "--batch", "32", *DELTA, "--epsilon", "4")
    settings, policy = tomllib.loads(found["toml"]["settings"]), tomllib.loads(found["toml"]["policy"])
    training = TrainingSection.model_validate(settings["training"])
    assert (training.batch_size, training.epochs) == (32, 1)
    assert training.dp.noise_multiplier == found["noise_multiplier"]
    permitted = SourcePolicy.model_validate(policy)
    assert permitted.dp.required
    assert (permitted.dp.target_epsilon, permitted.dp.target_delta) == (4.0, 1e-5)
    text = printed(capsys, "--rounds", "12", "--samples", "239", "--batch", "32", *DELTA, "--epsilon", "4")
    assert found["toml"]["settings"] in text
    assert found["toml"]["policy"] in text


def test_plan_for_a_noise_gives_the_epsilon_that_its_rounds_are_charged(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, *SCHEDULE, *DELTA, "--noise", "1.1")

    assert found["epsilon"] == charged(1.1, 50)
    assert (found["noise_multiplier"], found["target_epsilon"]) == (1.1, None)


@pytest.mark.parametrize(("question", "answer"), [("--noise", "epsilon"), ("--epsilon", "noise_multiplier")])
def test_prv_is_asked_where_it_is_named_and_gives_less_epsilon_and_needs_less_noise(
    question: str, answer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    by_rdp = planned(capsys, *FEW, question, "2")

    by_prv = planned(capsys, *FEW, question, "2", "--accountant", "prv")

    assert (by_rdp["accountant"], by_prv["accountant"]) == ("rdp", "prv")
    assert 0 < by_prv[answer] < by_rdp[answer]


def test_every_form_of_a_plan_says_what_epsilon_is_of_what_it_rests_on_and_that_nothing_is_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "curve.svg"

    text = in_one_line(printed(capsys, *FEW, "--noise", "1.1", "--plot", str(plot)))
    data = planned(capsys, *FEW, "--epsilon", "2")

    drawn = ET.parse(plot).getroot().findtext(f"{SVG}desc")
    assert drawn is not None
    for form in (text, drawn, " ".join([data["guarantee"], data["assumptions"], data["note"]])):
        assert GUARANTEE in form
        assert ASSUMPTIONS in form
        assert "A plan spends nothing" in form
        assert "--config FILE counts it" in form


def test_text_shows_the_first_and_the_last_round_of_a_long_curve_and_not_all_between(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = printed(capsys, *SCHEDULE, *DELTA, "--noise", "1.1").splitlines()

    start = next(place for place, line in enumerate(lines) if line.startswith("after round"))
    rows = [line.split() for line in lines[start + 1 : lines.index("", start)]]
    assert len(rows) == 11
    assert [rows[0][0], rows[-1][0]] == ["1", "50"]
    assert rows[0][1] == rows[0][2]


def test_text_of_an_upper_bound_is_never_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    for noise in ("0.9", "1.1", "1.3", "2.7"):
        bound = planned(capsys, *FEW, "--noise", noise)["epsilon"]

        lines = printed(capsys, *FEW, "--noise", noise).splitlines()

        (line,) = (line for line in lines if line.startswith("epsilon  "))
        assert bound <= float(line.split()[1]) < bound + 0.0002


@pytest.mark.parametrize("delta", ["0.01", str(1 / 199)])
def test_delta_of_one_over_the_rows_or_more_is_warned_of_under_its_option(
    delta: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*SCHEDULE, "--noise", "2", "--delta", delta]

    (warning,) = planned(capsys, *arguments)["warnings"]

    assert warning.startswith("--delta: ")
    assert "is not below 1/199" in warning
    assert f"warning: {warning}" in in_one_line(printed(capsys, *arguments))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([*SCHEDULE, *DELTA], "--epsilon, --noise: one of the two is needed"),
        ([*SCHEDULE, *DELTA, "--epsilon", "three"], "invalid value for '--epsilon'"),
        ([*SCHEDULE, *DELTA, "--epsilon", "1e-9"], "--epsilon: 1e-09 cannot be kept over 50 rounds"),
        *(
            ([*SCHEDULE, *DELTA, "--noise", noise], f"--noise: with {noise} no finite epsilon is known")
            for noise in ("1e-154", "1e-160", "1e-200")
        ),
        ([*SCHEDULE, "--noise", "1"], "missing option '--delta'"),
        ([*FEW, "--noise", "1", "--set", "training.epochs=2"], "--set: is of a site's settings"),
        (["--rounds", "2", "--noise", "1", "--config", "nowhere.toml"], "nowhere.toml: is missing"),
        ([*FEW, "--noise", "1", "--config", "nowhere.toml"], "--samples: is what --config says already"),
        ([*SCHEDULE, "--epsilon", "1", "--delta", "1"], "--delta: must be between 0 and 1"),
        ([*SCHEDULE, *DELTA, "--noise", "1", "--rounds", "10001"], "invalid value for '--rounds'"),
        ([*SCHEDULE, *DELTA, "--noise", "1", "--epochs", "99999999"], "--rounds: make 64999999350 steps, more than"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_cannot_be_planned_ends_with_4_one_line_and_neither_result_nor_file(
    arguments: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "curve.svg"

    assert main([*PLAN, *arguments, "--plot", str(plot)]) == 4

    out, err = capsys.readouterr()
    assert out == ""
    first, *hint = err.splitlines()
    assert first.startswith("error: ")
    assert error in first
    assert all(line.startswith("hint: ") for line in hint)
    assert len(hint) <= 1
    assert not plot.exists()


def test_plot_is_an_image_by_itself_with_the_curve_and_its_axes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "curve.svg"

    found = planned(capsys, *SCHEDULE, *DELTA, "--noise", "1.1", "--plot", str(plot))

    root = ET.parse(plot).getroot()
    words = {element.text for element in root.iter(f"{SVG}text")}
    assert found["plot"] == str(plot)
    assert root.tag == f"{SVG}svg"
    assert {"round", "epsilon at delta 1e-05, one row added or removed"} <= words
    longest = max((element.get("points", "") for element in root.iter(f"{SVG}polyline")), key=len)
    assert longest.count(",") == 51
    style = root.findtext(f"{SVG}style") or ""
    assert "\n.line { fill: none; stroke-linejoin: round; stroke: currentColor; }\n" in style
    assert "var(" not in style


def test_plot_replaces_no_file_and_a_folder_that_is_missing_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept.svg"
    kept.write_text("mine")

    assert main([*PLAN, *FEW, "--noise", "1.1", "--plot", str(kept)]) == 4
    assert f"error: --plot: {kept} exists already" in capsys.readouterr().err
    assert kept.read_text() == "mine"
    assert main([*PLAN, *FEW, "--noise", "1.1", "--plot", str(tmp_path / "nowhere" / "curve.svg")]) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert "nowhere/curve.svg is in a folder that does not exist" in err
