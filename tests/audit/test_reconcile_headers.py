"""Lies of the target in headers and lists, and logs that fail by themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_builder import KEYS, SOURCES, TARGET, Passing, Run, digest, folder_of, read_together, sign
from run_lies import A, B, C, Lie, but, first, lying

from securefda.audit import signed_notes
from securefda.audit.log_records import Disclosure
from securefda.audit.reconcile.suspicion import RunFinding
from securefda.protocol import messages as m

pytestmark = pytest.mark.usefixtures("no_disk_sync")


class Headers(Run):
    """The header of one round has other fields."""

    number, changes = 2, {}  # type: ignore[var-annotated]

    def header_changes(self, number: int, attempt: int) -> dict[str, Any]:
        return self.changes if number == self.number else {}


def with_header(folder: Path, number: int, **changes: Any) -> tuple[RunFinding, ...]:
    lie = Headers(folder)
    lie.number, lie.changes = number, changes
    return read_together(lie.write()).findings


@pytest.mark.parametrize(("number", "changes"), [(1, {"threshold": 1}), (2, {"threshold": 4}), (1, {"sum_quorum": 1})])
def test_an_unsound_threshold_in_a_header_accuses_the_target(
    number: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    findings = [one for one in with_header(tmp_path, number, **changes) if one.step == "Header"]

    assert first(tuple(findings)) == ("threshold", "Header", number, (TARGET,), True)


@pytest.mark.parametrize(
    ("number", "changes", "kind", "accused"),
    [
        (2, {"model_digest": digest("another model")}, "broken-chain", (TARGET,)),
        (3, {"previous_result_digest": b""}, "broken-chain", (TARGET,)),
        (3, {"previous_result_digest": digest("no result")}, "broken-chain", (TARGET,)),
        (1, {"previous_result_digest": digest("no result")}, "broken-chain", ()),  # it may not have been kept
        (2, {"roster_digest": digest("roster")}, "roster-differs", ()),
        (2, {"previous_checkpoint": b""}, "bad-checkpoint", (TARGET,)),
    ],
)
def test_a_header_that_is_not_as_it_should_be_accuses_who_must_have_signed_it(
    number: int, changes: dict[str, Any], kind: str, accused: tuple[str, ...], tmp_path: Path
) -> None:
    findings = with_header(tmp_path, number, **changes)

    assert first(findings) == (kind, "Header", number, accused, bool(accused))
    assert {one.kind for one in findings} == {kind}


def test_a_header_whose_checkpoint_too_few_have_cosigned_accuses_the_target(tmp_path: Path) -> None:
    class Alone(Run):
        def header_changes(self, number: int, attempt: int) -> dict[str, Any]:
            lines = self.note.decode().split("\n")
            return {"previous_checkpoint": "\n".join([*lines[:5], ""]).encode()} if number == 1 else {}

    findings = read_together(Alone(tmp_path).write()).findings

    assert first(findings) == ("bad-checkpoint", "Header", 1, (TARGET,), True)


def test_sources_that_take_an_old_checkpoint_in_a_header_are_accused(tmp_path: Path) -> None:
    class Stale(Run):
        old = b""

        def header_changes(self, number: int, attempt: int) -> dict[str, Any]:
            self.old = self.old or self.note
            return {"previous_checkpoint": self.old} if number == 3 else {}

    findings = read_together(Stale(tmp_path).write()).findings

    assert {(one.kind, one.accused, one.round) for one in findings} == {
        ("bad-checkpoint", (site,), 3) for site in SOURCES
    }


def test_survivors_below_the_threshold_accuse_the_target(tmp_path: Path) -> None:
    class Few(Run):
        def open(self, header: Any, place: tuple[int, int, str], inputs: list[m.Signed[Any]]) -> None:
            super().open(header, place, inputs[:2] if place[0] == 1 else inputs)

    findings = read_together(Few(tmp_path).write()).findings

    assert first(findings) == ("threshold", "Survivors", 1, (TARGET,), True)


@pytest.mark.parametrize("kind", ["Advertise", "SurvivorSignature", "Unmask"])
def test_a_target_that_goes_on_with_too_few_answers_is_accused(kind: str, tmp_path: Path) -> None:
    findings = lying(tmp_path, kind, lambda passing: [], sender=A, number=2)

    found = {(one.kind, one.accused, one.round) for one in findings}
    assert ("threshold", (TARGET,), 2) in found


def test_two_headers_of_one_attempt_accuse_the_target(tmp_path: Path) -> None:
    class Twice(Run):
        def round(self, number: int, attempt: int, level: m.Visibility) -> None:
            super().round(number, attempt, level)
            if number == 2:
                other = self.header(number, attempt, level, n_max=9)
                place = (number, attempt, other.envelope.session_id.hex())
                self.send(Passing(TARGET, C, other, place, disclosure=Disclosure("individual", "model", 1)))

    findings = read_together(Twice(tmp_path).write()).findings

    assert ("equivocation", (TARGET,), True) in {(one.kind, one.accused, one.claim is not None) for one in findings}


def edited(folder: Path, site: str) -> None:
    tail = folder_of(folder, site) / "tail"
    data = tail.read_bytes()
    at = data.index(b'"type":"ShareBundle"')
    tail.write_bytes(data[:at] + data[at:].replace(b'"type":"ShareBundle"', b'"type":"ShareBundlf"', 1))


@pytest.mark.parametrize("unsigned", [(), (A,)])
def test_an_edited_log_is_found_also_behind_one_that_nobody_signed_and_what_it_lacks_is_not_judged(
    unsigned: tuple[str, ...], tmp_path: Path
) -> None:
    Run(tmp_path).write()
    edited(tmp_path, B)

    found = read_together(tmp_path, unsigned=unsigned)
    notices = list(map(str, found.notices))

    assert first(found.findings) == ("unverified-log", "", 0, (B,), False)
    assert len(found.findings) == 1
    assert any(line.startswith(f"{A}: no site has a checkpoint of its log") for line in notices) == bool(unsigned)
    assert f"{B}: what its log lacks was not judged, since it fails by itself" in notices


def test_a_fork_of_a_log_between_two_peers_is_found_and_proved_by_the_two_checkpoints(tmp_path: Path) -> None:
    class Fork(Run):
        """The target shows source C another tree than the others."""

        def show(self, owner: str, witness: str, text: str, size: int) -> None:
            if (owner, witness) == (TARGET, C) and size > 100:
                head = signed_notes.Checkpoint.parse(text)
                text = signed_notes.Checkpoint(head.origin, size, digest("another tree")).to_text()
                note = signed_notes.Note(text, (signed_notes.sign(text, head.origin, KEYS[TARGET]),))
                self.send(Passing(owner, witness, sign(owner, m.Checkpoint(note.to_bytes(), 0, (), 0))))
                root = digest("another tree").hex()
                self.event(witness, "checkpoint-cosigned", origin=head.origin, size=size, root=root)
                return
            super().show(owner, witness, text, size)

    findings = read_together(Fork(tmp_path).write()).findings

    assert {one.kind for one in findings if one.order[0] == 0} == {"forked-log"}
    assert {one.accused for one in findings if one.kind == "forked-log"} == {(TARGET,)}
    assert any(one.claim is not None for one in findings)


def test_fewer_logs_than_sites_are_read_and_what_is_missing_is_said(tmp_path: Path) -> None:
    Run(tmp_path).write()

    found = read_together(tmp_path, (TARGET, A))

    assert found.findings == ()
    assert sum("its log is missing" in notice for notice in map(str, found.notices)) == 2


def test_the_order_of_findings_is_that_of_the_protocol(tmp_path: Path) -> None:
    class Two(Lie):
        def header_changes(self, number: int, attempt: int) -> dict[str, Any]:
            return {"model_digest": digest("x")} if number == 3 else {}

    lie = Two(tmp_path)
    lie.kind, lie.number, lie.sender = "SurvivorSignature", 2, A
    lie.change = but(logs_sent=False)  # type: ignore[method-assign]

    findings = read_together(lie.write()).findings

    assert [(one.round, one.kind) for one in findings] == [(2, "never-sent"), (3, "broken-chain")]


def without_cosignatures(folder: Path, site: str) -> None:
    for file in (folder_of(folder, site) / "checkpoint", *(folder_of(folder, site) / "checkpoints").iterdir()):
        note = signed_notes.Note.parse(file.read_bytes())
        file.write_bytes(signed_notes.Note(note.text, note.signatures[:1]).to_bytes())


@pytest.mark.parametrize(("outcome", "kinds"), [("completed", ["unverified-log"]), ("failed", [])])
def test_a_log_that_nobody_cosigned_is_a_finding_where_the_run_was_completed(
    outcome: str, kinds: list[str], tmp_path: Path
) -> None:
    class Ends(Run):
        def alter_event(self, site: str, kind: str, number: int, facts: dict[str, Any]) -> dict[str, Any] | None:
            return facts | {"outcome": outcome} if kind == "run-ended" else facts

    Ends(tmp_path).write()
    without_cosignatures(tmp_path, A)

    found = read_together(tmp_path)

    assert [one.kind for one in found.findings] == kinds
    assert all(one.accused == () for one in found.findings)  # it was for the target to cosign it
    assert any("a holder of its key" in notice for notice in map(str, found.notices)) != bool(kinds)


@pytest.mark.parametrize(("restarted", "kinds"), [(True, []), (False, ["broken-chain"])])
def test_a_result_that_nobody_has_is_a_finding_unless_the_target_was_started_anew(
    restarted: bool, kinds: list[str], tmp_path: Path
) -> None:
    class Unsent(Run):
        """The target ends between the result of round 2 and sending it."""

        def finish(self, header: Any, place: tuple[int, int, str], level: m.Visibility) -> None:
            super().finish(header, place, level)
            if place[0] == 2 and restarted:
                self.event(TARGET, "restarted", lost_bytes=0)

        def to_all(self, message: m.Signed[Any], place: tuple[int, int, str]) -> None:
            if (message.type_name, place[0]) != ("Result", 2):
                super().to_all(message, place)

    found = read_together(Unsent(tmp_path).write())

    assert [one.kind for one in found.findings] == kinds
    assert all(one.accused == () for one in found.findings)  # it may be a result that was not kept
    assert any("a result that no site has" in notice for notice in map(str, found.notices)) == restarted
