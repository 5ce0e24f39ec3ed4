"""Malformed messages of every type, 10^5 of each in the deep run: typed errors only, and memory flat.

The types with lists of messages are in ``test_wire_fuzz_lists.py``, so that two workers share the time.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from depth import at_depth
from google.protobuf.message import DecodeError
from wire_bombs import bombs
from wire_mutations import (
    COUNT,
    GROWTH_OBJECTS,
    TYPES,
    has_lists,
    in_use,
    malformed,
    read_malformed,
    type_of,
    valid_messages,
)

from securefda.transport.wire import WireError, decode_signed
from securefda.v1 import messages_pb2 as pb

SAMPLE = at_depth(500, 2000)
FIXED_BYTES, BYTES_PER_BYTE = 16 << 10, 4
MOST_FOR_ONE_MESSAGE = 64 << 20


def test_there_is_a_valid_message_of_every_type_to_start_from() -> None:
    assert {name: type_of(data) for name, data in valid_messages().items()} == {name: name for name in TYPES}


@pytest.mark.parametrize("name", [name for name in TYPES if not has_lists(name)])
def test_malformed_messages_raise_a_wire_error_or_are_read_as_what_they_are(name: str) -> None:
    verdicts = read_malformed(name)
    assert verdicts.total() == COUNT
    assert verdicts["refused"] > COUNT // 2
    assert verdicts["read"] > COUNT // 100  # else nothing but the parser was tried


def test_a_reader_that_kept_what_it_read_would_be_noticed() -> None:
    gc.collect()  # what earlier tests left would go in between, and hide what is kept here
    _, before = in_use()
    kept = list(malformed("Refusal", COUNT // 2, seed=0))
    assert in_use()[1] - before > GROWTH_OBJECTS
    assert kept


def test_protobuf_alone_reads_many_of_the_messages_that_are_refused_here() -> None:
    lax: Counter[str] = Counter()
    for name in TYPES:
        for data in malformed(name, SAMPLE, seed=0):
            if type_of(data) is None:
                lax.update(_what_protobuf_alone_says(data))
    assert lax["read"] > SAMPLE * len(TYPES) // 4
    # What a look at the length alone would let through: other fields first, a bool of 2, bits that are cut off.
    assert lax["same length, other bytes"] > SAMPLE * len(TYPES) // 100


def _what_protobuf_alone_says(data: bytes) -> list[str]:
    try:
        signed = pb.SignedMessage.FromString(data)
        again = pb.Envelope.FromString(signed.signed_bytes).SerializeToString(deterministic=True)
    except DecodeError:
        return []
    same_length = len(again) == len(signed.signed_bytes) and again != signed.signed_bytes
    return ["read", "same length, other bytes"] if same_length else ["read"]


def test_reading_takes_memory_in_proportion_to_the_message() -> None:
    tracemalloc.start()
    try:
        for name in TYPES:
            for data in malformed(name, SAMPLE // 10, seed=0):
                before = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()
                type_of(data)
                taken = tracemalloc.get_traced_memory()[1] - before
                assert taken < FIXED_BYTES + BYTES_PER_BYTE * len(data), data.hex()
    finally:
        tracemalloc.stop()


def test_no_message_takes_more_than_64_mib_even_inside_protobuf() -> None:
    """Two million empty elements, fields or groups in 1.5 MiB, in a process that has read nothing else."""
    script = Path(__file__).with_name("wire_bombs.py")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=True)
    taken = dict(line.split("\t") for line in done.stdout.splitlines())
    assert set(taken) == {name for name, _ in bombs()}  # each was refused with a WireError
    assert max(map(int, taken.values())) < MOST_FOR_ONE_MESSAGE


def test_an_envelope_that_is_longer_than_any_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(WireError, match="at most 1572864 are read"):
        decode_signed(pb.SignedMessage(signed_bytes=bytes(1_572_865), signature=bytes(64)).SerializeToString())
