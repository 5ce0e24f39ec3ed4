"""``securefda budget init``, ``show``, ``accept`` and ``reset``: a site's ledger from its settings file on."""

from __future__ import annotations

import json
import shutil
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from securefda.cli import main
from securefda.cli.budget_site import BudgetSite, load_site
from securefda.cli.samples import sample
from securefda.dp.accountants import epsilon
from securefda.dp.events import ASSUMPTIONS, GUARANTEE, Budget, DpEvent
from securefda.federation.kit import load_kit
from securefda.rounds.accounts import TERMS, signer_of

SVG = "{http://www.w3.org/2000/svg}"
WIDE = Budget(1000.0, 1e-5)
ROUND = (1.1, 0.2, 10)
"""Noise multiplier, sampling rate and steps of a source's round: 144 rows in batches of 32, twice."""


@pytest.fixture(scope="module")
def founded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("founded") / "kits"
    noise = ["--set", "training.source.dp.noise-multiplier=1.1", "--set", "training.target.dp.noise-multiplier=1.2"]
    assert main(["federation", "init", str(sample("digits")), "--out", str(root), *noise]) == 0
    return root


@dataclass
class Owner:
    """A site's operator at the command line."""

    kit: Path
    capsys: pytest.CaptureFixture[str]

    @property
    def settings(self) -> Path:
        return self.kit / "local" / "settings.toml"

    @property
    def ledger(self) -> Path:
        return self.kit / "local" / "ledgers" / "training-rows.sqlite"

    @property
    def site(self) -> BudgetSite:
        return load_site(self.settings, [], {}, datetime.now(UTC))

    def run(self, command: str, *arguments: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        code = main(["budget", command, "--config", str(self.settings), *arguments])
        out, err = self.capsys.readouterr()
        return code, " ".join(out.split()), err

    def data(self, command: str, *arguments: str) -> dict[str, Any]:
        code, out, err = self.run(command, *arguments, "--format", "json")
        assert (code, err) == (0, "")
        found: dict[str, Any] = json.loads(out)["data"]
        return found

    def refused(self, command: str, *arguments: str) -> tuple[int, str]:
        """Exit code and the one line; nothing was printed beside it and its mend, and the ledgers are as before."""
        before = self.ledgers()
        code, out, err = self.run(command, *arguments)
        line, *hint = err.splitlines()
        assert out == ""
        assert line.startswith("error: ")
        assert [text[:6] for text in hint] == ["hint: "]
        assert self.ledgers() == before
        return code, err

    def ledgers(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.ledger.parent.glob("*")}

    def train(self, *rounds: int, run: str = "run-a", finish: bool = True, later_s: int = 0) -> None:
        """Charge rounds as the site's process does."""
        site, now = self.site, int(time.time()) + later_s
        for number in rounds:
            event = DpEvent(run, number, 0, *ROUND, max_grad_norm=1.0)
            reservation = site.ledger.reserve(event, WIDE, now=now)
            if finish:
                site.ledger.commit(reservation, steps=event.steps, now=now)

    def change(self, old: str, new: str, file: str = "settings.toml") -> None:
        path = self.kit / "local" / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def change_policy(self, old: str, new: str) -> None:
        self.change(old, new, "policy.toml")
        assert main(["policy", "sign", str(self.kit)]) == 0

    def sign(self, said: bytes) -> bytes:
        return signer_of(load_kit(self.kit, datetime.now(UTC)).signing_key)(said)


@pytest.fixture
def bare(founded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Owner:
    """The owner of a source without a ledger."""
    return Owner(Path(shutil.copytree(founded, tmp_path / "kits")) / "source-1", capsys)


@pytest.fixture
def owner(bare: Owner) -> Owner:
    assert bare.run("init")[0] == 0
    return bare


def spent(rounds: int) -> float:
    return epsilon([DpEvent("r", 1, 0, *ROUND, max_grad_norm=1.0)] * rounds, 1e-5)


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


def test_the_targets_ledger_is_of_its_rows_under_the_budget_of_its_settings(bare: Owner) -> None:
    target = Owner(bare.kit.with_name("target"), bare.capsys)
    target.change("target-epsilon = 8.0", "target-epsilon = 5.0")

    found = target.data("init")

    assert (found["site"], found["samples"], found["limit"]) == ("target", 100, 5)
    assert found["next_round"]["noise_multiplier"] == 1.2


def test_a_second_ledger_is_refused_under_the_same_name_under_another_and_after_the_first_was_deleted(
    owner: Owner,
) -> None:
    code, err = owner.refused("init")
    assert (code, "exists already" in err, "budget show" in err) == (11, True, True)

    owner.change('"training-rows"', '"other"')
    code, err = owner.refused("init")
    assert code == 4
    assert "other is another name for the rows of training-rows: two ledgers would count them apart" in err
    assert 'set data-set = "training-rows"' in err

    owner.change('"other"', '"training-rows"')
    owner.ledger.unlink()
    code, err = owner.refused("init")
    assert (code, "was deleted after 1 rows" in err) == (11, True)


def test_rows_that_a_ledger_was_once_bound_to_get_no_second_one(owner: Owner) -> None:
    assert owner.run("accept", "--reason", "other rows", "--set", "source.seed=4")[0] == 0

    owner.change('"training-rows"', '"other"')

    code, err = owner.refused("init")
    assert (code, "another name for the rows of training-rows" in err) == (4, True)


def test_a_changed_data_set_is_not_accepted_into_a_ledger_where_the_rows_have_their_own(owner: Owner) -> None:
    other = ["--set", "source.data-set=other", "--set", "source.seed=4"]
    assert owner.run("init", *other)[0] == 0

    code, err = owner.refused("accept", "--reason", "why not", "--set", "source.data-set=other")

    assert (code, "other is another name for the rows of training-rows" in err) == (4, True)


def test_a_ledger_beside_it_that_cannot_be_read_may_be_of_the_same_rows(owner: Owner) -> None:
    owner.ledger.write_bytes(b"no database at all")
    owner.change('"training-rows"', '"other"')

    code, err = owner.refused("init")

    assert code == 11
    assert "training-rows.sqlite beside it may be of the same rows, and cannot be used: file is not a database" in err


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
    assert (code, err.startswith("error: policy: ")) == (4, True)  # nobody has signed it
    code, _, err = target.run("init", "--set", f"privacy.budget.target-epsilon={value}")
    assert (code, err.startswith("error: privacy.budget.target-epsilon: ")) == (4, True)
    assert not bare.ledger.exists()
    assert not target.ledger.exists()


def test_accept_goes_on_with_a_copy_and_keeps_what_is_spent_and_why(owner: Owner) -> None:
    owner.train(1, 2)
    moved = Owner(Path(shutil.copytree(owner.kit, owner.kit.with_name("moved"))), owner.capsys)
    code, err = moved.refused("show")
    assert (code, "is a copy, or was put back" in err) == (11, True)
    assert "securefda budget accept --config FILE --reason WHY" in err

    said = moved.data("accept", "--reason", "a new machine")

    assert (said["kind"], said["reason"]) == ("accepted", "a new machine")
    assert said["overruled"] == ["the ledger is a copy, or was put back"]
    assert (
        "accepted the ledger; charges that it knows of and that stay spent: 2;"
        in moved.run("accept", "--reason", "x")[1]
    )
    found = moved.data("show")
    assert (found["spent"], [one["reason"] for one in found["statements"]]) == (spent(2), ["a new machine", "x"])


def test_rows_that_changed_end_with_4_until_the_site_accepts_them(owner: Owner) -> None:
    owner.train(1)
    changed = ["--set", "source.seed=4"]

    code, err = owner.refused("show", *changed)
    assert (code, "data set training-rows has changed since it was last used" in err) == (4, True)
    said = owner.data("accept", "--reason", "a new split", *changed)

    assert said["overruled"][0].startswith("the rows have changed: 144 of fingerprint ")
    assert owner.data("show", *changed)["spent"] == spent(1)
    assert owner.refused("show")[0] == 4


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


@pytest.mark.parametrize("command", ["accept", "reset"])
def test_a_statement_without_a_reason_is_refused(owner: Owner, command: str) -> None:
    yes = ["--yes"] if command == "reset" else []
    assert main(["budget", command, "--config", str(owner.settings), *yes]) == 4
    assert "missing option '--reason'" in owner.capsys.readouterr().err
    for reason in ("  ", "x" * 501):
        code, _, err = owner.run(command, "--reason", reason, *yes)
        assert (code, err) == (4, "error: --reason: must be 1 to 500 characters, which stay in the ledger for ever\n")


def test_a_statement_of_another_key_is_no_word_of_the_site(owner: Owner) -> None:
    other = load_kit(owner.kit.with_name("source-2"), datetime.now(UTC)).signing_key
    owner.site.ledger.reset("by somebody else", signer_of(other), now=int(time.time()))

    code, err = owner.refused("show")

    assert (code, "row 2 (reset) is not signed by this site" in err) == (11, True)


@pytest.mark.parametrize("damage", ["open to others", "missing"])
def test_without_the_sites_key_nothing_is_signed(owner: Owner, damage: str) -> None:
    key = owner.kit / "startup" / "signing.key"
    key.chmod(0o644) if damage == "open to others" else key.unlink()

    code, err = owner.refused("accept", "--reason", "x")

    assert (code, "signing.key: is " + damage in err) == (4, True)


def test_a_clock_that_was_moved_back_is_warned_of_and_mended_by_the_sites_word(owner: Owner) -> None:
    owner.train(1, later_s=86_400)

    (warning,) = owner.data("show")["warnings"]
    assert warning.startswith("the clock says ")
    (overruled,) = owner.data("accept", "--reason", "the clock was wrong")["overruled"]

    assert overruled.startswith("the clock went back from ")
    assert owner.data("show")["warnings"] == []


def test_a_ledger_that_is_missing_deleted_or_no_ledger_ends_every_reader_with_11(bare: Owner) -> None:
    code, err = bare.refused("show")
    assert code == 11
    assert f"{bare.ledger.resolve()}: is missing; nothing trains without it" in err
    assert "securefda budget init --config FILE" in err

    bare.run("init")
    bare.train(1)
    kept = bare.ledger.read_bytes()
    bare.ledger.unlink()
    code, err = bare.refused("show")
    assert (code, "was deleted after 3 rows" in err, "securefda budget accept" in err) == (11, True, True)

    bare.ledger.write_bytes(b"hello")
    code, err = bare.refused("accept", "--reason", "x")
    assert (code, "cannot be used: file is not a database" in err) == (11, True)

    bare.ledger.write_bytes(kept)
    assert bare.refused("plan", "--rounds", "3")[0] == 11
    assert bare.run("accept", "--reason", "put back")[0] == 0
    assert bare.data("show")["spent"] == spent(1)


def test_old_contents_that_were_put_back_are_found(owner: Owner) -> None:
    owner.train(1)
    old = owner.ledger.read_bytes()
    owner.train(2)
    owner.ledger.write_bytes(old)

    code, err = owner.refused("show")

    assert (code, "is older than its folder: it has 3 rows of 5" in err) == (11, True)


def test_a_ledger_without_its_marker_stays_in_doubt_when_init_is_tried(owner: Owner) -> None:
    for marker in owner.ledger.parent.glob("*.rows-*"):
        marker.unlink()

    assert owner.refused("init")[0] == 11

    code, err = owner.refused("show")
    assert (code, "lies here without its marker" in err) == (11, True)


def test_a_ledger_of_another_data_set_under_this_ones_name_is_refused_and_cannot_be_accepted(owner: Owner) -> None:
    for path in sorted(owner.ledger.parent.glob("training-rows.sqlite*")):
        path.rename(path.with_name(path.name.replace("training-rows", "other")))
    owner.change('"training-rows"', '"other"')

    for command in (["show"], ["accept", "--reason", "x"]):
        code, err = owner.refused(*command)
        assert (code, "is the privacy ledger of data set training-rows of source-1, not of other" in err) == (4, True)


def test_a_folder_that_cannot_be_made_is_one_line(bare: Owner) -> None:
    bare.ledger.parent.write_bytes(b"")

    code, out, err = bare.run("init")

    assert (code, out) == (11, "")
    assert "training-rows.sqlite: cannot be made: " in err


def test_a_file_that_is_no_sites_settings_is_named(owner: Owner) -> None:
    whole, policy = str(sample("digits")), str(owner.kit / "local" / "policy.toml")
    for file, why in ((whole, "is a whole federation's"), (policy, "has neither [source] nor [aggregator]")):
        assert main(["budget", "show", "--config", file]) == 4
        out, err = owner.capsys.readouterr()
        assert out == ""
        assert err.startswith(f"error: --config: {file} {why}\nhint: name the site's own settings")
    owner.change("[source]", "[aggregator]")
    code, err = owner.refused("show")
    assert (code, "is the kit of a source (source-1), but a target's is needed" in err) == (4, True)


def test_plot_draws_what_was_spent_and_the_limit_and_replaces_no_file(owner: Owner, tmp_path: Path) -> None:
    plot = tmp_path / "spent.svg"
    owner.train(1, 2, 3)

    assert owner.data("show", "--plot", str(plot))["plot"] == str(plot)

    root = ET.parse(plot).getroot()
    assert GUARANTEE in (root.findtext(f"{SVG}desc") or "")
    assert {"spent", "limit", "round"} <= {element.text for element in root.iter(f"{SVG}text")}
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


def test_a_source_without_a_ledger_ends_with_11_and_names_the_command_that_makes_one(bare: Owner) -> None:
    assert main(["source", "start", "--config", str(bare.settings)]) == 11

    err = bare.capsys.readouterr().err.splitlines()
    assert "training-rows.sqlite: is missing; nothing trains without it" in err[-2]
    assert err[-1].endswith("securefda budget init --config FILE")
