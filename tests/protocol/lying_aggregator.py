"""An aggregator that tells every source something else, with up to max_colluders sources that do whatever it needs.

There is no honest aggregator behind it. It hears all that honest sources send, makes what a source waits for out of
any of it, and signs with the target's key. Colluders advertise, share and sign whatever fits the view of the source
that it is for.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from cohort import RUN_ID, TARGET, AnySigned, Bytes, header_body, identity, over_the_wire, roster_of, signer
from session_network import received
from session_sites import WIDTH, HonestSource, Terms, UnitTrainer, folder_in_memory, must, witness_at

from securefda.aggregator.store import AggregatorStore
from securefda.audit import signed_notes
from securefda.audit.signed_notes import witness_name
from securefda.protocol import agreement
from securefda.protocol import source_session as src
from securefda.protocol.agreement import BoxAddress, SharePair, report_commitment
from securefda.protocol.messages import (
    NO_CONTEXT,
    Advertise,
    Checkpoint,
    Consistency,
    Cosigned,
    DeliveredBox,
    Header,
    KeyAgreement,
    KeyList,
    Layer,
    MaskedInput,
    MasterShare,
    Parcel,
    Result,
    SelfMaskShare,
    ShareBundle,
    ShareDelivery,
    Signed,
    Survivor,
    Survivors,
    SurvivorSignature,
    Unmask,
)
from securefda.protocol.secret import Secret
from securefda.protocol.session_checks import report_bytes, report_readers
from securefda.protocol.share_boxes import boxes_of, private_key
from securefda.protocol.transcript import nonce_commitment
from securefda.transport.in_memory import UnderWay

MODEL = bytes(4 * WIDTH)
NO_SHARES = SharePair(Secret(bytes(33)), Secret(bytes(33)))


@dataclass
class Colluder:
    """One colluder in one session. What it shares need not open anything: the aggregator has its secrets anyway."""

    index: int
    header: Signed[Header]

    def __post_init__(self) -> None:
        random = Bytes("colluder", self.index, self.header.digest())
        self.boxes = boxes_of(self.header.body, private_key(self.header.body, random))
        self.mask_pair = agreement.KeyPair(Secret(random(32)))
        self.nonce = random(32)

    def _sign(self, context: bytes, body: Any) -> AnySigned:
        return signer(self.index).sign(self.header.envelope.session_id, context, body)

    def advertise(self) -> AnySigned:
        ctx = self.header.digest()
        commitment = nonce_commitment(self.nonce, own=self.index, ctx=ctx)
        return self._sign(ctx, Advertise(self.mask_pair.public, self.boxes.public, bytes(32), commitment))

    @property
    def _report(self) -> Secret:
        return Secret(bytes(report_bytes(self.header.body)))

    def box(self, ctx1: bytes, recipient: int, box_key: bytes) -> DeliveredBox:
        readers = report_readers(self.header.body, self.index)
        committed = report_commitment(self._report, own=self.index, ctx=ctx1)
        address = BoxAddress(ctx1, self.index, recipient, report_commitment=committed)
        report = self._report if recipient in readers else None
        drawn = Bytes("box", self.index, recipient, ctx1)
        sealed = self.boxes.seal(address, box_key, NO_SHARES, report, master=Secret(bytes(32)), random_bytes=drawn)
        return DeliveredBox(self.index, sealed, self.nonce, committed)

    def input(self, ctx2: bytes, digest: bytes) -> AnySigned:
        return self._sign(ctx2, MaskedInput(digest, 4))

    def signature(self, ctx2: bytes, digest: bytes) -> AnySigned:
        return self._sign(ctx2, SurvivorSignature(digest))


class LyingAggregator:
    """The aggregator with its colluders, and the honest sources against it.

    Attributes:
        sent: every message of the aggregator so far.
        heard: every message of an honest source so far.
        headers: every header so far.
        results: digest of the last result that each source accepted.
    """

    def __init__(self, terms: Terms, colluding: Collection[int], events: Counter[str]) -> None:
        self.terms, self.events = terms, events
        self.folder = folder_in_memory()
        self.indices = [index for index in range(terms.n + 1) if index != TARGET]
        self.colluding = sorted(colluding)
        self.sources = {i: HonestSource(i, self.folder, terms) for i in self.indices if i not in colluding}
        self.sent: list[AnySigned] = []
        self.heard: list[AnySigned] = []
        self.headers: list[AnySigned] = []
        self.results: dict[int, bytes] = {}
        self._colluders: dict[tuple[int, bytes], Colluder] = {}
        self._begin_log()

    def _begin_log(self) -> None:
        """Have a log that everyone has cosigned: no header goes without one. All further records are left out."""
        self._store = AggregatorStore(self.folder / "target.sqlite")
        self.witness = witness_at(self.folder, TARGET, self.terms, self._store)
        self.witness.journal.begin(RUN_ID.hex())
        self.witness.renew()
        for index, source in self.sources.items():
            source.join(RUN_ID.hex())
            for answer in source.handle(self.witness.show(index)):
                self._hear_of_logs(index, answer.message.body)
        shown = signed_notes.Note.parse(self.witness.note)
        for index in self.colluding:
            name = witness_name(roster_of(self.terms.n).federation_id, roster_of(self.terms.n).by_index(index).site_id)
            line = signed_notes.cosign(shown.text, name, identity(index), 1).to_line()
            self.witness.take(index, Cosigned(signed_notes.Checkpoint.parse(shown.text).size, line))

    def _hear_of_logs(self, index: int, body: Any) -> None:
        if isinstance(body, Cosigned):
            must(self.witness.take(index, body), f"source {index} cosigns another checkpoint")
        if isinstance(body, Checkpoint):
            self.sources[index].handle(self.witness.cosign(index, body))

    def close(self) -> None:
        self.witness.journal.close()
        self._store.close()
        for source in self.sources.values():
            source.close()
        shutil.rmtree(self.folder)

    # What it can make.

    def header(self, session_id: bytes, **changes: Any) -> AnySigned:
        """A header that every source takes, but for the changes."""
        layers = (Layer("weight", (WIDTH,), 1.0, 1.0),)
        digest = UnitTrainer(TARGET).architecture_digest
        fixed = {
            "layers": layers,
            "architecture_digest": digest,
            "model_digest": sha256(MODEL).digest(),
            "previous_checkpoint": self.witness.note,
            "key_agreement": KeyAgreement.X25519_MLKEM768,
        }
        body = header_body(self.terms.n, **(fixed | changes))
        header = signer(TARGET).sign(session_id, NO_CONTEXT, body)
        self.headers.append(header)
        return header

    def next_message(self, victim: int, without: Collection[int] = ()) -> AnySigned | None:
        """What a source waits for, as if the sources ``without`` had not answered."""
        phase = self.sources[victim].phase
        match phase:
            case src.AwaitingKeyList(session=session):
                return self._key_list(session, without)
            case src.AwaitingShares(session=session):
                return self._sign(session, phase.ctx1, self._delivery(victim, phase, without))
            case src.AwaitingSurvivors(session=session):
                return self._sign(session, phase.ctx2, self._lists(phase, without))
            case src.AwaitingConsistency(session=session):
                return self._sign(session, phase.ctx2, self._signatures(phase, without))
            case src.AwaitingResult(session=session):
                body = Result(b"", phase.survivors, session.header.body.model_digest)
                return self._sign(session, session.ctx, body)
        return None

    def _sign(self, session: src.Session, context: bytes, body: Any) -> AnySigned:
        return signer(TARGET).sign(session.header.envelope.session_id, context, body)

    def _of(self, kind: type, context: bytes | None) -> list[AnySigned]:
        """What honest sources said, under one view of the session or under any."""
        heard = [message for message in self.heard if isinstance(message.body, kind)]
        return [message for message in heard if context in (None, message.envelope.context)]

    def colluders(self, header: Signed[Header], members: Collection[int]) -> list[Colluder]:
        """The colluders among some sources, in the session of a header."""
        for index in self.colluding:
            self._colluders.setdefault((index, header.digest()), Colluder(index, header))
        return [self._colluders[index, header.digest()] for index in self.colluding if index in members]

    def _key_list(self, session: src.Session, without: Collection[int]) -> AnySigned:
        items = self._of(Advertise, session.ctx)
        items += [colluder.advertise() for colluder in self.colluders(session.header, session.header.body.participants)]
        chosen = sorted((item for item in items if item.sender not in without), key=lambda item: item.sender)
        return self._sign(session, session.ctx, KeyList(tuple(chosen)))

    def _delivery(self, victim: int, phase: src.AwaitingShares, without: Collection[int]) -> ShareDelivery:
        boxes = [
            DeliveredBox(bundle.sender, box.box, bundle.body.nonce, bundle.body.report_commitment)
            for bundle in self._of(ShareBundle, phase.ctx1)
            for box in bundle.body.boxes
            if box.peer == victim
        ]
        own_key = phase.u1[victim].box_key
        boxes += [
            colluder.box(phase.ctx1, victim, own_key) for colluder in self.colluders(phase.session.header, phase.u1)
        ]
        return ShareDelivery(tuple(sorted((b for b in boxes if b.peer not in without), key=lambda b: b.peer)))

    def _lists(self, phase: src.AwaitingSurvivors, without: Collection[int]) -> Survivors:
        members = sorted(frozenset[int]().union(*phase.cohorts))
        digests = {message.sender: message.body.digest for message in self._of(MaskedInput, phase.ctx2)}
        alive = tuple(Survivor(i, digests.get(i, bytes(32))) for i in members if i not in without)
        return Survivors(alive, tuple(i for i in members if i in without), phase.reports_digest)

    def _signatures(self, phase: src.AwaitingConsistency, without: Collection[int]) -> Consistency:
        digest, alive = phase.own.body.survivors_digest, [survivor.index for survivor in phase.lists.survivors]
        items = [item for item in self._of(SurvivorSignature, phase.ctx2) if item.body.survivors_digest == digest]
        colluders = self.colluders(phase.session.header, alive)
        items += [colluder.signature(phase.ctx2, digest) for colluder in colluders]
        digests = {survivor.index: survivor.input_digest for survivor in phase.lists.survivors}
        inputs = [item for item in self._of(MaskedInput, None) if digests.get(item.sender) == item.body.digest]
        inputs += [colluder.input(phase.ctx2, digests[colluder.index]) for colluder in colluders]
        inputs.sort(key=lambda item: alive.index(item.sender))
        return Consistency(tuple(item for item in items if item.sender not in without), tuple(inputs))

    # What it does.

    def tell(self, victim: int, message: AnySigned) -> None:
        """A source processes a message; its answers are heard."""
        source = self.sources[victim]
        self.sent.append(message)
        vectors = (MODEL,) if isinstance(message.body, Header) else ()
        was_result = isinstance(source.phase, src.AwaitingResult)
        passed = received(UnderWay.of(TARGET, victim, Parcel(message, vectors)))
        if passed is None or source.rounds.standing.failure is not None:
            return
        alarms = len(source.alarms)
        self.hear(victim, lambda: source.handle(passed.parcel))
        if was_result and isinstance(message.body, Result) and len(source.alarms) == alarms:
            self.results[victim] = message.digest()

    def hear(self, victim: int, act: Callable[[], list[Parcel]]) -> None:
        """A source does something; what it says is heard."""
        for answer in act():
            self.events[f"heard {answer.message.type_name}"] += 1
            self.heard.append(over_the_wire(answer.message))
            if isinstance(answer.message.body, Unmask):
                self._judge(answer.message.envelope.session_id)

    # What it must not learn.

    def _judge(self, session: bytes) -> None:
        """With all shares that were sent, and those that colluders hold, no sum opens that hides too few."""
        views = {message.body.survivors_digest for message in self.heard if _is_signature(message, session)}
        self.events[f"unmasked in {len(views)} views"] += 1
        opened = {
            i
            for i, source in self.sources.items()
            if session in source.views and self._opens(session, i, SelfMaskShare)
        }
        stripped = {index for index in self.sources if self._opens(session, index, MasterShare)}
        must(not opened & stripped, f"both secrets of {sorted(opened & stripped)} open")
        for owner in opened:
            self._judge_sum(session, owner, opened, stripped)

    def _opens(self, session: bytes, owner: int, kind: type) -> bool:
        """Whether t shares of a secret are in its hands."""
        source = self.sources[owner]
        if session not in source.headers:
            return False
        holders = [holder for holder in self.sources.values() if holder.unmasked.get(session, {}).get(owner) is kind]
        return bool(holders) and len(holders) + len(self.colluding) >= source.headers[session].body.threshold

    def _judge_sum(self, session: bytes, owner: int, opened: set[int], stripped: set[int]) -> None:
        """The smallest sum with the input of ``owner`` from which every mask can be taken off.

        An honest member of its cohort whose master opens is stripped from it. Any other has to be in the sum, and
        adds masks that cancel only if it masked under the same transcript.
        """
        view, cohort = self.sources[owner].views[session]
        others = {index for index in cohort & set(self.sources) if index != owner and index not in stripped}
        same = all(self.sources[index].views.get(session, (b"",))[0] == view for index in others)
        if same and others <= opened:
            self.events["sum opens"] += 1
            must(
                len(others) >= self.terms.min_others,
                f"a sum of {owner} opens that hides it among {sorted(others)} only",
            )


def _is_signature(message: AnySigned, session: bytes) -> bool:
    return isinstance(message.body, SurvivorSignature) and message.envelope.session_id == session
