"""Malformed messages of every type that holds a list of messages, and lists inside lists."""

from __future__ import annotations

import pytest
from wire_fields import SERIALISED, SIZED, nodes_of, replaced, tagged
from wire_mutations import COUNT, TYPES, has_lists, read_malformed, valid_messages

from securefda.transport.wire import WireError, decode
from securefda.v1 import messages_pb2 as pb

DEPTH = 1000


@pytest.mark.parametrize("name", [name for name in TYPES if has_lists(name)])
def test_malformed_messages_raise_a_wire_error_or_are_read_as_what_they_are(name: str) -> None:
    verdicts = read_malformed(name)
    assert verdicts.total() == COUNT
    assert verdicts["refused"] > COUNT // 2
    assert verdicts["read"] > COUNT // 100


def _nested(name: str, depth: int) -> bytes | None:
    """An envelope whose list holds an envelope of the same type, and so on; None where the list holds no envelopes."""
    envelope = data = pb.SignedMessage.FromString(valid_messages()[name]).signed_bytes
    for node in nodes_of(data, pb.Envelope.DESCRIPTOR, 0, len(data)):
        if node.field is not None and (node.field.containing_type.name, node.field.name) in SERIALISED:
            for _ in range(depth):
                data = replaced(envelope, node, tagged(node.number, SIZED, data))
            return data
    return None


NESTED = {name: data for name in TYPES if (data := _nested(name, DEPTH)) is not None}


@pytest.mark.parametrize("name", NESTED)
def test_lists_inside_lists_are_refused_at_the_second(name: str) -> None:
    with pytest.raises(WireError, match="may be listed here"):
        decode(NESTED[name])


def test_there_are_lists_to_nest() -> None:
    assert {"KeyList", "Consistency"} <= set(NESTED)
