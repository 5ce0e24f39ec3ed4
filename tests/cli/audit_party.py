"""Audit logs of a small federation for the tests of the audit commands: a roster, a log with cosigned checkpoints."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from known_sites import known_keys
from lasting import sign_lasting
from signed_messages import SIZE, kept_form, signed_message
from stand_ins import Ticks

from securefda.audit.kept import KeptMessages
from securefda.audit.keys import ROSTER_FILE
from securefda.audit.log import AuditLog
from securefda.audit.log_records import Disclosure, Entry
from securefda.audit.signed_notes import COSIGNATURE_V1, LogName, Note, NoteKey, cosign, witness_name
from securefda.cli import main
from securefda.protocol.messages import Signed
from securefda.protocol.roster import Roster
from securefda.site.throwaway import throwaway_roster

SITES = ("target", "source-1", "source-2", "source-3")
RUN = "0123456789abcdef" * 2
LOG_KEYS = known_keys(SITES)


def public(site: str) -> bytes:
    return LOG_KEYS[site].public_key().public_bytes_raw()


def roster(epoch: int = 1, federation: str = "hearts", sites: tuple[str, ...] = SITES) -> Roster:
    return throwaway_roster(federation, {site: LOG_KEYS[site] for site in sites}, target="target", epoch=epoch)


def began(of: Roster | None = None) -> Entry:
    digest = (of or roster()).digest().hex()
    facts: dict[str, Any] = {"release": "0.1.0", "task": "digits", "strategy": "fedgp", "roster": digest}
    return Entry("event", "run-began", facts=facts)


def ended(rounds: int = 3) -> Entry:
    return Entry("event", "run-ended", facts={"outcome": "finished", "rounds": rounds})


def signed(number: int, site: str = "source-1", of: Roster | None = None) -> Signed[Any]:
    """The number-th message: in turn one that the target sends, and one that the site does."""
    kind = "Header" if number % 2 else "Update" if number % 4 else "MaskedInput"
    sender = "target" if number % 2 else site
    index = next(entry.index for entry in (of or roster()).entries if entry.site_id == sender)
    return signed_message(kind, sender, index, str(number), "ab" * 32, RUN, LOG_KEYS[sender])


def message(number: int, peer: str = "target", site: str = "source-1", of: Roster | None = None) -> Entry:
    """The record of the number-th message, ten in a round: those that the site sends disclose something."""
    one = signed(number, site, of)
    at: dict[str, Any] = {"round": 1 + number // 10, "attempt": 1, "session": "ab" * 32, "peer": peer}
    at |= {"bytes": SIZE + number, "digest": one.digest().hex()}
    if number % 2:
        return Entry("received", "Header", **at)
    level = Disclosure("individual", "update", 1) if number % 4 else Disclosure("sum", "update", 3)
    return Entry("sent", one.type_name, disclosure=level, **at)


@dataclass
class Party:
    """One site that writes its log of a run below ``folder``."""

    folder: Path
    site: str = "source-1"
    run: str = RUN
    clock: Ticks = field(default_factory=partial(Ticks, step=timedelta(minutes=1)))
    federation: str = "hearts"
    lasting: bool = False

    @property
    def path(self) -> Path:
        return self.folder / self.run

    @property
    def name(self) -> LogName:
        return LogName(self.federation, self.site, self.run)

    def open(self) -> AuditLog:
        return AuditLog.open(self.folder, self.name, LOG_KEYS[self.site], self.clock)

    def write(self, messages: int = 24, *, end: bool = True, of: Roster | None = None) -> Path:
        """A whole log, with a checkpoint before its last records and at its end that the target cosigned."""
        self.lasting = bool(of and of.ml_dsa_keys)
        kept = KeptMessages(self.path)
        with self.open() as log, closing(kept):
            log.append(began(of))
            for number in range(messages):
                if number == messages // 2:
                    self.sign(log)
                log.append(message(number, site=self.site, of=of))
                kept.keep(kept_form(signed(number, self.site, of)))
            if end:
                log.append(ended())
            self.sign(log)
        self.keep_roster(of)
        return self.path

    def keep_roster(self, of: Roster | None = None) -> None:
        (self.path / ROSTER_FILE).write_bytes((of or roster()).canonical_bytes())

    def sign(self, log: AuditLog, witnesses: tuple[str, ...] = ("target",)) -> bytes:
        """Make a checkpoint that others cosign."""
        note = log.checkpoint()
        for witness in witnesses:
            key = NoteKey(witness_name(self.federation, witness), COSIGNATURE_V1, public(witness))
            line = cosign(Note.parse(note).text, key.name, LOG_KEYS[witness], 1_800_000_000)
            note = log.add_cosignature(log.size, line, key).to_bytes()
        return sign_lasting(log, self.name, LOG_KEYS, witnesses) if self.lasting else note


def audit(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Run ``securefda audit``: exit code, stdout, stderr."""
    capsys.readouterr()
    code = main(["audit", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def audit_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """Likewise, of the envelope; nothing else may be printed."""
    code, out, err = audit(capsys, *arguments, "--format", "json")
    assert err == ""
    envelope: dict[str, Any] = json.loads(out)
    assert envelope["exit_code"] == code
    return code, envelope
