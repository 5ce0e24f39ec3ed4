"""The library in the place of an implementation under test: run from the published vectors alone.

Nothing here knows how the vectors were made. A source and an aggregator are set up from the fields of a session, get
the recorded messages as bytes, and hand out bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from phases import added, closed, taken

from securefda.protocol import aggregator_session as agg
from securefda.protocol import source_session as src
from securefda.protocol.aggregator_session import AggregatorSession
from securefda.protocol.header_checks import History, PastResult, SessionLimits, check_signed_header, quantisation
from securefda.protocol.messages import Result, Signed, Signer
from securefda.protocol.roster import Roster
from securefda.protocol.secret import Secret
from securefda.protocol.transcript import layer_names_and_shapes
from securefda.transport import wire

VECTORS = Path(__file__).parents[1] / "vectors"
Entry = Mapping[str, Any]


@cache
def load(name: str) -> Any:
    """One file of the published set."""
    return json.loads((VECTORS / f"{name}.json").read_text())


@cache
def session(name: str) -> Entry:
    """One published session."""
    return {record["name"]: record for record in every_session()}[name]


def every_session() -> list[Entry]:
    """Those of SFDA-SA/1, those of SFDA-SA/2, then those of both with hybrid keys."""
    names = ("sessions", "ring_sessions", "hybrid_sessions", "ring_hybrid_sessions")
    return [record for name in names for record in load(name)["valid"]]


def kinds_from_sources(record: Entry) -> list[str]:
    """The types of messages that the aggregator of a session collects, in order."""
    nonces = ["Nonce"] if "ring" in record else []
    return ["Advertise", *nonces, "ShareBundle", "MaskedInput", "SurvivorSignature", "Unmask"]


def received(entry: Entry) -> Signed[Any]:
    """What a receiver makes of a message as it travels: field 1 holds the signed bytes, field 2 the signature."""
    data, signature = (bytes.fromhex(entry[name]) for name in ("signed_bytes", "signature"))
    return wire.decode_signed(_field(1, data) + _field(2, signature))


def _field(number: int, data: bytes) -> bytes:
    length, size = bytearray(), len(data)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + data


def sent(message: Signed[Any]) -> dict[str, str]:
    """A message in the form of the vectors."""
    return {"signed_bytes": message.signed_bytes.hex(), "signature": message.signature.hex()}


def limits_of(fields: Entry) -> SessionLimits:
    """What a source asks of a session."""
    return SessionLimits(fields["min_others"], fields["max_colluders"], frozenset(fields["trusted"]))


def history_of(fields: Entry) -> History:
    """What a source remembers of a run."""
    results = tuple(
        PastResult(result["round"], bytes.fromhex(result["digest"]), bytes.fromhex(result["model_digest"]))
        for result in fields["results"]
    )
    position = fields["last_position"]
    return History(
        fields["session_seen"],
        None if position is None else (position[0], position[1]),
        fields["released"],
        results,
        fields["other_run"],
        sources_keep=fields["sources_keep"],
        ended=fields["ended"],
        sum_terms=tuple((sources, terms) for sources, terms in fields["sum_terms"]),
    )


def signer_of(record: Entry, index: int) -> Signer:
    """Signs as a site of a session."""
    key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(record["identities"][str(index)]))
    return Signer(index, key, wire.encode)


class SourceUnderTest:
    """A source of a published session, with the recorded draws as its randomness."""

    def __init__(self, record: Entry, index: int, limits: Entry | None = None) -> None:
        self._fields, self.index = record["sources"][str(index)], index
        self._draws = [bytes.fromhex(text) for text in self._fields["random"]]
        self.vector = b""
        header, roster = received(record["header"]), Roster.from_canonical_bytes(record["roster"].encode())
        asked = limits_of(limits or record["limits"])
        layers = layer_names_and_shapes(header.body.layers)
        check_signed_header(
            header,
            own_index=index,
            roster=roster,
            limits=asked,
            history=History(),
            own_layers=layers,
            unix_s=record["unix_s"],
        )
        self._session = src.Session(signer_of(record, index), roster, asked, header)
        self.phase: Any = None

    @property
    def draws_left(self) -> int:
        """Recorded draws that nobody has asked for."""
        return len(self._draws)

    def _random(self, length: int) -> bytes:
        drawn = self._draws.pop(0)
        if len(drawn) != length:
            raise ValueError(f"draw of {length} bytes where {len(drawn)} are recorded")
        return drawn

    def start(self) -> dict[str, str]:
        """R0."""
        self.phase, message = src.advertise(self._session, self._random)
        return sent(message)

    def receive(self, entry: Entry) -> dict[str, str] | None:
        """The answer to a message."""
        report = bytes.fromhex(self._fields["report"])
        self.phase, answer = taken(self.phase, received(entry), self._random, self._masked, report)
        return None if answer is None else sent(answer)

    def _masked(self, ready: src.ReadyToMask) -> tuple[src.AwaitingSurvivors, Signed[Any]]:
        reals = (np.array([float.fromhex(text) for text in self._fields[name]]) for name in ("input", "statistics"))
        encoding, rounding = quantisation(self._session.header.body), Secret(bytes.fromhex(self._fields["rounding"]))
        vector, statistics = reals
        following, answer, packed = src.masked_input(ready, encoding.encode(vector, rounding, statistics), encoding)
        self.vector = bytes(packed)
        return following, answer


class AggregatorUnderTest:
    """The aggregator of a published session."""

    def __init__(self, record: Entry) -> None:
        header, roster = received(record["header"]), Roster.from_canonical_bytes(record["roster"].encode())
        self._session = AggregatorSession(signer_of(record, record["target"]), roster, header)
        self.phase: Any = agg.open_session(self._session)

    @property
    def totals(self) -> list[bytes]:
        """The running sums."""
        return [total.tobytes() for total in getattr(self.phase, "totals", {}).values()]

    def receive(self, entry: Entry) -> None:
        """Take a source's message."""
        self.phase = added(self.phase, received(entry), bytes.fromhex(entry.get("vector", "")))

    def close(self) -> list[dict[str, str]]:
        """End the phase; what is sent to sources."""
        self.phase, message = closed(self.phase)
        if message is None:
            return [sent(self._result(self.phase))]
        return list(map(sent, message.values() if isinstance(message, Mapping) else [message]))

    def _result(self, opened: agg.OpenedSession) -> Signed[Result]:
        body = Result(opened.sum_digest, len(opened.survivors), sha256(b"next model").digest())
        return self._session.sign(opened.session.ctx, body)


def to_source(record: Entry, index: int) -> list[Entry]:
    """The aggregator's messages to a source, in order."""
    return [entry for entry in record["messages"] if entry["from"] == record["target"] and index in entry["to"]]


def from_source(record: Entry, index: int) -> list[Entry]:
    """A source's messages, in order."""
    return [entry for entry in record["messages"] if entry["from"] == index]


def waiting_source(record: Entry, index: int, due: str, limits: Entry | None = None) -> SourceUnderTest:
    """A source of a session that has had every message before the one of type ``due``."""
    source = SourceUnderTest(record, index, limits)
    source.start()
    for entry in to_source(record, index):
        if entry["type"] == due:
            return source
        source.receive(entry)
    raise ValueError(f"source {index} of {record['name']} never waits for {due}")


def collecting_aggregator(record: Entry, due: str, answered: Iterable[int]) -> AggregatorUnderTest:
    """The aggregator of a session that collects ``due`` and has it of some sources."""
    aggregator, had = AggregatorUnderTest(record), set(answered)
    for kind in kinds_from_sources(record):
        for entry in record["messages"]:
            if entry["type"] == kind and entry["arrives"] and (kind != due or entry["from"] in had):
                aggregator.receive(entry)
        if kind == due:
            return aggregator
        aggregator.close()
    raise ValueError(f"no phase collects {due}")
