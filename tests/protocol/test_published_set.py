"""What the published set holds: an error for every check, at least five invalid cases for each valid one, no more."""

from __future__ import annotations

from typing import Any

import pytest
from published import VECTORS, load
from test_check_names import names_in

from securefda.protocol import (
    aggregator_session,
    envelope_checks,
    header_checks,
    session_checks,
    source_session,
    unmasking,
)

FILES = sorted(path.stem for path in VECTORS.glob("*.json"))
COUNTED: dict[str, tuple[list[str], list[str]]] = {
    "boxes": ([], ["invalid"]),
    "builds": (["valid"], ["invalid"]),
    "checkpoints": (["valid"], ["invalid"]),
    "derivations": ([], []),
    "down_link": (["valid"], ["invalid"]),
    "fixed_point": (["valid"], ["invalid"]),
    "headers": (["valid"], ["invalid"]),
    "hybrid_sessions": (["valid"], []),
    "keys": (["parties"], ["refused_public_keys"]),
    "lies_to_aggregator": (["valid"], ["invalid"]),
    "lies_to_source": (["valid"], ["invalid"]),
    "masks": (["streams", "sessions"], []),
    "messages": (["valid"], ["malformed", "forged", "unwrapped"]),
    "ring_graphs": (["thresholds", "graphs", "rings"], []),
    "ring_headers": (["valid"], ["invalid"]),
    "ring_hybrid_sessions": (["valid"], []),
    "ring_lies_to_aggregator": (["valid"], ["invalid"]),
    "ring_lies_to_source": (["valid"], ["invalid"]),
    "ring_messages": (["valid"], ["malformed"]),
    "ring_sessions": (["valid"], []),
    "rosters": (["valid"], ["invalid"]),
    "sessions": (["valid"], []),
    "shares": (["valid"], ["invalid"]),
}
"""Lists of valid and of invalid cases. In ``malformed`` and ``unwrapped`` one case each is right."""


def counts() -> tuple[int, int]:
    valid = sum(len(load(name)[part]) for name, (parts, _) in COUNTED.items() for part in parts)
    invalid = sum(len(load(name)[part]) for name, (_, parts) in COUNTED.items() for part in parts)
    return valid + len(load("derivations")) + 1 + 2, invalid - 2  # one box; the two right ones among the malformed


def cases(*names: str) -> list[dict[str, Any]]:
    return [case for name in names for case in load(name)["invalid"]]


def test_every_file_is_counted() -> None:
    assert sorted(COUNTED) == FILES


def test_there_are_at_least_five_invalid_cases_for_each_valid_one() -> None:
    valid, invalid = counts()
    assert valid >= 60
    assert invalid >= 5 * valid
    of_sessions = len(cases("lies_to_source", "lies_to_aggregator"))
    assert of_sessions >= 5 * len(load("sessions")["valid"])
    assert len(load("headers")["invalid"]) >= 5 * len(load("headers")["valid"])


@pytest.mark.parametrize(
    ("files", "modules"),
    [
        (
            ("headers", "lies_to_source", "ring_headers", "ring_lies_to_source"),
            (envelope_checks, header_checks, session_checks, source_session),
        ),
        (("lies_to_aggregator", "ring_lies_to_aggregator"), (aggregator_session, unmasking)),
    ],
    ids=["source", "aggregator"],
)
def test_every_check_of_a_side_has_a_published_case(files: tuple[str, ...], modules: tuple[Any, ...]) -> None:
    covered = {case["check"] for case in cases(*files)}
    named = set().union(*(names_in(module) for module in modules))
    # Another suite never gets as far as its check: its bytes are refused when they are parsed.
    assert named - {"SUITE"} <= covered
    assert "WIRE" in covered


def test_no_case_is_listed_twice() -> None:
    for name in (name for name in COUNTED if "headers" in name or "lies" in name):
        claims = [(case["check"], case["claim"], case.get("source"), case.get("session")) for case in cases(name)]
        assert len(set(claims)) == len(claims), name


def test_set_is_small_enough_to_be_read_by_people() -> None:
    assert sum((VECTORS / f"{name}.json").stat().st_size for name in FILES) < 3.75 * 2**20


def test_readme_describes_every_file() -> None:
    text = (VECTORS / "README.md").read_text(encoding="utf-8")
    assert [name for name in FILES if f"`{name}.json`" not in text] == []
