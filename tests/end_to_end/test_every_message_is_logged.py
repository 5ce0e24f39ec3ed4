"""Nothing passes between sites that is not in both their audit logs, and the logs tell of nothing that did not pass.

A run with one process per site, over TLS, in which every byte is seen in two places.

- A proxy lies between the sources and the aggregator and counts the bytes of each connection. The aggregator is called
  through it and from nowhere else, and connects to nobody; no source connects to anything else. That is what gRPC and
  Python's sockets say of themselves: native code that opens a socket of its own would not be seen, and there is none.
- TLS hides what the bytes say. So in every process a tap lies where gRPC turns messages into bytes and back, above TLS
  and below all code of this project. What the taps of both ends saw is the same, and with what TLS and HTTP/2 add to
  it, it makes up what the proxy counted: it leaves no space for one vector.

The bytes are taken apart anew. Each belongs to an application message, to a vector that a message names by its digest,
or to a frame with a few numbers in it (greeting, heartbeat, acknowledgement). Each message then has one record at its
sender and one at its receiver, with its type, digest and length, and no record is left over, also where connections
break and the transport says things again. A source that sends one message past its log is found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e_processes import Kits, kits
from free_ports import free_port
from wire_evidence import Line, Proxy, Wire, differences, lines_of_log, payloads, seen_from_the_other
from wire_tap import Seen, read_tap

ROUNDS = 2
VECTOR_BYTES = 4 * 9610
SETTINGS = (
    f"strategy.rounds={ROUNDS}",
    "strategy.warm-up-rounds=0",
    "session.bits=32",  # so that all vectors are above one length
    "transport.chunk-bytes=8192",
    "transport.heartbeat-s=2",
)

EVERY_ROUND = {
    ("sent", "Advertise"),
    ("sent", "ShareBundle"),
    ("sent", "MaskedInput"),
    ("sent", "SurvivorSignature"),
    ("sent", "Unmask"),
    ("received", "Header"),
    ("received", "KeyList"),
    ("received", "ShareDelivery"),
    ("received", "Survivors"),
    ("received", "Consistency"),
    ("received", "Result"),
    ("sent", "Receipt"),
}


@dataclass
class Observed:
    """A run that is over, and what was seen of it."""

    federation: Kits
    proxy: Proxy
    folder: Path
    ends: dict[str, int]

    def tap(self, site: str) -> Path:
        return self.folder / f"{site}.tap"

    def seen(self, site: str, *ways: str) -> list[Seen]:
        return [one for one in read_tap(self.tap(site)) if one.way in ways]

    def wire(self, site: str) -> Wire:
        return Wire.of(read_tap(self.tap(site)), "target")

    def log(self, site: str, other: str | None = None) -> list[Line]:
        (folder,) = (self.federation.kit(site) / "local" / "audit").iterdir()
        return lines_of_log(folder, other)

    def differences(self, site: str) -> tuple[list[str], list[str]]:
        """Between the wire of a source and its own log, and the target's."""
        lines = self.wire(site).lines
        return (
            differences(lines, self.log(site)),
            differences(seen_from_the_other(lines, site), self.log("target", site)),
        )


@contextmanager
def observed(folder: Path, *, cuts: Iterable[int] = (), smuggler: str = "", **options: Any) -> Iterator[Observed]:
    """A run of a few rounds, to its end."""
    behind = free_port()
    with (
        kits(folder / "federation", settings=SETTINGS, **options) as federation,
        Proxy(federation.port, behind) as proxy,
    ):
        proxy.cuts += cuts
        for site in ("target", *federation.names):
            environment = {"SECUREFDA_TAP": str(folder / f"{site}.tap")}
            environment |= {"SECUREFDA_TAP_SMUGGLES": "1"} if site == smuggler else {}
            listen = [f"transport.listen=127.0.0.1:{behind}"] if site == "target" else []
            federation.start(site, *listen, env=environment, module="wire_tap")
        ends = [process.end() for process in federation.processes]
        sites = ("target", *federation.names)
        assert federation.summary()["status"] == "finished"
        yield Observed(federation, proxy, folder, dict(zip(sites, ends, strict=True)))


def test_every_message_on_the_wire_has_one_record_at_each_end_and_every_record_a_message(tmp_path: Path) -> None:
    with observed(tmp_path) as run:
        assert set(run.ends.values()) == {0}
        assert_wire_and_logs_are_the_same(run)
        assert_a_whole_run_was_compared(run)
        assert_vectors_are_in_the_lengths_of_their_messages(run)
        assert_both_ends_of_the_wire_saw_the_same_bytes(run)
        assert_the_proxy_forwarded_what_the_taps_saw(run)
        assert_no_site_talks_to_anybody_but_through_the_proxy(run)
        assert_one_record_less_or_more_or_another_is_found(run)


def assert_wire_and_logs_are_the_same(run: Observed) -> None:
    for site in run.federation.names:
        assert run.differences(site) == ([], [])
        wire = run.wire(site)
        assert max(Counter(wire.lines).values()) == 1
        assert wire.again == 0
        assert {other for _, other, *_ in run.log(site)} == {"target"}
    assert {other for _, other, *_ in run.log("target")} == set(run.federation.names)


def assert_a_whole_run_was_compared(run: Observed) -> None:
    for site in run.federation.names:
        logged = Counter((way, kind) for way, _, kind, *_ in run.wire(site).lines)
        assert {one: logged[one] for one in EVERY_ROUND} == dict.fromkeys(EVERY_ROUND, ROUNDS)
        assert (logged["sent", "Join"], logged["received", "Schedule"], logged["received", "Goodbye"]) == (1, 1, 1)
        for kind in ("Checkpoint", "Cosigned"):
            assert logged["sent", kind] == logged["received", kind] == ROUNDS + 1
        assert set(logged) - EVERY_ROUND == {
            ("sent", "Join"),
            ("received", "Schedule"),
            ("received", "Goodbye"),
            *((way, kind) for way in ("sent", "received") for kind in ("Checkpoint", "Cosigned")),
        }


def assert_vectors_are_in_the_lengths_of_their_messages(run: Observed) -> None:
    for site in run.federation.names:
        wire = run.wire(site)
        large = [line for line in wire.lines if line[4] > VECTOR_BYTES]
        assert Counter(line[2] for line in large) == {"Header": ROUNDS, "MaskedInput": ROUNDS, "Goodbye": 1}
        assert sum(map(len, wire.vectors.values())) > 2 * ROUNDS * VECTOR_BYTES


def assert_both_ends_of_the_wire_saw_the_same_bytes(run: Observed) -> None:
    """But for what a process that was about to end no longer read: heartbeats, and the end of a stream."""
    for way, back in (("out", "in"), ("in", "out")):
        at_sources = sum((payloads(run.tap(site), way) for site in run.federation.names), Counter())
        at_target = payloads(run.tap("target"), back)
        written, read = (at_sources, at_target) if way == "out" else (at_target, at_sources)
        assert not read - written
        assert all(len(data) < 64 for _, data in written - read)


def assert_the_proxy_forwarded_what_the_taps_saw(run: Observed) -> None:
    for way, forwarded in (("out", run.proxy.up), ("in", run.proxy.down)):
        seen = [one for site in run.federation.names for one in run.seen(site, way)]
        carried = sum(len(one.data) + 5 for one in seen)
        assert carried < forwarded < carried + VECTOR_BYTES


def assert_no_site_talks_to_anybody_but_through_the_proxy(run: Observed) -> None:
    address = f"127.0.0.1:{run.federation.port}"
    for site in run.federation.names:
        assert {one.name for one in run.seen(site, "connects")} == {address, f"('127.0.0.1', {run.federation.port})"}
        assert not run.seen(site, "listens", "is called by")
    assert not run.seen("target", "connects")
    callers = {one.name for one in run.seen("target", "is called by")}
    assert callers
    assert {int(re.fullmatch(r"ipv4:127\.0\.0\.1:(\d+)", caller)[1]) for caller in callers} <= set(run.proxy.ports)  # type: ignore[index]


def assert_one_record_less_or_more_or_another_is_found(run: Observed) -> None:
    lines = run.wire("source-1").lines
    way, other, kind, digest, size = lines[7]
    others = [
        (way, other, kind, digest, size + 1),
        (way, other, kind, "0" * 64, size),
        (way, other, "Abort", digest, size),
    ]
    assert len(differences(lines, lines[:7] + lines[8:])) == 1
    assert len(differences(lines, [*lines, lines[7]])) == 1
    for changed in others:
        assert len(differences(lines, [*lines[:7], changed, *lines[8:]])) == 2


def test_what_is_said_again_on_a_new_connection_is_in_the_logs_once(tmp_path: Path) -> None:
    with observed(tmp_path, cuts=(VECTOR_BYTES, 2 * VECTOR_BYTES, 3 * VECTOR_BYTES)) as run:
        assert set(run.ends.values()) == {0}
        assert not run.proxy.cuts  # hardly anything but uploads is long enough to be cut
        for site in run.federation.names:
            assert run.differences(site) == ([], [])
            assert max(Counter(run.wire(site).lines).values()) == 1
        assert sum(run.wire(site).again for site in run.federation.names) > 0


def test_a_message_that_is_sent_past_the_log_is_found(tmp_path: Path) -> None:
    with observed(tmp_path, smuggler="source-2") as run:
        own, at_target = run.differences("source-2")
        assert len(own) == 1
        assert own[0].startswith("no record: ('sent', 'target', 'Join'")
        assert at_target == []  # the target has it twice, as it got it
        assert run.differences("source-1") == ([], [])
