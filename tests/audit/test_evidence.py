"""Evidence as a file: it reads back as it was written, and in no other form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from securefda.audit.reconcile.evidence import Evidence, EvidenceError, Exhibit

CLAIM = Exhibit("equivocation", "hospital-t", "two headers", 2, 1, "ab" * 16, (b"one", b"another"), (b"note",))
EVIDENCE = Evidence("study", "00" * 16, b"roster", (CLAIM,))
DATA = EVIDENCE.to_bytes()


def compact(**changes: Any) -> bytes:
    text = json.dumps(json.loads(DATA) | changes, sort_keys=True, separators=(",", ":"))
    return text.encode() + b"\n"


def test_evidence_reads_back_as_it_was_written() -> None:
    assert compact() == DATA
    assert Evidence.parse(DATA) == EVIDENCE


@pytest.mark.parametrize(
    "data",
    [
        DATA.rstrip(),
        DATA + b"\n",
        DATA.replace(b",", b", ", 1),
        json.dumps(dict(reversed(json.loads(DATA).items())), separators=(",", ":")).encode() + b"\n",
        compact(note=""),
        compact(roster="cm9zdGV="),  # the base64 of b"roste" with a bit in its padding
    ],
)
def test_evidence_in_another_form_is_refused(data: bytes) -> None:
    assert data != DATA
    with pytest.raises(EvidenceError, match="it is not in its one form"):
        Evidence.parse(data)


def test_evidence_that_says_a_thing_twice_is_refused() -> None:
    with pytest.raises(EvidenceError, match="it holds an object with a key twice"):
        Evidence.parse(DATA.replace(b'"roster":', b'"roster":"","roster":'))


def test_evidence_of_more_values_than_claims_have_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(EvidenceError, match="it has more than 1000000 values"):
        Evidence.parse(b"[" + b"[]," * 1_000_001 + b"[]]")
