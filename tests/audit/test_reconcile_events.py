"""Lies in events: fuses, shares, caps, policies, and what the privacy ledgers say."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from run_builder import DELTA, NOISE, RATE, STEPS, TARGET, Passing, Run, digest, read_together
from run_lies import A, B, C, first

from securefda.audit.reconcile.suspicion import RunFinding
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import DpEvent
from securefda.protocol import messages as m

pytestmark = pytest.mark.usefixtures("no_disk_sync")


class Unsaid(Run):
    """One event of one site in one round is another, or is not written."""

    site, kind, number = A, "", 1
    facts: dict[str, Any] | None = None

    def alter_event(self, site: str, kind: str, number: int, facts: dict[str, Any]) -> dict[str, Any] | None:
        fits = (site, kind, number) == (self.site, self.kind, self.number)
        return (None if self.facts is None else facts | self.facts) if fits else facts


ROSTER = {"roster": digest("roster").hex()}


@pytest.mark.parametrize(
    ("kind", "facts", "number", "site", "finding", "step", "accused"),
    [
        ("release-fuse-burnt", None, 2, A, "missing-record", "release-fuse-burnt", (A,)),
        ("survivors-signed", {"survivors": [A, C]}, 1, A, "unmask-differs", "survivors-signed", (A,)),
        ("unmask-shares-released", {"survivors": [A, C]}, 1, A, "unmask-differs", "unmask-shares-released", (A,)),
        ("caps-computed", {"caps": "ab" * 32}, 1, B, "records-differ", "caps-computed", (A, B, TARGET)),
        ("run-began", ROSTER, 0, TARGET, "roster-differs", "run-began", ()),
        ("policy-loaded", None, 0, C, "policy-not-logged", "Join", (C,)),
        ("checkpoint-cosigned", {"size": 3}, 0, B, "forked-log", "Cosigned", (B, TARGET)),
    ],
)
def test_an_event_that_is_not_as_it_was_or_not_written_is_found(
    kind: str,
    facts: dict[str, Any] | None,
    number: int,
    site: str,
    finding: str,
    step: str,
    accused: tuple[str, ...],
    tmp_path: Path,
) -> None:
    lie = Unsaid(tmp_path)
    lie.kind, lie.facts, lie.number, lie.site = kind, facts, number, site

    assert first(read_together(lie.write()).findings) == (finding, step, number, accused, False)


class Released(Unsaid):
    """A run under a rule that compares features."""

    def header_changes(self, number: int, attempt: int) -> dict[str, Any]:
        pull = m.Layer(m.PULL_LAYER, (2, 3), 1.0, 1.0)
        rule = m.RuleTerms("f_dann", 0.5, "orthogonal", True, True, "mean-field", 1.0)
        features = m.FeatureTerms(2, 3, digest("features", number))
        return {"rule": rule, "features": features, "layers": (m.Layer("w", (4,), 1.0, 1.0), pull)}


def released(folder: Path, facts: dict[str, Any] | None) -> tuple[RunFinding, ...]:
    lie = Released(folder)
    lie.kind, lie.facts, lie.number, lie.site = "features-released", facts, 2, TARGET
    return read_together(lie.write()).findings


def test_a_target_that_writes_down_which_features_it_sends_is_not_suspected(tmp_path: Path) -> None:
    assert released(tmp_path, {}) == ()


@pytest.mark.parametrize(
    ("facts", "finding", "step"),
    [
        (None, "missing-record", "features-released"),
        ({"rows": 1}, "records-differ", "Header"),
        ({"width": 4}, "records-differ", "Header"),
        ({"features": "ab" * 32}, "records-differ", "Header"),
    ],
)
def test_features_that_a_target_writes_down_otherwise_or_not_at_all_are_found(
    facts: dict[str, Any] | None, finding: str, step: str, tmp_path: Path
) -> None:
    assert first(released(tmp_path, facts)) == (finding, step, 2, (TARGET,), False)


class Policies(Run):
    """Source A starts anew twice, with another policy and then with the first one."""

    def end(self) -> None:
        for name in ("other", A):
            self.event(A, "restarted", lost_bytes=0)
            self.event(A, "policy-loaded", policy=digest("policy", name).hex())
        super().end()


def test_changes_of_a_policy_are_listed_and_one_that_comes_back_is_noticed(tmp_path: Path) -> None:
    found = read_together(Policies(tmp_path).write())

    assert found.findings == ()
    changes = [notice for notice in map(str, found.notices) if "policy" in notice]
    assert len(changes) == 2
    assert "another policy" in changes[0]
    assert "an earlier policy is back" in changes[1]


class Spends(Run):
    """The ledger update of source B in one round says something else."""

    number, changes = 2, {}  # type: ignore[var-annotated]

    def spent(self, site: str, number: int) -> dict[str, Any]:
        return self.changes if (site, number) == (B, self.number) else {}


@pytest.mark.parametrize(
    ("number", "changes", "kind"),
    [
        (1, {"epsilon": "0.5"}, "wrong-epsilon"),
        (2, {"epsilon": "9.5"}, "wrong-epsilon"),
        (2, {"steps": 21}, "wrong-epsilon"),
        (2, {"noise_multiplier": "1.0"}, "wrong-epsilon"),
        (3, {"delta": "1e-06"}, "wrong-epsilon"),
        (3, {"accountant": "none"}, "wrong-epsilon"),
        (2, {"ledger_rows": 2}, "ledger-went-back"),
        (3, {"ledger_digest": digest("ledger", B, 2).hex()}, "ledger-went-back"),
    ],
)
def test_a_ledger_that_does_not_add_up_is_found(
    number: int, changes: dict[str, Any], kind: str, tmp_path: Path
) -> None:
    lie = Spends(tmp_path)
    lie.number, lie.changes = number, changes

    findings = read_together(lie.write()).findings

    assert first(findings) == (kind, "ledger-updated", number, (B,), False)


@pytest.mark.parametrize(("noise", "kinds"), [("1000000000.0", 8), ("1.2", 1)])
def test_charges_that_take_long_to_add_up_are_left_out_and_noted(
    noise: str, kinds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("securefda.audit.reconcile.own_logs._MOST_KINDS", kinds)
    honest, lie = Spends(tmp_path / "honest"), Spends(tmp_path / "lie")
    honest.changes = {"noise_multiplier": noise}
    lie.changes = {"noise_multiplier": noise, "epsilon": "0.1"}

    found, lied = read_together(honest.write()), read_together(lie.write())

    assert found.findings == ()
    (notice,) = [notice for notice in found.notices if "are not added up" in notice.what]
    assert (notice.site, notice.care) == (B, True)
    assert {one.kind for one in lied.findings} == {"wrong-epsilon"}


class Killed(Run):
    """Source B is killed behind the charge of round 1, before anything left. So was it in another run on these rows."""

    factor, restarts = 1.5, True

    def alter(self, passing: Passing) -> Iterable[Passing]:
        kept = passing.sender != B or passing.message.type_name not in ("MaskedInput", "Update")
        return [passing] if kept or passing.place[0] != 1 else []

    def charge(self, site: str, number: int, attempt: int) -> None:
        if site == B and number == 2 and self.restarts:
            self.event(site, "restarted", lost_bytes=0)
            self.event(site, "policy-loaded", policy=digest("policy", site).hex())
        super().charge(site, number, attempt)

    def spent(self, site: str, number: int) -> dict[str, Any]:
        if site != B or number == 1:
            return {}
        # Row 2 is this run's charge, row 3 that of the other run; neither round was finished.
        spent = epsilon([DpEvent("-", 1, 0, NOISE, RATE, STEPS * (number + 1), 1.0)], DELTA, "rdp")
        return {"ledger_rows": 2 * number, "epsilon": repr(spent)}


@pytest.mark.parametrize(("restarts", "kinds"), [(True, set()), (False, {"wrong-epsilon"})])
def test_two_kills_in_two_runs_on_one_data_set_accuse_nobody(restarts: bool, kinds: set[str], tmp_path: Path) -> None:
    run = Killed(tmp_path)
    run.restarts = restarts

    found = read_together(run.write())

    spending = [one for one in found.findings if one.step == "ledger-updated"]
    assert {one.kind for one in spending} == kinds
    assert any("may know nothing" in str(notice) for notice in found.notices) == restarts


@pytest.mark.parametrize("noted", [True, False])
def test_a_row_with_which_the_run_reserved_its_budget_is_no_charge_of_another_run(noted: bool, tmp_path: Path) -> None:
    class Reserved(Run):
        factor = 2.0

        def charge(self, site: str, number: int, attempt: int) -> None:
            if number == 1 and noted:
                self.event(site, "budget-reserved", rounds=2, expires=1_800_000_000)
            super().charge(site, number, attempt)

        def spent(self, site: str, number: int) -> dict[str, Any]:
            spent = epsilon([DpEvent("-", 1, 0, NOISE, RATE, STEPS * number, 1.0)], DELTA, "rdp")
            return {"ledger_rows": 1 + 2 * number, "epsilon": repr(spent * (self.factor if site == B else 1.0))}

    found = read_together(Reserved(tmp_path).write())

    # The log accounts for every row, so an epsilon above that of its charges is one that the ledger does not give.
    assert {one.kind for one in found.findings} == ({"wrong-epsilon"} if noted else set())
    assert any("may know nothing" in str(notice) for notice in found.notices) == (not noted)


def test_a_ledger_that_was_there_before_may_state_more_and_not_less(tmp_path: Path) -> None:
    class Older(Run):
        factor = 1.0

        def spent(self, site: str, number: int) -> dict[str, Any]:
            return {"ledger_rows": 10 + 2 * number, "epsilon": repr(self.factor * (4.0 + number))}

    honest, lie = Older(tmp_path / "honest"), Older(tmp_path / "lie")
    lie.factor = 0.01

    found, lied = read_together(honest.write()), read_together(lie.write())

    assert found.findings == ()
    assert sum("may know nothing" in notice for notice in map(str, found.notices)) == 3
    assert {one.kind for one in lied.findings} == {"wrong-epsilon"}
