"""The attacker's aggregator: plays an honest run, keeps everything, and can send each source something different.

A subclass overrides one of the ``..._for`` methods, which give the body of a message for one source; it is signed with
the target's real key, in that source's session and context. ``None`` in place of a body: that source gets nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

from securefda.aggregator.attendance import CosignerTracker
from securefda.aggregator.headers import AttemptPosition, Planner, SessionPlan, make_header
from securefda.aggregator.ranges import WordFormat
from securefda.aggregator.target import TargetOutput, summed_sizes, train_target, vectors_for
from securefda.errors import FaultySourceError
from securefda.protocol.encoding import vector_from_wire, vector_to_wire
from securefda.protocol.messages import (
    NO_CONTEXT,
    NO_SESSION,
    RUN_ID_BYTES,
    Abort,
    Advertise,
    Body,
    BodyT,
    Checkpoint,
    Consistency,
    Cosigned,
    DeliveredBox,
    Header,
    Join,
    KeyList,
    MaskedInput,
    MissedResult,
    NeighbourConsistency,
    Neighbours,
    Nonce,
    Parcel,
    Receipt,
    Refusal,
    Result,
    Roll,
    Send,
    ShareBundle,
    ShareDelivery,
    Signed,
    Step,
    Survivor,
    Survivors,
    SurvivorSignature,
    Unmask,
    Update,
    Visibility,
)
from securefda.protocol.secret import draw
from securefda.protocol.transcript import advertise_digest, drawn_ring, ring_context
from securefda.rules import RoundPlan, round_plan
from securefda.training import Vector
from threat_model.adversaries.heard import Heard, View
from threat_model.adversaries.masks import behind_vector, ring_vector
from threat_model.adversaries.opens import Opens
from threat_model.adversaries.sources import ColludingSource
from threat_model.sites import AggregatorSeat


class MaliciousAggregator(Opens):
    """The target as an attacker. Without an override it plays every round of the run honestly.

    Powers: the target's signing key, the relay of every message, what a target computes, and the copied secrets of
    ``colluders``. It does not hold a key or a secret of any other source, and not the CA's key.

    Attributes:
        receipts, had_result: for the last result, by roster index; and to whom it was sent.
        joined: who reported, and the most that each said its policy lets the aggregator see.
        with_metrics: those of them that hand in loss and accuracy.
        sessions: all that was heard, one entry per attempt; ``heard`` is the last.
        colluders: the colluding sources, by roster index.
        model: what it publishes next.
        run: of which it says that it is, 16 bytes.
        witness, witnesses: its log, which it keeps honestly, and who has cosigned its one checkpoint: it makes none
            after the first, so that every header can carry that one.
        instance: a number; where it is another one the sources connect again, and join again.
    """

    def __init__(self, seat: AggregatorSeat) -> None:
        self.seat, self.signer, self.roster = seat, seat.site.signer, seat.site.roster
        self.colluders = {i: one for i, one in seat.colluders.items() if isinstance(one, ColludingSource)}
        self.run = draw(seat.site.random_bytes, RUN_ID_BYTES)
        self.witness, self.witnesses = seat.site.witness, CosignerTracker(seat.site)
        self.instance = 0
        self.model: Vector = seat.site.trainer.initial_model()
        self.target: TargetOutput | None = None
        self.last_result: Signed[Result] | None = None
        self.receipts: dict[int, Signed[Receipt]] = {}
        self.had_result: set[int] = set()
        self.joined: dict[int, Visibility] = {}
        self.with_metrics: set[int] = set()
        self.sessions: list[Heard] = []
        self.done = False
        self.deadline: float | None = None
        self._waits_for: type | None = None

    # What is said to whom: override any of these.

    def next_place(self) -> AttemptPosition | None:
        """The attempt that comes next, None to end the run: one attempt at each round of the run's settings."""
        number = len(self.sessions) + 1
        previous = self.last_result.digest() if self.last_result else b""
        return AttemptPosition(self.run, number, 1, previous) if number <= self.seat.settings.strategy.rounds else None

    def participants(self) -> set[int]:
        """Return U0 of the next attempt."""
        return set(self.joined)

    def session_plan(self, members: set[int]) -> SessionPlan:
        """Return levels, threshold and quorums of the next attempt: honest, except for a threshold in the settings."""
        names = {index: self.seat.site.name(index) for index in self.joined}
        plan = Planner(names, replace(self.seat.settings, threshold=0)).plan({i: self.joined[i] for i in members})
        threshold = self.seat.settings.threshold or plan.threshold
        at_sum_alone = set(plan.levels.values()) == {Visibility.SUM}
        return replace(plan, threshold=threshold, sum_quorum=threshold if at_sum_alone else plan.sum_quorum)

    def train(self, place: AttemptPosition, plan: RoundPlan) -> TargetOutput | None:
        """Return what the target itself computes in a round."""
        compute = self.seat.site.output_from_features
        if compute is not None and plan.rule.uses_target_features:
            return compute(self.model, place.round, self.run_id, plan)
        return train_target(self.seat.site.trainer, self.model, place.round, plan)

    def model_for(self, index: int) -> Vector:  # noqa: ARG002 - for overriding
        """Return the model that a source is sent."""
        return self.model

    def header_for(self, index: int) -> Header | None:
        """Return the header R: by default the same for all, except for the digest of :meth:`model_for`."""
        return replace(self.heard.header, model_digest=sha256(vector_to_wire(self.model_for(index))).digest())

    def key_list_for(self, index: int) -> KeyList | None:  # noqa: ARG002 - for overriding
        """Return R0': all keys that were advertised."""
        return KeyList(tuple(self.heard.advertised[sender] for sender in sorted(self.heard.advertised)))

    def nonces_for(self, index: int) -> dict[int, bytes]:  # noqa: ARG002 - for overriding
        """Return the revealed nonces by owner; used on a ring."""
        return {sender: message.body.nonce for sender, message in self.heard.nonces.items()}

    def members_for(self, index: int) -> tuple[int, ...]:
        """Return U2 on a ring: the sources that sent boxes, without neighbours whose box this source does not get."""
        delivery = self.delivery_for(index)
        sent = {box.peer for box in delivery.boxes} if delivery else set()
        missing = set(self.heard.views[index].keys) - sent - {index}
        return tuple(sorted(set(self.heard.bundles) - missing))

    def delivery_for(self, index: int) -> ShareDelivery | None:
        """Return R1: the boxes that were made for this source."""
        return ShareDelivery(
            tuple(
                DeliveredBox(sender, box.box, bundle.body.nonce, bundle.body.report_commitment)
                for sender, bundle in sorted(self.heard.bundles.items())
                for box in bundle.body.boxes
                if box.peer == index
            )
        )

    def survivors_for(self, index: int) -> Survivors | None:  # noqa: ARG002 - for overriding
        """Return R3: which sources delivered, and which did not."""
        inputs = self.heard.inputs
        alive = tuple(Survivor(sender, inputs[sender].body.digest) for sender in sorted(inputs))
        return Survivors(alive, tuple(sorted(set(self.heard.bundles) - set(inputs))))

    def consistency_for(self, index: int) -> Consistency | None:
        """Return R3': all signatures."""
        signed = self.heard.signatures
        return Consistency(tuple(signed[sender] for sender in sorted(signed)), self.inputs_for(index))

    def inputs_for(self, index: int) -> tuple[Signed[MaskedInput], ...]:
        """Return for R3' the inputs of the survivors on this source's lists."""
        lists, inputs = self.heard.views[index].survivors, self.heard.inputs
        alive = lists.body.survivors if lists else ()
        return tuple(inputs[item.index] for item in alive if item.index in inputs)

    def result_for(self, index: int) -> Result | None:
        """Return the result: for the number of sources on this source's lists, with the next model."""
        view = self.heard.views[index]
        count = len(view.survivors.body.survivors) if view.survivors else len(self.heard.updates)
        return Result(b"", count, sha256(vector_to_wire(self.model)).digest())

    def witnesses_of(self, index: int) -> CosignerTracker:  # noqa: ARG002 - for overriding
        """Return the cosigners of the log that a source is shown; there is one log."""
        return self.witnesses

    def outgoing(self, index: int, parcel: Parcel) -> list[Parcel]:  # noqa: ARG002 - for overriding
        """Return what to send in place of a message that is ready and signed."""
        return [parcel]

    def attack(self) -> object:
        """Return the attacker's best estimate of the secret; by default nothing."""
        return None

    # The endpoint.

    @property
    def run_id(self) -> str:
        """32 hex digits."""
        return self.run.hex()

    def open(self) -> list[Send]:
        """Begin the log, and wait for the sources."""
        self.witness.enter(self.run_id)
        return []

    def ready(self) -> bool:
        """Return whether to begin now: the first attempt, when all sources have joined and cosigned the checkpoint."""
        return not self.sessions and set(self.joined) == self.seat.site.sources == self.witnesses.cosigned

    def receive(self, parcel: Parcel) -> list[Send]:
        """Keep a message, and go on when every expected answer has come."""
        body, sender = parcel.message.body, parcel.message.sender
        if isinstance(body, Join):
            self.joined[sender] = body.visibility
            self.with_metrics |= {sender} if body.metrics else set()
            witnesses = self.witnesses_of(sender)
            witnesses.note_known(sender, body.known)
            return [witnesses.ask(sender)]
        if isinstance(body, Checkpoint | Cosigned):
            return self._witnessed(parcel.message)
        if isinstance(body, Receipt):
            if self.last_result is not None and body.result_digest == self.last_result.digest():
                self.receipts[sender] = parcel.message  # type: ignore[assignment]  # of this body
            return []
        if self.sessions and parcel.message.envelope.session_id == self.heard.session_id:
            self._keep(sender, parcel)
            return self._go_on()
        return []

    def expire(self) -> list[Send]:
        """Go on with the sources that answered."""
        if not self.sessions:
            return self._begin()
        self.heard.asked &= set(self.heard.answers(self._waits_for)) if self._waits_for else set()
        return self._go_on()

    def sign(self, index: int, context: bytes, body: BodyT) -> Signed[BodyT]:
        """Sign with the target's key, in the session of one source."""
        return self.signer.sign(self.heard.views[index].header.envelope.session_id, context, body)

    def abort(self, index: int, step: Step) -> list[Send]:
        """End the session of one source, as if others were too slow; no more answers are expected from it."""
        body = Abort(step, "DEADLINE", None)
        return [Send(index, Parcel(self.sign(index, self.heard.views[index].ctx, body)))]

    def _keep(self, sender: int, parcel: Parcel) -> None:
        heard, body = self.heard, parcel.message.body
        if isinstance(body, Abort):
            heard.aborts[sender] = body
        elif isinstance(body, Refusal):
            heard.refusals[sender] = body.key
        else:
            heard.answers(type(body))[sender] = parcel.message
        if isinstance(body, MaskedInput):
            heard.vectors[sender] = ring_vector(heard.header, bytes(parcel.vectors[0]))
            heard.recovery[sender] = behind_vector(heard.header, bytes(parcel.vectors[0]))
        elif isinstance(body, Update):
            heard.clear[sender] = vector_from_wire(bytes(parcel.vectors[0]))

    def _witnessed(self, message: Signed[Body]) -> list[Send]:
        try:
            sends = self.witnesses_of(message.sender).receive(message)
        except FaultySourceError:
            return []
        return sends + (self._begin() if self.ready() else [])

    def _begin(self) -> list[Send]:
        place = self.next_place()
        self.done = place is None
        if place is None:
            return []
        place = replace(place, previous_checkpoint=self.witness.note)
        site, settings = self.seat.site, self.seat.settings
        plan = round_plan(settings.strategy, place.round)
        self.target = self.train(place, plan)
        members = self.participants()
        session = self.session_plan(members)
        header = make_header(
            site,
            settings,
            place,
            plan=plan,
            target=self.target,
            model=self.model,
            session=session,
            words=WordFormat(settings.bits, (settings.clip,) * len(summed_sizes(site.trainer, self.target))),
            with_metrics=members <= self.with_metrics,
        )
        self.sessions.append(Heard(header.body, header.envelope.session_id))
        self._waits_for = Advertise if header.body.masked else Update
        sends = [send for index in sorted(members) for send in self._send_header(index)]
        return sends + self._go_on()

    def _send_header(self, index: int) -> list[Send]:
        body = self.header_for(index)
        if body is None:
            return []
        header = self.signer.sign(self.heard.session_id, NO_CONTEXT, body)
        self.heard.views[index] = View(index, header)
        level = body.level_of(index) if index in body.participants else Visibility.INDIVIDUAL
        vectors = (vector_to_wire(self.model_for(index)), *vectors_for(self.target, body, level))
        return self.missed_by(index) + self._tell(index, Parcel(header, vectors))

    def missed_by(self, index: int) -> list[Send]:
        """Return what a source is shown before a header: the last result with its receipts, if it was not sent
        to it.
        """
        if self.last_result is None or index in self.had_result:
            return []
        body = MissedResult(self.last_result, tuple(self.receipts[giver] for giver in sorted(self.receipts)))
        return [Send(index, Parcel(self.signer.sign(NO_SESSION, NO_CONTEXT, body)))]

    def _tell(self, index: int, parcel: Parcel) -> list[Send]:
        self.heard.asked.add(index)
        return [Send(index, one) for one in self.outgoing(index, parcel)]

    def _go_on(self) -> list[Send]:
        """Close steps as long as no answer is missing."""
        sends: list[Send] = []
        while self._waits_for is not None and not self._waiting(self._waits_for):
            sends += self._close_step(self._waits_for)
        return sends

    def _waiting(self, kind: type) -> set[int]:
        """Return which sources still have to answer; those whose update comes in clear take no part in the others'
        session.
        """
        waiting = self.heard.asked - self.heard.gone - set(self.heard.answers(kind))
        return waiting if kind is Update else waiting - self._in_clear()

    def _in_clear(self) -> set[int]:
        headers = {index: view.header.body for index, view in self.heard.views.items()}
        return {index for index, header in headers.items() if index in header.at(Visibility.INDIVIDUAL)}

    def _close_step(self, kind: type) -> list[Send]:
        """Answer every source that answered; after the result, or when no source is left, the session is over."""
        answer, self._waits_for = self._steps()[kind]
        answered = self.heard.asked & set(self.heard.answers(kind)) - self.heard.gone
        if self._waits_for is None:
            answered |= set(self.heard.updates)
        self.heard.asked = set()
        sends = [send for index in sorted(answered) for send in answer(index)]
        if self._waits_for is None or not self.heard.asked:
            self._waits_for = None
            return sends + self._begin()
        return sends

    def _steps(self) -> dict[type, tuple[Callable[[int], list[Send]], type | None]]:
        """Return what follows on each message of the sources, and which message is expected then."""
        return {
            Advertise: (self._send_roll, Nonce) if self.heard.header.graph else (self._send_key_list, ShareBundle),
            Nonce: (self._send_neighbours, ShareBundle),
            ShareBundle: (self._send_delivery, MaskedInput),
            MaskedInput: (self._send_survivors, SurvivorSignature),
            SurvivorSignature: (self._send_consistency, Unmask),
            Unmask: (self._send_result, None),
            Update: (self._send_result, None),
        }

    def _send_key_list(self, index: int) -> list[Send]:
        view, body = self.heard.views[index], self.key_list_for(index)
        if body is None:
            return []
        view.key_list = self.sign(index, view.ctx, body)
        return self._tell(index, Parcel(view.key_list))

    def _send_roll(self, index: int) -> list[Send]:
        """Send on a ring the digests and commitments of the key list that this source is to see."""
        view, keys = self.heard.views[index], self.key_list_for(index)
        if keys is None:
            return []
        items = sorted(keys.advertisements, key=lambda item: item.sender)
        digests, commitments = map(advertise_digest, items), (item.body.nonce_commitment for item in items)
        body = Roll(tuple(item.sender for item in items), b"".join(digests), b"".join(commitments))
        view.roll, view.own = self.sign(index, view.ctx, body), self.heard.advertised[index].body
        return self._tell(index, Parcel(view.roll))

    def _send_neighbours(self, index: int) -> list[Send]:
        """Send on a ring the nonces, and the part of the key list about this source's neighbours."""
        view, keys, nonces = self.heard.views[index], self.key_list_for(index), self.nonces_for(index)
        if keys is None:
            return []
        ring = drawn_ring(self.heard.header, ring_context(view.ctx0, nonces), nonces)
        beside = tuple(item for item in keys.advertisements if item.sender in ring.neighbours(index))
        members = tuple(sorted(nonces))
        body = Neighbours(members, b"".join(nonces[member] for member in members), beside)
        view.neighbours = self.sign(index, view.ctx0, body)
        return self._tell(index, Parcel(view.neighbours))

    def _send_delivery(self, index: int) -> list[Send]:
        view, body = self.heard.views[index], self.delivery_for(index)
        if body is None:
            return []
        if self.heard.header.graph:
            boxes = tuple(box for box in body.boxes if box.peer in view.keys)
            body = ShareDelivery(boxes, self.members_for(index))
        view.delivery, view.bundle = self.sign(index, view.ctx1, body), self.heard.bundles.get(index)
        return self._tell(index, Parcel(view.delivery))

    def _send_survivors(self, index: int) -> list[Send]:
        view, body = self.heard.views[index], self.survivors_for(index)
        if body is None:
            return []
        view.survivors = self.sign(index, view.ctx2, replace(body, reports_digest=view.reports))
        return self._tell(index, Parcel(view.survivors))

    def _send_consistency(self, index: int) -> list[Send]:
        view, body = self.heard.views[index], self.consistency_for(index)
        if body is not None and self.heard.header.graph:
            body = NeighbourConsistency(
                tuple(item for item in body.signatures if item.sender in view.keys),
                tuple(item for item in body.inputs if item.sender in view.keys),
            )
        return self._send_last(index, view.ctx2, body)

    def _send_result(self, index: int) -> list[Send]:
        view, body = self.heard.views[index], self.result_for(index)
        if body is not None:
            result = self.sign(index, view.ctx, body)
            if self.last_result is None or self.last_result.digest() != result.digest():
                self.last_result, self.receipts, self.had_result = result, {}, set()
            self.had_result.add(index)
        return self._send_last(index, view.ctx, body)

    def _send_last(self, index: int, context: bytes, body: Body | None) -> list[Send]:
        return [] if body is None else self._tell(index, Parcel(self.sign(index, context, body)))
