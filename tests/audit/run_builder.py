"""N+1 logs of a small run with real signed messages: three sources, and a round at each level. Tests put lies into it.

Whatever passes between two sites goes through ``Run.alter`` first, every header through ``Run.header_changes``, and
every event through ``Run.alter_event``: a lie overrides one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from known_sites import known_keys, known_roster

from securefda.audit import signed_notes
from securefda.audit.kept import KeptMessages
from securefda.audit.log import AuditLog
from securefda.audit.log_records import Decision, Disclosure, DpSpent, Entry
from securefda.audit.reading import open_log
from securefda.audit.reconcile.check import PartyLog
from securefda.audit.reconcile.reconciled_runs import reconcile
from securefda.audit.reconcile.run_transcript import Members, read_transcript
from securefda.audit.reconcile.suspicion import Reconciliation
from securefda.audit.signed_notes import COSIGNATURE_V1, LogName, Note, NoteKey, witness_name
from securefda.audit.statements import KeptStatements, StatementReader
from securefda.audit.verify import verify_log
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import DpEvent
from securefda.protocol import messages as m
from securefda.protocol.envelope import sign_bytes
from securefda.transport import wire

RUN_ID = bytes(range(16))
RUN = RUN_ID.hex()
TARGET, SOURCES = "hospital-t", ("hospital-a", "hospital-b", "hospital-c")
SITES = (TARGET, *SOURCES)
KEYS = known_keys(SITES)
ROSTER = known_roster("study", SITES)
PUBLIC = {entry.site_id: entry.signing_key for entry in ROSTER.entries}
MEMBERS = Members("study", RUN, TARGET, PUBLIC, ROSTER.digest().hex())
SUM, COHORT, INDIVIDUAL = m.Visibility.SUM, m.Visibility.COHORT, m.Visibility.INDIVIDUAL
_KEPT_NEVER = ("ShareBundle", "ShareDelivery", "Unmask")
NOISE, RATE, STEPS, DELTA = 1.1, 0.1, 20, 1e-5


def digest(*words: object) -> bytes:
    return sha256(" ".join(map(str, words)).encode()).digest()


def sign(site: str, body: Any, session: bytes = m.NO_SESSION, context: bytes = b"") -> m.Signed[Any]:
    return m.Signer(SITES.index(site), KEYS[site], wire.encode).sign(session, context, body)


def badly_signed(message: m.Signed[Any]) -> m.Signed[Any]:
    """The same bytes with somebody else's signature."""
    stranger = Ed25519PrivateKey.from_private_bytes(bytes(32))
    return replace(message, signature=sign_bytes(stranger, message.type_name, message.signed_bytes))


@dataclass
class Passing:
    """A message from one site to another, and what both write of it; ``shown`` replaces it at the receiver."""

    sender: str
    receiver: str
    message: m.Signed[Any]
    place: tuple[int, int, str] = (0, 0, "")
    disclosure: Disclosure | None = None
    decision: Decision | None = None
    shown: m.Signed[Any] | None = None
    logs_sent: bool = True
    logs_received: bool = True
    keeps: bool = True
    received_bytes: int = 0


@dataclass
class Clock:
    now: datetime = datetime(2026, 11, 21, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        self.now += timedelta(milliseconds=20)
        return self.now


class Site:
    """One site's log."""

    def __init__(self, folder: Path, name: str, clock: Clock, run: str = RUN) -> None:
        self.name, self.folder = name, folder / run
        self.log = AuditLog.open(folder, LogName("study", name, run), KEYS[name], clock)
        self.kept = KeptMessages(self.folder)
        (self.folder / "roster.json").write_bytes(ROSTER.canonical_bytes())
        self.known: dict[str, int] = {}

    def event(
        self, kind: str, place: tuple[int, int, str] = (0, 0, ""), dp: DpSpent | None = None, **facts: Any
    ) -> None:
        number, attempt, session = place
        self.log.append(Entry("event", kind, round=number, attempt=attempt, session=session, dp=dp, facts=facts))

    def message(self, direction: Any, passing: Passing, message: m.Signed[Any]) -> None:
        number, attempt, session = passing.place
        sent = direction == "sent"
        size = len(message.signed_bytes) + 64 + (0 if sent else passing.received_bytes)
        self.log.append(
            Entry(
                direction,
                message.type_name,
                round=number,
                attempt=attempt,
                session=session,
                peer=passing.receiver if sent else passing.sender,
                bytes=size,
                digest=message.digest().hex(),
                disclosure=passing.disclosure if sent else None,
                decision=passing.decision if sent else None,
            )
        )
        if passing.keeps and message.type_name not in _KEPT_NEVER:
            self.kept.keep(wire.encode_signed(message))

    def cosigned(self, size: int, by: str, text: str) -> None:
        key = NoteKey(witness_name("study", by), COSIGNATURE_V1, PUBLIC[by])
        self.log.add_cosignature(size, signed_notes.cosign(text, key.name, KEYS[by], 1_800_000_000), key)


class Run:
    """Writes the logs of a run into ``folder/sites/SITE/local/audit/RUN``."""

    levels: tuple[m.Visibility, ...] = (SUM, COHORT, INDIVIDUAL)

    def __init__(self, folder: Path, run: str = RUN, *, hours: float = 0) -> None:
        """``hours`` is how much later than others it begins."""
        self.folder, self.run, clock = folder, run, Clock()
        clock.now += timedelta(hours=hours)
        logs = {site: folder / "sites" / site / "local" / "audit" for site in SITES}
        self.sites = {site: Site(logs[site], site, clock, run) for site in SITES}
        self.target = self.sites[TARGET]
        self.model, self.result, self.note = digest("model 0"), b"", b""

    # -- what lies override ------------------------------------------------------------------------------------------

    def alter(self, passing: Passing) -> Iterable[Passing]:
        """What really passes, and is written."""
        return [passing]

    def header_changes(self, number: int, attempt: int) -> dict[str, Any]:
        """Fields of a header that are not what they should be."""
        return {}

    def alter_event(self, site: str, kind: str, number: int, facts: dict[str, Any]) -> dict[str, Any] | None:
        """Facts of an event, None for no event."""
        return facts

    def spent(self, site: str, number: int) -> dict[str, Any]:
        """Changes of what a ledger update says."""
        return {}

    # -- the run -----------------------------------------------------------------------------------------------------

    def write(self) -> Path:
        """The whole run, rounds 1, 2, 3."""
        for site in SITES:
            self.begin(site)
        for site in SOURCES:
            self.send(Passing(site, TARGET, sign(site, m.Join(digest("architecture"), SUM, False, 0))))
        self.witness()
        for number, level in enumerate(self.levels, 1):
            self.round(number, 1, level)
            self.witness()
        self.end()
        return self.folder

    def begin(self, site: str) -> None:
        roster = ROSTER.digest().hex()
        self.event(site, "run-began", release="0.1.0", task="digits", strategy="fedgp", roster=roster)
        if site != TARGET:
            self.event(site, "policy-loaded", policy=digest("policy", site).hex())

    def event(
        self, site: str, kind: str, place: tuple[int, int, str] = (0, 0, ""), dp: DpSpent | None = None, **facts: Any
    ) -> None:
        altered = self.alter_event(site, kind, place[0], facts)
        if altered is not None:
            self.sites[site].event(kind, place, dp, **altered)

    def send(self, passing: Passing) -> None:
        for one in self.alter(passing):
            if one.logs_sent:
                self.sites[one.sender].message("sent", one, one.message)
            if one.logs_received:
                self.sites[one.receiver].message("received", one, one.shown or one.message)

    def witness(self) -> None:
        """The target's checkpoint to all, and theirs to it."""
        text, size = self.checkpoint(TARGET)
        for site in SOURCES:
            self.show(TARGET, site, text, size)
            own, own_size = self.checkpoint(site)
            self.show(site, TARGET, own, own_size)
        self.note = (self.target.folder / f"checkpoints/{size:016d}").read_bytes()

    def checkpoint(self, site: str) -> tuple[str, int]:
        text = Note.parse(self.sites[site].log.checkpoint()).text
        head = signed_notes.Checkpoint.parse(text)
        self.event(site, "checkpoint-signed", size=head.size, root=head.root.hex())
        return text, head.size

    def show(self, owner: str, witness: str, text: str, size: int) -> None:
        site, head = self.sites[owner], signed_notes.Checkpoint.parse(text)
        note = Note(text, (signed_notes.sign(text, head.origin, KEYS[owner]),))
        self.send(Passing(owner, witness, sign(owner, m.Checkpoint(note.to_bytes(), 0, (), 0))))
        self.event(witness, "checkpoint-cosigned", origin=head.origin, size=size, root=head.root.hex())
        site.cosigned(size, witness, text)
        line = signed_notes.cosign(text, witness_name("study", witness), KEYS[witness], 1_800_000_000).to_line()
        self.send(Passing(witness, owner, sign(witness, m.Cosigned(size, line))))

    def round(self, number: int, attempt: int, level: m.Visibility) -> None:
        header = self.header(number, attempt, level)
        place = (number, attempt, header.envelope.session_id.hex())
        sent = header.body.features
        if sent is not None:
            facts = {
                "rows": sent.rows,
                "width": sent.width,
                "features": sent.digest.hex(),
                "clip": "0.0",
                "noise": "0.0",
            }
            self.event(TARGET, "features-released", place, **facts)
        for site in SOURCES:
            shown = Disclosure("individual", "model" if sent is None else "model-and-target-features", 1)
            self.send(Passing(TARGET, site, header, place, disclosure=shown))
            self.charge(site, number, attempt)
        if level is INDIVIDUAL:
            self.updates(header, place)
        else:
            self.session(header, place)
        self.finish(header, place, level)

    def header(self, number: int, attempt: int, level: m.Visibility, **changes: Any) -> m.Signed[m.Header]:
        fields: dict[str, Any] = {
            "run_id": bytes.fromhex(self.run),
            "round": number,
            "attempt": attempt,
            "levels": (level,) * 3,
            "rule": m.RuleTerms("fedavg", 0.5, "orthogonal", True, True, "mean-field", 1.0),
            "target": None,
            "layers": (m.Layer("w", (4,), 1.0, 1.0),),
            "architecture_digest": digest("architecture"),
            "model_digest": self.model,
            "roster_digest": ROSTER.digest(),
            "participants": (1, 2, 3),
            "threshold": 1 if level is INDIVIDUAL else 3,
            "modulus_bits": 32,
            "n_max": 6,
            "max_samples": 1000,
            "training_deadline_ms": 60_000,
            "phase_deadline_ms": 10_000,
            "previous_result_digest": self.result,
            "previous_checkpoint": self.note,
        }
        if level is SUM:
            fields |= {"sum_quorum": 3, "norm_cap": m.NormCapTerms(1.0, 2, m.Granularity.MODEL)}
        if level is COHORT:
            fields |= {"cohort_size": 3, "cohort_quorum": 3}
        body = m.Header(**(fields | self.header_changes(number, attempt) | changes))
        return sign(TARGET, body, digest("session", number, attempt, sorted(changes)))

    def charge(self, site: str, number: int, attempt: int) -> None:
        fields: dict[str, Any] = {
            "mechanism": "dp-sgd",
            "accountant": "rdp",
            "noise_multiplier": repr(NOISE),
            "sampling_rate": repr(RATE),
            "max_grad_norm": "1.0",
            "delta": repr(DELTA),
            "epsilon": repr(epsilon([DpEvent("-", 1, 0, NOISE, RATE, STEPS * number, 1.0)], DELTA, "rdp")),
            "steps": STEPS,
            "ledger_rows": 2 * number,
            "ledger_digest": digest("ledger", site, number).hex(),
        }
        self.event(site, "ledger-updated", (number, attempt, ""), DpSpent(**(fields | self.spent(site, number))))

    def updates(self, header: m.Signed[m.Header], place: tuple[int, int, str]) -> None:
        for site in SOURCES:
            self.release(site, self.update(site, header), place, Disclosure("individual", "update", 1))

    def update(self, site: str, header: m.Signed[m.Header], again: str = "") -> m.Signed[m.Update]:
        body = m.Update(digest("update", site, header.body.round, again), 16, 100, bytes(32))
        return sign(site, body, header.envelope.session_id, header.digest())

    def release(self, site: str, message: m.Signed[Any], place: tuple[int, int, str], shown: Disclosure) -> None:
        self.event(site, "release-fuse-burnt", place)
        decision = Decision("allowed", "max-visibility")
        self.send(Passing(site, TARGET, message, place, disclosure=shown, decision=decision))

    def session(self, header: m.Signed[m.Header], place: tuple[int, int, str]) -> None:
        level, session_id, ctx = header.body.levels[0], header.envelope.session_id, header.digest()
        adverts = [self.advertise(site, header, place) for site in SOURCES]
        self.to_all(sign(TARGET, m.KeyList(tuple(adverts)), session_id, ctx), place)
        for site in SOURCES:
            boxes = tuple(m.ShareBox(peer, b"box") for peer in (1, 2, 3) if SITES[peer] != site)
            bundle = m.ShareBundle(boxes, digest(site), digest("report", site) if level is SUM else b"")
            self.send(Passing(site, TARGET, sign(site, bundle, session_id, ctx), place))
        for site in SOURCES:
            boxes = tuple(m.DeliveredBox(peer, b"box", digest(peer)) for peer in (1, 2, 3) if SITES[peer] != site)
            self.send(Passing(TARGET, site, sign(TARGET, m.ShareDelivery(boxes), session_id, ctx), place))
        shown = Disclosure(level.label, "update", 3)
        inputs = []
        for site in SOURCES:
            if level is SUM:
                self.event(site, "caps-computed", place, caps=digest("caps").hex(), layers=1, capped=0, zeroed=0)
            inputs.append(
                sign(site, m.MaskedInput(digest("input", site, place), 16), session_id, digest("ctx2", place))
            )
            self.release(site, inputs[-1], place, shown)
        self.open(header, place, inputs)

    def advertise(self, site: str, header: m.Signed[m.Header], place: tuple[int, int, str]) -> m.Signed[m.Advertise]:
        keys = [digest(kind, site, header.body.round) for kind in ("mask", "box", "self", "nonce")]
        message = sign(site, m.Advertise(*keys), header.envelope.session_id, header.digest())
        self.send(Passing(site, TARGET, message, place))
        return message

    def open(self, header: m.Signed[m.Header], place: tuple[int, int, str], inputs: list[m.Signed[Any]]) -> None:
        session_id, ctx2 = header.envelope.session_id, digest("ctx2", place)
        lists = tuple(m.Survivor(one.sender, one.body.digest) for one in inputs)
        self.to_all(sign(TARGET, m.Survivors(lists, ()), session_id, ctx2), place)
        signatures = []
        for site in SOURCES:
            self.event(site, "survivors-signed", place, survivors=sorted(SOURCES))
            signatures.append(sign(site, m.SurvivorSignature(digest("lists", place)), session_id, ctx2))
            self.send(Passing(site, TARGET, signatures[-1], place))
        self.to_all(sign(TARGET, m.Consistency(tuple(signatures), tuple(inputs)), session_id, ctx2), place)
        for site in SOURCES:
            self.event(site, "unmask-shares-released", place, survivors=sorted(SOURCES), dropped=[])
            shares = tuple(m.SelfMaskShare(owner, bytes(33)) for owner in (1, 2, 3))
            self.send(Passing(site, TARGET, sign(site, m.Unmask(shares), session_id, ctx2), place))

    def finish(self, header: m.Signed[m.Header], place: tuple[int, int, str], level: m.Visibility) -> None:
        self.model = digest("model", place[0])
        summed = b"" if level is INDIVIDUAL else digest("sum", place[0])
        body = m.Result(summed, 3, self.model)
        result = sign(TARGET, body, header.envelope.session_id, header.digest())
        self.result = result.digest()
        self.to_all(result, place)

    def to_all(self, message: m.Signed[Any], place: tuple[int, int, str]) -> None:
        for site in SOURCES:
            self.send(Passing(TARGET, site, message, place))

    def end(self) -> None:
        for site in SITES:
            self.event(site, "run-ended", outcome="completed", rounds=len(self.levels))
        self.witness()
        for site in SOURCES:
            self.say_goodbye(site)
        self.close()

    def say_goodbye(self, site: str) -> None:
        self.send(Passing(TARGET, site, sign(TARGET, m.Goodbye(True, len(self.levels), ""))))

    def close(self) -> None:
        for one in self.sites.values():
            one.log.close()
            one.kept.close()


class HangsUp(Run):
    """The target takes the norm reports of round 1, and hangs up."""

    levels = (SUM,)

    def session(self, header: m.Signed[m.Header], place: tuple[int, int, str]) -> None:
        for site in SOURCES:
            self.advertise(site, header, place)
        raise _HungUp

    def write(self) -> Path:
        try:
            super().write()
        except _HungUp:
            self.close()
        return self.folder


class _HungUp(Exception):
    pass


def folder_of(folder: Path, site: str) -> Path:
    return folder / "sites" / site / "local" / "audit" / RUN


def read_together(folder: Path, sites: Sequence[str] = SITES, unsigned: Sequence[str] = ()) -> Reconciliation:
    """As the command does it: every log verified with the checkpoints that others hold, then all read together.

    Of the ``unsigned`` no checkpoint is taken to be there.
    """
    folders = {site: folder_of(folder, site) for site in sites}
    statements = KeptStatements(StatementReader(ROSTER), list(folders.values()))
    transcript = read_transcript(statements.transcript(), MEMBERS)
    logs = []
    for site, path in folders.items():
        verification = verify_log(
            path, MEMBERS.log_of(site), PUBLIC, witnesses_needed=1, known=transcript.held_of(site, MEMBERS)
        )
        log = open_log(path)
        size = sum(1 for _ in log.records())
        logs.append(PartyLog(site, verification, log.records, size, str(path), is_unsigned=site in unsigned))
    return reconcile(logs, MEMBERS, transcript, statements)
