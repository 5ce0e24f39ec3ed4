"""No check without a lie: one of the tables has a lie for every name with which a session can blame somebody."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import ModuleType

import lies_of_aggregator
import lies_of_source
import lies_on_a_ring
import pytest
import test_header_checks
import test_hybrid_session
import test_lying_aggregator
import test_lying_source
import test_ring_session

from securefda.protocol import (
    aggregator_session,
    envelope_checks,
    header_checks,
    session_checks,
    source_session,
    unmasking,
)

NAME = re.compile(r"[A-Z]+(_[A-Z]+)*")


def names_in(module: ModuleType) -> set[str]:
    """Every string constant of a module that has the form of a check's name."""
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if NAME.fullmatch(text)}


HEADER = {lie.check for lie in test_header_checks.LIES} | set(test_header_checks.OUTSIDE)
ON_A_RING = {lie.check for lie in lies_on_a_ring.LIES} | {"HEADER_GRAPH", "RING_TRUST"} & names_in(test_ring_session)
AGGREGATOR = {lie.check for lie in lies_of_aggregator.LIES} | set(lies_of_aggregator.OUTSIDE) | ON_A_RING
SOURCE = {lie.check for lie in (*lies_of_source.LIES, *lies_on_a_ring.SOURCE_LIES)} | set(lies_of_source.OUTSIDE)


def test_every_check_of_a_source_has_a_lie_of_the_aggregator() -> None:
    in_lies = HEADER | AGGREGATOR | {"HEADER_MODEL"} & names_in(test_header_checks)
    at_source = (envelope_checks, header_checks, session_checks, source_session)
    assert set().union(*map(names_in, at_source)) == in_lies


def test_every_check_of_the_aggregator_has_a_lie_of_a_source() -> None:
    apart = {"SENDER", "DUPLICATE", "SHARE_COMMITMENT", "UNMASK_SHARE", "RANGE", "INPUT_PADDING", "INPUT_RECOVERY"}
    assert apart <= names_in(test_lying_source) | names_in(test_hybrid_session)
    outside = set(lies_of_source.OUTSIDE)
    assert outside <= names_in(envelope_checks)
    assert names_in(aggregator_session) | names_in(unmasking) | outside == SOURCE | apart


def test_key_of_low_order_has_a_lie_where_masks_are_made_too() -> None:
    assert "KEY_INVALID" in names_in(test_lying_aggregator)


@pytest.mark.parametrize("module", [envelope_checks, header_checks, session_checks, source_session, aggregator_session])
def test_scan_finds_names_at_all(module: ModuleType) -> None:
    assert len(names_in(module)) >= 3
