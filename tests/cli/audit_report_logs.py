"""Logs of a small federation for the tests of the audit page: kits with cosigned logs, policies, noise and trouble."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from known_sites import known_keys, known_roster
from signed_messages import kept_form, signed_message, size_of
from stand_ins import Ticks

from securefda.audit.kept import KeptMessages
from securefda.audit.keys import ROSTER_FILE
from securefda.audit.log import AuditLog
from securefda.audit.log_records import Decision, Disclosure, DpSpent, Entry
from securefda.audit.signed_notes import COSIGNATURE_V1, LogName, Note, NoteKey, cosign, witness_name
from securefda.protocol.messages import vector_digests
from securefda.site.policy import NAMED_POLICIES

RUN = "0123456789abcdef" * 2
FEDERATION = "hearts"
TARGET = "target"
SUM = Disclosure("sum", "update", 3)
ALONE = Disclosure("individual", "update", 1)
MODEL = Disclosure("individual", "model", 1)


def digest(*words: object) -> str:
    return hashlib.sha256(" ".join(map(str, words)).encode()).hexdigest()


class Logs:
    """Writes ``folder/kits/SITE/local/audit/RUN`` for a target and its sources.

    Args:
        folder: where.
        sources: how many.
        noise: whether the sources train with it.
        bare: sources whose updates leave readable by themselves.
        entities: site id -> its organisation, where that is not the site id.
    """

    def __init__(
        self,
        folder: Path,
        sources: int = 3,
        *,
        noise: bool = True,
        bare: Iterable[str] = (),
        entities: dict[str, str] | None = None,
    ) -> None:
        self.folder, self.noise, self.bare = folder, noise, tuple(bare)
        self.sources = tuple(f"source-{number}" for number in range(1, sources + 1))
        self.sites = (TARGET, *self.sources)
        self.keys = known_keys(self.sites)
        self.roster = known_roster(FEDERATION, self.sites, target=TARGET, entities=entities)
        clock = Ticks()
        self.logs = {
            site: AuditLog.open(self.path(site).parent, LogName(FEDERATION, site, RUN), self.keys[site], clock)
            for site in self.sites
        }

        self.kept = {site: KeptMessages(self.path(site)) for site in self.sites}

    def path(self, site: str) -> Path:
        return self.folder / "kits" / site / "local" / "audit" / RUN

    def write(self, rounds: int = 3, *, outcome: str = "finished") -> Path:
        """A whole run, and the folder with its kits."""
        self.begin()
        for number in range(1, rounds + 1):
            self.round(number)
            self.witness()
        for site in self.sites:
            self.event(site, "run-ended", outcome=outcome, rounds=rounds)
        return self.close()

    def begin(self) -> None:
        for site in self.sites:
            (self.path(site) / ROSTER_FILE).write_bytes(self.roster.canonical_bytes())
            roster = self.roster.digest().hex()
            self.event(site, "run-began", release="0.1.0", task="digits", strategy="fedgp", roster=roster)
            if site != TARGET:
                data = self.policy(site)
                (self.path(site).parent.parent / "policy.toml").write_bytes(data)
                self.event(site, "policy-loaded", policy=hashlib.sha256(data).hexdigest())
                self.message(site, TARGET, "Join")

    def policy(self, site: str) -> bytes:
        return NAMED_POLICIES["clinical-default"].text(site).encode()

    def round(self, number: int, attempt: int = 1) -> None:
        for site in self.sources:
            self.message(TARGET, site, "Header", number, attempt, MODEL, 40_000)
            if self.noise:
                self.charge(site, number)
        for site in self.sources:
            if site not in self.bare:
                self.message(site, TARGET, "Advertise", number, attempt, None, 600)
                self.event(site, "caps-computed", number, caps=digest("caps"), layers=4, capped=1, zeroed=0)
            self.event(site, "release-fuse-burnt", number)
            release = ("Update", ALONE) if site in self.bare else ("MaskedInput", SUM)
            self.message(site, TARGET, release[0], number, attempt, release[1], 80_000)
        for site in self.sources:
            self.message(TARGET, site, "Result", number, attempt, None, 300)

    def charge(self, site: str, number: int) -> None:
        spent = repr(round(0.21 * number**0.5 * (1 + 0.1 * int(site[-1])), 6))
        dp = DpSpent("dp-sgd", "rdp", "1.1", "0.05", "1.0", "1e-05", spent, 20, number, digest("ledger", number))
        self.logs[site].append(Entry("event", "ledger-updated", number, dp=dp))

    def event(self, site: str, kind: str, number: int = 0, **facts: Any) -> None:
        self.logs[site].append(Entry("event", kind, number, facts=facts))

    def message(
        self,
        sender: str,
        receiver: str,
        kind: str,
        number: int = 0,
        attempt: int = 0,
        shown: Disclosure | None = None,
        size: int = 200,
        decision: Decision | None = None,
    ) -> None:
        """In both logs, and beside both."""
        session = digest("session", number, attempt) if number else ""
        place = (number, attempt if number else 0, session)
        nonce = f"{receiver if kind not in ('Header', 'Result') else ''} {place}"
        # Its headers are of no run, so that nothing is concluded from what they say.
        one = signed_message(kind, sender, self.sites.index(sender), nonce, session)
        size = size if vector_digests(one.body) else size_of(one)
        found = one.digest().hex()
        sent = Entry("sent", kind, *place, receiver, size, found, decision=decision, disclosure=shown)
        self.logs[sender].append(sent)
        self.logs[receiver].append(Entry("received", kind, *place, sender, size, found))
        for site in (sender, receiver):
            self.kept[site].keep(kept_form(one))

    def witness(self) -> None:
        """Checkpoints of all, those of the sources cosigned by the target, the target's by all sources."""
        for site in self.sites:
            self.sign(site, self.sources if site == TARGET else (TARGET,))

    def sign(self, site: str, witnesses: Iterable[str]) -> None:
        log = self.logs[site]
        text = Note.parse(log.checkpoint()).text
        for witness in witnesses:
            name = witness_name(FEDERATION, witness)
            key = NoteKey(name, COSIGNATURE_V1, self.keys[witness].public_key().public_bytes_raw())
            log.add_cosignature(log.size, cosign(text, name, self.keys[witness], 1_800_000_000), key)

    def close(self) -> Path:
        self.witness()
        for log in self.logs.values():
            log.close()
        for kept in self.kept.values():
            kept.close()
        return self.folder
