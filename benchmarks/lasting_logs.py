"""What signatures of ML-DSA-65 under checkpoints of logs cost, beside those of Ed25519 alone, in turns on one machine.

    python benchmarks/lasting_logs.py --measure    exchanges of each size (some minutes), write lasting_logs.json
    python benchmarks/lasting_logs.py [--check]    print the tables from lasting_logs.json

Sites write logs of as many records a round as at `sum`, and cosign each other's as between rounds, every message as
bytes. ``--check`` ends with 1 where a size is missing, or short rounds cost a site more than `MOST_MS`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from studies import markdown, of_bounds, this_machine

from securefda.audit.journal import Journal, RunInfo
from securefda.audit.log_records import Entry
from securefda.audit.witness import Head, Witness
from securefda.protocol import ml_dsa
from securefda.protocol.messages import Parcel, Signer
from securefda.protocol.roster import Roster
from securefda.site.throwaway import throwaway_roster
from securefda.transport.wire import encode, encode_signed

FIGURES = Path(__file__).parent / "lasting_logs.json"
RUN = "ab" * 16
SIZES, ROUNDS, TURNS, MOST_MS = (5, 10, 50), 16, 3, 5.0
PACES: Mapping[str, float] = {"short": 0.35, "long": 60.0}
"""Seconds of a round: at one, blocks decide which checkpoints are lasting, at the other each of them is."""
OF_TARGET, OF_SOURCE = 16, 16
"""Records a round: of a target for each source, of a source."""


@dataclass
class _Memory:
    """What a site remembers of others' logs; the benchmark does not count its disk."""

    heads: dict[str, Head] = field(default_factory=dict)

    def cosigned(self, origin: str) -> Head | None:
        return self.heads.get(origin)

    def remember_cosigned(self, origin: str, head: Head) -> None:
        self.heads[origin] = head


class _Exchange:
    """The sites of a federation, with their logs in a folder."""

    def __init__(self, folder: Path, sources: int, pace_s: float, files: ExitStack, *, lasting: bool) -> None:
        names = ["target", *(f"source-{number}" for number in range(1, sources + 1))]
        keys = {name: Ed25519PrivateKey.generate() for name in names}
        self.roster: Roster = throwaway_roster("bench", keys, with_ml_dsa=lasting)
        self.now, self.pace_s, self.folder = 0.0, pace_s, folder
        self.seconds = dict.fromkeys(range(len(names)), 0.0)
        self.sent = dict.fromkeys(range(len(names)), 0)
        self.witnesses = []
        for index, name in enumerate(names):
            info = RunInfo("1", "bench", "rule")
            journal = Journal(folder / name, self.roster, name, keys[name], info=info)
            files.enter_context(closing(journal))
            signer = Signer(index, keys[name], encode)
            self.witnesses.append(Witness(journal, self.roster, signer, _Memory(), lambda: self.now))
            self.witnesses[-1].enter(RUN)

    def round(self, *, is_last: bool) -> None:
        """Records of a round at every site, then the exchange of checkpoints."""
        self.now += self.pace_s
        sources = range(1, len(self.witnesses))
        for index, witness in enumerate(self.witnesses):
            for number in range(OF_SOURCE if index else OF_TARGET * len(sources)):
                peer = "target" if index else self.roster.by_index(1 + number % len(sources)).site_id
                witness.journal.append(Entry("sent", "Advertise", 1, 1, "cd" * 32, peer, 400, "ef" * 32))
        target = self.witnesses[0]
        self._timed(0, lambda: target.renew(lasting=is_last))
        for index in sources:
            source = self.witnesses[index]
            shown = self._sends(0, lambda index=index: target.show(index))
            answer = self._sends(index, lambda source=source, shown=shown: source.cosign(0, shown.message.body))
            asked = source.asks_to_last(0, shown.message.body)
            self._timed(index, lambda source=source, asked=asked: source.renew(lasting=asked))
            own = self._sends(index, lambda source=source: source.show(0))
            cosigned = self._sends(0, lambda index=index, own=own: target.cosign(index, own.message.body))
            self._timed(0, lambda index=index, answer=answer: target.take(index, answer.message.body))
            self._timed(index, lambda source=source, cosigned=cosigned: source.take(0, cosigned.message.body))

    def _timed(self, index: int, what: Callable[[], Any]) -> Any:
        before = process_time()
        done = what()
        self.seconds[index] += process_time() - before
        return done

    def _sends(self, index: int, what: Callable[[], Parcel | None]) -> Parcel:
        parcel: Parcel | None = self._timed(index, what)
        assert parcel is not None
        self.sent[index] += len(encode_signed(parcel.message))
        return parcel

    def log_bytes(self, name: str) -> int:
        """Bytes of all files of a site's log."""
        files = {file.stat().st_ino: file.stat().st_size for file in (self.folder / name).rglob("*") if file.is_file()}
        return sum(files.values())


def _figures(sources: int, pace: str, *, lasting: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory(dir=FIGURES.parent) as name, ExitStack() as files:
        exchange = _Exchange(Path(name), sources, PACES[pace], files, lasting=lasting)
        for number in range(1, ROUNDS + 1):
            exchange.round(is_last=number == ROUNDS)
        files.close()
        own = [exchange.seconds[index] for index in range(1, sources + 1)]
        return {
            "target_ms": 1000 * exchange.seconds[0] / ROUNDS,
            "source_ms": 1000 * median(own) / ROUNDS,
            "target_log": exchange.log_bytes("target"),
            "source_log": exchange.log_bytes("source-1"),
            "source_sends": exchange.sent[1] / ROUNDS,
        }


def _primitives() -> dict[str, float]:
    """Microseconds of a signature, a check and a key, medians of 200."""
    identity = Ed25519PrivateKey.generate()
    key, text = ml_dsa.ml_dsa_key(identity), b"x" * 200
    public, signature = key.public_key().public_bytes_raw(), ml_dsa.sign_checkpoint(key, text)

    def each(what: Callable[[], object]) -> float:
        took = []
        for _ in range(200):
            before = process_time()
            what()
            took.append(process_time() - before)
        return round(1e6 * median(took), 1)

    return {
        "sign_us": each(lambda: ml_dsa.sign_checkpoint(key, text)),
        "verify_us": each(lambda: ml_dsa.checkpoint_signature_is_valid(public, text, signature)),
        "key_us": each(lambda: ml_dsa.ml_dsa_key(identity)),
        "signature_bytes": len(signature),
        "public_bytes": len(public),
    }


def measure() -> dict[str, Any]:
    """Measure every size at both paces, which kind comes first in turns."""
    cells = []
    for sources in SIZES:
        for pace in PACES:
            found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
            for turn in range(TURNS):
                for lasting in (False, True) if turn % 2 else (True, False):
                    found[lasting].append(_figures(sources, pace, lasting=lasting))
            kinds = {
                kind: {name: float(f"{median(one[name] for one in found[lasting]):.4g}") for name in found[lasting][0]}
                for kind, lasting in (("ed25519", False), ("both", True))
            }
            cells.append({"sources": sources, "pace": pace, **kinds})
            print(f"N = {sources}, {pace}: {kinds}", file=sys.stderr, flush=True)
    return {"machine": this_machine(), "rounds": ROUNDS, "turns": TURNS, "primitives": _primitives(), "cells": cells}


LINES = (
    ("target: processor time of a round's exchange", "target_ms", "{:.3g} ms", 1.0),
    ("source: the same", "source_ms", "{:.3g} ms", 1.0),
    ("source: sends in a round's exchange", "source_sends", "{:.1f} kB", 1e-3),
    ("target: its log on the disk", "target_log", "{:.0f} kB", 1e-3),
    ("source: its log on the disk", "source_log", "{:.0f} kB", 1e-3),
)


def tables(figures: Mapping[str, Any]) -> dict[str, str]:
    """The tables as Markdown, by name: one for each pace, and what a signature takes."""
    made = {}
    for pace in PACES:
        cells = [cell for cell in figures["cells"] if cell["pace"] == pace]
        rows = []
        for words, name, form, factor in LINES:
            pairs = [[form.format(factor * cell[kind][name]) for kind in ("ed25519", "both")] for cell in cells]
            rows.append([words, *(" → ".join(pair) for pair in pairs)])
        made[pace] = markdown(["", *(f"N = {cell['sources']}" for cell in cells)], rows)
    of = figures["primitives"]
    took = [f"{of[name] / 1000:.2f} ms" for name in ("sign_us", "verify_us", "key_us")]
    head = ("sign", "check", "derive the key", "signature", "public key")
    made["signature"] = markdown(head, [[*took, f"{of['signature_bytes']} bytes", f"{of['public_bytes']} bytes"]])
    return made


def misses(figures: Mapping[str, Any]) -> list[str]:
    """A line for each size that is missing, and for short rounds of ten sources that cost a site too much."""
    there = {(cell["sources"], cell["pace"]) for cell in figures["cells"]}
    missing = [f"MISSING: N = {size}, {pace}" for size in SIZES for pace in PACES if (size, pace) not in there]
    for cell in figures["cells"]:
        if (cell["sources"], cell["pace"]) != (10, "short"):
            continue
        for name in ("target_ms", "source_ms"):
            more = cell["both"][name] - cell["ed25519"][name]
            missing += [f"MISSED: {name} is {more:.2f} ms more, must be at most {MOST_MS}"] if more > MOST_MS else []
    return missing


def main() -> int:
    """Measure where asked to, then say what was measured."""
    return of_bounds(__doc__ or "", FIGURES, measure, tables, misses)


if __name__ == "__main__":
    sys.exit(main())
