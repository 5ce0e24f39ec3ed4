"""Runs whose aggregator is connected to without end by somebody without a certificate, beside a run that is left alone.

    python benchmarks/connections.py --measure [--check]
    python benchmarks/connections.py [--check]    from connections.json: print the table

A target and three sources train the digits for 20 rounds. The aggregator may have 1,024 descriptors. The attacker comes
from another address. ``--check`` ends with 1 where a round lacks a source or a process fails.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies import as_text, shown, this_machine

FIGURES = Path(__file__).with_suffix(".json")
TESTS = Path(__file__).resolve().parents[1] / "tests"
ROUNDS, DESCRIPTORS, HELD, A_MINUTE = 20, 1024, 1500, 10_000
SETTINGS = (f"strategy.rounds={ROUNDS}", "strategy.warm-up-rounds=1", "session.attempts=1")
ELSEWHERE = ("127.0.0.9", 0)


def connected(port: int) -> socket.socket | None:
    """A new connection; None where it is refused."""
    with contextlib.suppress(OSError):
        return socket.create_connection(("127.0.0.1", port), 2.0, source_address=ELSEWHERE)
    return None


def idle(port: int, ended: threading.Event) -> None:
    """Hold many connections and open others for those that are closed."""
    held = [connected(port) for _ in range(HELD)]
    while not ended.wait(0.5):
        held = [one if one is not None and is_open(one) else connected(port) for one in held]


def is_open(connection: socket.socket) -> bool:
    """Whether the other side has not hung up."""
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def one_byte_a_second(port: int, ended: threading.Event) -> None:
    """Begin handshakes and send them byte by byte."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="target")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    hello, held = outgoing.read(), [connected(port) for _ in range(HELD)]
    for byte in hello:
        if ended.wait(1.0):
            return
        for connection in filter(None, held):
            with contextlib.suppress(OSError):
                connection.send(bytes([byte]))


def without_certificate(port: int, ended: threading.Event) -> None:
    """Finish handshakes as far as one can without a certificate, and then say nothing."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    held = []
    while not ended.is_set():
        connection = connected(port)
        with contextlib.suppress(OSError):
            if connection is not None:
                held.append(context.wrap_socket(connection))
        del held[:-HELD]


def come_and_go(port: int, ended: threading.Event) -> None:
    """Open ten thousand connections a minute and close each at once."""
    while not ended.wait(60 / A_MINUTE):
        connection = connected(port)
        if connection is not None:
            connection.close()


ATTACKS: dict[str, Callable[[int, threading.Event], None] | None] = {
    "left alone": None,
    f"{HELD:,} idle connections": idle,
    f"{HELD:,} handshakes, a byte a second": one_byte_a_second,
    "handshakes without a certificate, then silence": without_certificate,
    f"{A_MINUTE:,} connects a minute": come_and_go,
}


@contextlib.contextmanager
def attacked(attack: Callable[[int, threading.Event], None] | None, port: int) -> Iterator[None]:
    """Attack from a thread for the duration of the block."""
    ended = threading.Event()
    thread = threading.Thread(target=attack, args=(port, ended), daemon=True) if attack else None
    if thread is not None:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        if thread is not None:
            thread.join()


def measure(keep: Path) -> None:
    """Run under each attack; the figures so far are kept after each."""
    import resource  # noqa: PLC0415 - printing the table needs neither

    sys.path[:0] = [str(TESTS / "support"), str(TESTS / "end_to_end")]
    from e2e_processes import kits  # noqa: PLC0415

    from securefda.machine import raise_descriptor_limit  # noqa: PLC0415
    from securefda.operations.records import round_seconds  # noqa: PLC0415

    raise_descriptor_limit()
    rows: list[dict[str, Any]] = []
    for name, attack in ATTACKS.items():
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()),
            kits(Path(folder), settings=SETTINGS) as federation,
        ):
            target = federation.start("target")
            resource.prlimit(target.process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
            target.until("listens on")
            with attacked(attack, federation.port):
                time.sleep(2.0)
                for site in federation.names:
                    federation.start(site)
                codes = [process.end(600.0) for process in federation.processes]
            lines = federation.rounds()
            whole = sum(line["survivors"] == federation.names for line in lines)
            seconds = [round_seconds(line) for line in lines[1:]]
        rows.append({"attack": name, "codes": codes, "rounds": len(lines), "whole": whole})
        rows[-1]["seconds"] = round(sorted(seconds)[len(seconds) // 2], 3) if seconds else None
        keep.write_text(as_text(rows, this_machine()))
        print(rows[-1], file=sys.stderr, flush=True)


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The table as Markdown."""
    lines = [
        "| the port of the aggregator | processes that fail | rounds of all sources | a round, s |",
        "|---|---|---|---|",
    ]
    for row in rows:
        failed = sum(code != 0 for code in row["codes"])
        lines.append(f"| {row['attack']} | {failed} | {row['whole']} of {ROUNDS} | {row['seconds']:.2f} |")
    return {"attacks": "\n".join(lines)}


def main() -> int:
    """Measure where asked to, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="measure first")
    parser.add_argument("--figures", type=Path, default=FIGURES, help="the measured figures, JSON")
    parser.add_argument("--check", action="store_true", help="end with 1 where a round lacks a source")
    given = parser.parse_args()
    if given.measure:
        measure(given.figures)
    rows = json.loads(given.figures.read_text())["rows"]
    print(shown(tables(rows)))
    return int(given.check and any(row["whole"] != ROUNDS or any(row["codes"]) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
