"""A ledger that is missing, second, changed or in doubt: each command's line, its exit code, and the site's word."""

from __future__ import annotations

import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from budget_owner import Owner, spent

from securefda.cli import main
from securefda.samples import sample
from securefda.site.kit import load_kit
from securefda.site.privacy_account import signer_of


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
    assert (code, "was deleted after 1 row" in err) == (11, True)


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


def test_accept_goes_on_with_a_copy_and_keeps_what_is_spent_and_why(owner: Owner) -> None:
    owner.train(1, 2)
    moved = Owner(Path(shutil.copytree(owner.kit, owner.kit.with_name("moved"))), owner.capsys)
    code, err = moved.refused("show")
    assert (code, "is a copy, or was put back" in err) == (11, True)
    assert "securefda budget accept --config FILE --reason WHY" in err

    said = moved.data("accept", "--reason", "a new machine")

    assert (said["kind"], said["reason"]) == ("accepted", "a new machine")
    assert said["overruled"] == ["the ledger is a copy, or was put back"]
    found = moved.data("show")
    assert (found["spent"], [one["reason"] for one in found["statements"]]) == (spent(2), ["a new machine"])


def test_accept_writes_nothing_where_nothing_is_in_doubt(owner: Owner) -> None:
    owner.train(1)
    before = owner.ledger.read_bytes()
    code, out, _ = owner.run("accept", "--reason", "to be sure")
    assert (code, out) == (0, "training-rows of source-1: nothing is in doubt; nothing was written")
    assert owner.data("accept", "--reason", "to be sure")["kind"] is None
    assert owner.ledger.read_bytes() == before
    assert owner.data("show")["statements"] == []


def test_show_without_noise_and_ledger_does_not_say_that_nothing_trains(bare: Owner) -> None:
    without = ["--set", "training.dp.noise-multiplier=0"]
    code, out, err = bare.run("show", *without)
    assert (code, err) == (0, "")
    assert "has no privacy ledger, and this site trains without noise" in out
    assert bare.data("show", *without)["ledger"] is None
    assert bare.refused("show")[0] == 11  # with noise, a ledger is needed


def test_rows_that_changed_end_with_4_until_the_site_accepts_them(owner: Owner) -> None:
    owner.train(1)
    changed = ["--set", "source.seed=4"]

    code, err = owner.refused("show", *changed)
    assert (code, "data set training-rows has changed since it was last used" in err) == (4, True)
    said = owner.data("accept", "--reason", "a new split", *changed)

    assert said["overruled"][0].startswith("the rows have changed: 144 of fingerprint ")
    assert owner.data("show", *changed)["spent"] == spent(1)
    assert owner.refused("show")[0] == 4


@pytest.mark.parametrize("command", ["accept", "reset"])
def test_a_statement_without_a_reason_is_refused(owner: Owner, command: str) -> None:
    yes = ["--yes"] if command == "reset" else []
    assert main(["budget", command, "--config", str(owner.settings), *yes]) == 4
    assert "missing option '--reason'" in owner.capsys.readouterr().err
    for reason in ("  ", "x" * 501):
        code, _, err = owner.run(command, "--reason", reason, *yes)
        assert (code, err) == (4, "error: --reason: must be 1 to 500 characters, which stay in the ledger for ever\n")


def test_a_statement_of_another_key_counts_once_the_site_goes_on_with_it(owner: Owner) -> None:
    other = load_kit(owner.kit.with_name("source-2"), datetime.now(UTC)).signing_key
    owner.site.ledger.reset("by somebody else", signer_of(other), now=int(time.time()))

    code, err = owner.refused("show")

    assert (code, "row 2 (reset) is not signed with this site's key" in err) == (11, True)
    owner.data("accept", "--reason", "the key was renewed")
    assert "row 2 is not signed with the site's present key" in owner.data("show")["warnings"][0]


@pytest.mark.parametrize("damage", ["open to others", "missing"])
def test_without_the_sites_key_nothing_is_signed(owner: Owner, damage: str) -> None:
    key = owner.kit / "startup" / "signing.key"
    key.chmod(0o644) if damage == "open to others" else key.unlink()

    code, err = owner.refused("accept", "--reason", "x")

    assert (code, "signing.key: is " + damage in err) == (4, True)


def test_a_clock_moved_back_is_warned_of_until_the_site_accepts(owner: Owner) -> None:
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


def test_a_ledger_that_lacks_rows_is_not_accepted_and_a_reset_says_how_many_are_missing(owner: Owner) -> None:
    owner.train(1)
    old = owner.ledger.read_bytes()
    owner.train(2)
    owner.ledger.write_bytes(old)

    code, err = owner.refused("accept", "--reason", "the disk broke")
    assert (code, "it has 3 rows of 5, 2 are missing" in err) == (11, True)
    assert "hint: put the newest ledger back; where it is lost" in err
    assert "securefda budget reset" in err

    said = owner.data("reset", "--reason", "the disk broke", "--yes")
    assert said["overruled"] == ["the ledger is older than its folder: it has 3 rows of 5, 2 are missing"]
    assert owner.data("show")["spent"] == 0.0


LACKS = "lacks 1 charge that this site's audit logs record, the last for round 2 of run run-a"


def put_back_without_the_last_charge(owner: Owner) -> None:
    """Put the folder of ledgers back from a backup; the audit log knows a charge since."""
    folder = owner.ledger.parent
    owner.train_with_log(1)
    shutil.copytree(folder, folder.with_name("backup"))
    owner.train_with_log(2)
    folder.rename(folder.with_name("lost"))  # kept, so that its file numbers are not given again
    shutil.copytree(folder.with_name("backup"), folder)


def test_a_folder_of_ledgers_that_was_put_back_is_not_accepted_where_an_audit_log_knows_a_later_charge(
    owner: Owner,
) -> None:
    put_back_without_the_last_charge(owner)

    for command in (["show"], ["accept", "--reason", "restored from a backup"]):
        code, err = owner.refused(*command)
        assert (code, f"training-rows.sqlite: {LACKS}" in err) == (11, True)
        assert "hint: put the newest ledger back; where it is lost, what was spent is unknown" in err
        assert "budget accept" not in err
    assert main(["source", "start", "--config", str(owner.settings)]) == 11
    assert LACKS in owner.capsys.readouterr().err

    said = owner.data("reset", "--reason", "the backup was old", "--yes")

    assert said["overruled"] == [f"the ledger {LACKS}"]
    assert owner.data("show")["spent"] == 0.0


def test_where_an_audit_log_knows_a_charge_no_ledger_is_made_anew_but_by_a_reset_that_says_so(owner: Owner) -> None:
    owner.train_with_log(1, 2)
    shutil.rmtree(owner.ledger.parent)

    for name in ("training-rows", "other"):
        code, err = owner.refused("init", "--set", f"source.data-set={name}")
        assert (code, f"{name}.sqlite: is missing, and a new one lacks 2 charges that" in err) == (11, True)
        assert "securefda budget reset" in err

    said = owner.data("reset", "--reason", "the disk broke", "--yes")

    assert said["overruled"] == [f"the ledger {LACKS.replace('1 charge', '2 charges')}"]
    assert owner.data("show")["spent"] == 0.0


def test_rows_that_never_had_a_ledger_get_none_by_a_reset(bare: Owner) -> None:
    code, err = bare.refused("reset", "--reason", "x", "--yes")
    assert (code, "is missing; nothing trains without it" in err) == (11, True)


def test_charges_in_the_log_that_another_ledger_holds_or_has_reset_are_not_missed(owner: Owner) -> None:
    other = ["--set", "source.data-set=other", "--set", "source.seed=4"]
    put_back_without_the_last_charge(owner)
    code, err = owner.refused("init", *other)
    assert (code, "other.sqlite: is missing, and a new one lacks 1 charge that" in err) == (11, True)

    owner.data("reset", "--reason", "the backup was old", "--yes")

    assert owner.data("init", *other)["spent"] == 0.0
    assert owner.data("show", *other)["spent"] == 0.0


def test_charges_of_another_site_whose_log_lies_in_the_kit_are_not_missed(owner: Owner) -> None:
    second = Owner(owner.kit.with_name("source-2"), owner.capsys)
    assert second.run("init")[0] == 0
    second.train_with_log(1)
    shutil.copytree(second.kit / "local" / "audit", owner.kit / "local" / "audit")

    assert owner.data("show")["spent"] == 0.0


def test_a_ledger_without_its_marker_stays_in_doubt_when_init_is_tried(owner: Owner) -> None:
    for marker in owner.ledger.parent.glob("*.rows-*"):
        marker.unlink()

    assert owner.refused("init")[0] == 11

    code, err = owner.refused("show")
    assert (code, "is here without its marker" in err) == (11, True)


def test_a_ledger_of_another_data_set_under_this_ones_name_is_refused_and_cannot_be_accepted(owner: Owner) -> None:
    for path in sorted(owner.ledger.parent.glob("training-rows.sqlite*")):
        path.rename(path.with_name(path.name.replace("training-rows", "other")))
    owner.change('"training-rows"', '"other"')

    for command in (["show"], ["accept", "--reason", "x"]):
        code, err = owner.refused(*command)
        assert (code, "is the ledger of data set training-rows of source-1, not of other" in err) == (11, True)


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


def test_a_source_without_a_ledger_ends_with_11_and_names_the_command_that_makes_one(bare: Owner) -> None:
    assert main(["source", "start", "--config", str(bare.settings)]) == 11

    err = bare.capsys.readouterr().err.splitlines()
    assert "training-rows.sqlite: is missing; nothing trains without it" in err[-2]
    assert err[-1].endswith("securefda budget init --config FILE")
