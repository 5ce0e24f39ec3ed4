"""How notes are filed: by what they are about, with texts as runs and drivers really write them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rounds_federation import AnySigned, Federation

from securefda.operations.notes import Remark, read_note
from securefda.protocol.messages import ShareBundle, Survivors

PEERS = {site: site for site in ("hospital-a", "hospital-a-2", "round", "a", "alarm")}


@pytest.mark.parametrize(
    ("text", "remark"),
    [
        ("hospital-a joined (1 of 3)", Remark("info", "hospital-a")),
        ("hospital-a is back", Remark("info", "hospital-a")),
        ("hospital-a-2 left", Remark("warning", "hospital-a-2")),
        ("hospital-a: its connection ended", Remark("warning", "hospital-a")),
        ("hospital-a refused: release.max-rounds", Remark("warning", "hospital-a")),
        ("alarm: hospital-a fails check WIRE: a", Remark("error", "hospital-a", alarm="WIRE")),
        ("alarm: source hospital-a fails check RANGE (unmask)", Remark("error", "hospital-a", alarm="RANGE")),
        ("alarm: an unknown peer fails check WIRE: hospital-a", Remark("error", alarm="other")),
        ("alarm: a source lied about its part: x", Remark("error", alarm="SUM")),
        (
            "alarm: source hospital-a aborted at key list: check KEY_ORDER failed; it accuses a",
            Remark("error", "hospital-a", abort="KEY_ORDER"),
        ),
        ("round 3 attempt 1 without a result: R1 shares: missing: hospital-a", Remark("warning")),
        ("round 3 was interrupted and cannot be taken up again; it is lost", Remark("warning")),
        ("too late for this round: hospital-a", Remark("warning")),
        ("resuming after round 3", Remark("info")),
        ("privacy ledger: epsilon 1.0", Remark("info")),
        ("stranger left", Remark("info")),
        ("", Remark("info")),
    ],
)
def test_a_note_is_filed_under_its_peer_its_level_and_its_check(text: str, remark: Remark) -> None:
    assert read_note(text, PEERS) == remark


@pytest.mark.parametrize("text", ["the aggregator has restarted; joining again", "connected to the aggregator at a:1"])
def test_at_a_source_the_aggregator_is_the_target_site(text: str) -> None:
    assert read_note(text, {"aggregator": "clinic"}).peer == "clinic"


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Callable[..., Federation]]:
    made: list[Federation] = []

    def new(*args: Any, **options: Any) -> Federation:
        made.append(Federation(tmp_path, *args, **options))
        return made[-1]

    yield new
    for federation in made:
        federation.close()


def remarks_of(federation: Federation) -> list[Remark]:
    sources = {f"source-{index}": f"source-{index}" for index in range(1, federation.n + 1)}
    return [read_note(note, sources) for note in federation.watch.notes]


def test_a_source_that_a_run_finds_lying_is_an_alarm_with_peer_and_check(build: Callable[..., Federation]) -> None:
    federation = build(4, rounds=1)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        return (
            replace(message, signature=bytes(64)) if isinstance(message.body, ShareBundle) and sender == 2 else message
        )

    federation.link = link
    federation.open().go()
    assert Remark("error", "source-2", alarm="SIGNATURE") in remarks_of(federation)


def test_a_session_that_a_source_ends_is_an_abort_with_peer_and_check(build: Callable[..., Federation]) -> None:
    federation = build(4, rounds=1)

    def link(sender: int, recipient: int, message: AnySigned) -> AnySigned:
        return (
            replace(message, signature=bytes(64)) if isinstance(message.body, Survivors) and recipient == 2 else message
        )

    federation.link = link
    federation.open().go()
    assert Remark("error", "source-2", abort="SIGNATURE") in remarks_of(federation)


def test_who_joins_leaves_and_returns_is_named(build: Callable[..., Federation]) -> None:
    federation = build(4, rounds=1).open()
    while federation.run.waiting_for() and federation.watch.text.count("joined") != 4:
        federation.deliver()
    federation.kill(3)
    federation.go()
    joined = [Remark("info", f"source-{index}") for index in (1, 2, 3, 4)]
    both = zip(federation.watch.notes, remarks_of(federation), strict=True)
    noted = [remark for note, remark in both if "joined" in note]
    assert noted == joined
    assert Remark("warning", "source-3") in remarks_of(federation)
