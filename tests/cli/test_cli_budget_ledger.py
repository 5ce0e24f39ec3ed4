"""``securefda budget init``, ``show``, ``reset`` and ``plan`` on a site's ledger: what they make, count and print."""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from budget_owner import ROUND, Owner, spent

from securefda.cli import main
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import ASSUMPTIONS, GUARANTEE, TERMS, Budget, DpEvent

SVG = "{http://www.w3.org/2000/svg}"


def test_init_makes_the_ledger_of_the_sites_rows_and_says_what_the_budget_allows(bare: Owner) -> None:
    found = bare.data("init")

    assert bare.ledger.stat().st_mode & 0o777 == 0o600
    assert (found["site"], found["data_set"], found["samples"], found["spent"]) == ("source-1", "training-rows", 144, 0)
    assert (found["accountant"], found["delta"], found["limit"], found["left"]) == ("rdp", 1e-5, 8, 8)
    ahead = found["next_round"]
    assert (ahead["noise_multiplier"], ahead["sampling_rate"], ahead["steps"]) == ROUND
    assert ahead["epsilon"] == spent(1)
    assert spent(ahead["rounds_left"]) <= 8 < spent(ahead["rounds_left"] + 1)
    assert (found["guarantee"], found["assumptions"], found["warnings"]) == (GUARANTEE, ASSUMPTIONS, [])


def test_where_only_the_analytic_rule_is_permitted_a_round_costs_one_release_over_all_rows(bare: Owner) -> None:
    rules = re.search(r"^allowed-rules = \[.*?\]", (bare.kit / "local" / "policy.toml").read_text(), re.M | re.S)
    assert rules is not None
    bare.change_policy(rules[0], 'allowed-rules = ["analytic"]')
    release = DpEvent("r", 1, 0, 1.1, 1.0, 1, max_grad_norm=1.0)

    ahead = bare.data("init")["next_round"]

    assert (ahead["sampling_rate"], ahead["steps"], ahead["max_grad_norm"]) == (1.0, 1, None)
    assert ahead["epsilon"] == epsilon([release], 1e-5)
    assert epsilon([release] * ahead["rounds_left"], 1e-5) <= 8 < epsilon([release] * (ahead["rounds_left"] + 1), 1e-5)
    assert "more: one release of second moments of all rows, noise multiplier 1.1 rounds" in bare.run("show")[1]
    planned = bare.data("plan", "--rounds", "1", "--noise", "1.1")
    assert planned["epsilon"] == ahead["epsilon"]
    assert "batch-size" not in planned["toml"]["settings"]
    for option in ("--batch", "--epochs"):
        code, err = bare.refused("plan", "--rounds", "1", "--noise", "1.1", option, "2")
        assert (code, f"{option}: has no part in analytic" in err) == (4, True)


def test_where_the_analytic_rule_is_permitted_beside_others_show_has_both_prices(bare: Owner) -> None:
    (rules,) = re.findall(r"allowed-rules = \[", (bare.kit / "local" / "policy.toml").read_text())
    bare.change_policy(rules, f'{rules}"analytic", ')
    release = DpEvent("r", 1, 0, 1.1, 1.0, 1, max_grad_norm=1.0)

    found = bare.data("init")

    assert (found["next_round"]["steps"], found["moments"]["steps"]) == (10, 1)
    assert found["moments"]["epsilon"] == epsilon([release], 1e-5)
    out = bare.run("show")[1]
    assert "next round as set" in out
    assert "next analytic run as set" in out
    assert "what is left does not pay for a run of the rule analytic" not in out
    bare.change_policy("target-epsilon = 8.0", "target-epsilon = 3.0")
    assert "what is left does not pay for a run of the rule analytic" in bare.run("show")[1]


def test_the_targets_ledger_is_of_its_rows_under_the_budget_of_its_settings(bare: Owner) -> None:
    target = Owner(bare.kit.with_name("target"), bare.capsys)
    target.change("target-epsilon = 8.0", "target-epsilon = 5.0")

    found = target.data("init")

    assert (found["site"], found["samples"], found["limit"]) == ("target", 100, 5)
    assert found["next_round"]["noise_multiplier"] == 1.2


def test_show_counts_what_was_charged_finished_and_interrupted_over_runs(owner: Owner) -> None:
    owner.train(1, 2)
    owner.train(1, run="run-b", finish=False)

    found = owner.data("show", "--rounds")

    assert found["rounds"] == {"charged": 3, "finished": 2, "unfinished": 1}
    assert (found["spent"], found["left"]) == (spent(3), max(0.0, 8 - spent(3)))
    assert found["next_round"]["epsilon"] == pytest.approx(spent(4) - spent(3))
    assert [(one["run"], one["round"], one["state"], one["counts"]) for one in found["charges"]] == [
        ("run-a", 1, "finished", True),
        ("run-a", 2, "finished", True),
        ("run-b", 1, "unfinished", True),
    ]
    assert [one["spent_after"] for one in found["charges"]] == [spent(1), spent(2), spent(3)]


def test_every_showing_prints_what_an_epsilon_is_of_and_no_spent_one_below_the_bound(owner: Owner) -> None:
    owner.train(1)

    _, out, _ = owner.run("show", "--rounds")

    assert TERMS[1:] in out
    shown = float(out.partition("spent epsilon ")[2].split()[0])
    assert spent(1) <= shown < spent(1) + 0.0002
    left = float(out.partition("left epsilon ")[2].split()[0])
    assert 8 - spent(1) - 0.0002 < left <= 8 - spent(1)
    assert "run run-a row time round attempt" in out


def test_a_policy_that_has_changed_is_what_the_ledger_is_held_against(owner: Owner) -> None:
    owner.train(1, 2)
    owner.change_policy('accountant = "rdp"', 'accountant = "prv"')
    owner.change_policy("target-epsilon = 8.0", "target-epsilon = 2.0")
    owner.change_policy("target-delta = 1e-05", "target-delta = 0.01")

    found = owner.data("show")

    assert (found["accountant"], found["delta"], found["limit"], found["left"]) == ("prv", 0.01, 2, 0)
    assert found["spent"] == epsilon([DpEvent("r", 1, 0, *ROUND, max_grad_norm=1.0)] * 2, 0.01, "prv")
    assert found["next_round"]["rounds_left"] == 0
    of_delta, exhausted = found["warnings"]
    assert of_delta.startswith("dp.target-delta: 0.01 is not below 1/144")
    assert exhausted == "more is spent than the budget of 2 allows now: nothing trains on these rows"


def test_a_targets_delta_is_warned_of_under_the_key_of_its_settings(bare: Owner) -> None:
    target = Owner(bare.kit.with_name("target"), bare.capsys)

    (warning,) = target.data("init", "--set", "privacy.budget.target-delta=0.01")["warnings"]

    assert warning.startswith("privacy.budget.target-delta: 0.01 is not below 1/100")


@pytest.mark.parametrize("value", ["0.0", "-1.0"])
def test_a_budget_that_is_not_above_0_is_refused_with_its_key(bare: Owner, value: str) -> None:
    bare.change("target-epsilon = 8.0", f"target-epsilon = {value}", "policy.toml")
    target = Owner(bare.kit.with_name("target"), bare.capsys)

    code, _, err = bare.run("init")
    assert (code, "policy.toml: was changed after it was signed" in err) == (4, True)
    code, _, err = target.run("init", "--set", f"privacy.budget.target-epsilon={value}")
    assert (code, err.startswith("error: privacy.budget.target-epsilon: ")) == (4, True)
    assert not bare.ledger.exists()
    assert not target.ledger.exists()


@pytest.mark.parametrize(("arguments", "option"), [(["--reason", "x"], "--yes"), (["--reason", " "], "--reason")])
def test_a_reset_that_cannot_be_is_refused_before_a_row_is_read(
    arguments: list[str], option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["budget", "reset", "--config", "nowhere.toml", *arguments]) == 4
    assert capsys.readouterr().err.startswith(f"error: {option}: ")


def test_reset_counts_from_zero_only_with_yes_and_is_shown_for_ever(owner: Owner) -> None:
    owner.train(1, 2)
    code, err = owner.refused("reset", "--reason", "consent was given anew")
    assert code == 4
    assert "nothing counts as spent, so rows that trained before lose the protection" in err
    assert "add --yes" in err

    _, out, _ = owner.run("reset", "--reason", "consent was given anew", "--yes")

    assert "charges that count no more: 2, so rows that trained before lose the protection" in out
    owner.train(3)
    found = owner.data("show", "--rounds")
    assert (found["spent"], found["spent_as_if_never_reset"]) == (spent(1), spent(3))
    assert found["rounds"] == {"charged": 1, "finished": 1, "unfinished": 0}
    assert [(one["counts"], one["spent_after"]) for one in found["charges"]] == [
        (False, spent(1)),
        (False, spent(2)),
        (True, spent(1)),
    ]
    assert [(one["kind"], one["reason"]) for one in found["statements"]] == [("reset", "consent was given anew")]
    assert found["warnings"] == [
        "rows that trained before the last reset have lost the protection that this epsilon states"
    ]
    assert "reset 20" in owner.run("show")[1]


def test_plot_draws_what_was_spent_and_the_limit_and_replaces_no_file(owner: Owner, tmp_path: Path) -> None:
    plot = tmp_path / "spent.svg"
    owner.train(1, 2, 3)

    assert owner.data("show", "--plot", str(plot))["plot"] == str(plot)

    root = ET.parse(plot).getroot()
    assert GUARANTEE in (root.findtext(f"{SVG}desc") or "")
    assert {"spent", "limit 8", "round"} <= {element.text for element in root.iter(f"{SVG}text")}
    drawn = plot.read_bytes()
    code, err = owner.refused("show", "--plot", str(plot))
    assert (code, f"--plot: {plot} exists already" in err, plot.read_bytes() == drawn) == (4, True, True)


def test_a_ledger_whose_site_trains_without_noise_is_shown_with_a_warning(owner: Owner) -> None:
    found = owner.data("show", "--set", "training.dp.noise-multiplier=0")

    assert found["next_round"] is None
    assert found["warnings"] == [
        "training.dp.noise-multiplier is 0: rows with a privacy ledger are not trained on without noise"
    ]


def test_plan_of_a_site_goes_on_from_its_ledger_and_asks_for_its_budget(owner: Owner) -> None:
    owner.train(1)

    found = owner.data("plan", "--rounds", "20")

    assert (found["samples"], found["batch"], found["epochs"], found["delta"]) == (144, 32, 2, 1e-5)
    assert (found["target_epsilon"], found["data_set"], found["past_charges"]) == (8, "training-rows", 1)
    assert found["past_epsilon"] == found["epsilon_after_round"][0] == spent(1)
    assert spent(1) < found["epsilon"] <= 8
    assert found["mean_epsilon_per_round"] == pytest.approx((found["epsilon"] - spent(1)) / 20)
    dearer = owner.data("plan", "--rounds", "2", "--noise", "1.1")
    assert dearer["epsilon_after_round"] == [spent(1), spent(2), spent(3)]
    assert "epsilon before" in owner.run("plan", "--rounds", "2", "--noise", "1.1")[1]


def test_plan_of_a_site_takes_no_other_number_of_rows_and_names_options_only_where_they_were_given(
    owner: Owner,
) -> None:
    assert "--samples: is what --config says already" in owner.refused("plan", "--rounds", "2", "--samples", "9")[1]
    for given, key in (([], "dp.target-epsilon"), (["--epsilon", "8"], "--epsilon")):
        code, err = owner.refused("plan", "--rounds", "10000", "--epochs", "9999", *given)
        assert (code, err.startswith(f"error: {key}: 8 cannot be kept over 10000 rounds")) == (4, True)


def reserve(owner: Owner, run: str, rounds: int) -> None:
    """Reserve rounds as the site's process does when it joins a run."""
    now, event = int(time.time()), DpEvent(run, 1, 0, *ROUND, max_grad_norm=1.0)
    owner.site.ledger.reserve_run(event, rounds, Budget(8.0, 1e-5), now=now, expires=now + 86_400)


def test_show_lists_what_runs_have_reserved_and_what_is_left_beside_that(owner: Owner) -> None:
    reserve(owner, "cafe" * 8, 3)
    owner.train(1, run="cafe" * 8)

    found = owner.data("show")

    (held,) = found["reservations"]
    assert (held["run"], held["rounds"], held["rounds_left"]) == ("cafe" * 8, 3, 2)
    assert held["expires"] - held["made"] == 86_400
    assert (found["spent"], found["free"]) == (spent(1), 8 - spent(3))
    out = owner.run("show")[1]
    assert "reserved by cafecafecafe 2 of 3 rounds, until " in out
    assert "left beside that epsilon " in out


def test_release_frees_a_run_by_the_beginning_of_its_id_and_keeps_what_was_charged(owner: Owner) -> None:
    reserve(owner, "cafe" * 8, 3)
    owner.train(1, run="cafe" * 8)

    code, out, err = owner.run("release", "--run", "cafe")

    assert (code, err) == (0, "")
    assert f"released 2 rounds that run {'cafe' * 8} had reserved; what it was charged stays" in out
    found = owner.data("show")
    assert (found["reservations"], found["spent"], found["free"]) == ([], spent(1), 8 - spent(1))


@pytest.mark.parametrize(
    ("run", "line"),
    [
        ("feed", "error: --run: no run feed has a reservation"),
        ("", "error: --run: no run has a reservation"),
        ("caf", "error: --run: 2 runs with a reservation begin so"),
    ],
)
def test_release_of_no_run_or_of_two_changes_nothing_and_names_those_that_have_one(
    owner: Owner, run: str, line: str
) -> None:
    reserve(owner, "cafe" * 8, 1)
    reserve(owner, "cafa" * 8, 1)

    code, err = owner.refused("release", "--run", run)

    assert code == 4
    assert err.startswith(line)
    assert "runs with one: cafecafecafe, cafacafacafa" in err


def test_release_without_any_reservation_says_that_there_is_nothing(owner: Owner) -> None:
    code, err = owner.refused("release", "--run", "cafe")

    assert code == 4
    assert "no run has one: there is nothing to release" in err
