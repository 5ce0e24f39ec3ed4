"""Messages to protobuf: one function per body type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from securefda.protocol import messages as m
from securefda.v1 import messages_pb2 as pb

BODY_FIELDS: dict[type, str] = {
    m.Header: "header",
    m.Advertise: "advertise",
    m.KeyList: "key_list",
    m.ShareBundle: "share_bundle",
    m.ShareDelivery: "share_delivery",
    m.MaskedInput: "masked_input",
    m.Update: "update",
    m.Survivors: "survivors",
    m.SurvivorSignature: "survivor_signature",
    m.Consistency: "consistency",
    m.Unmask: "unmask",
    m.Result: "result",
    m.Abort: "abort",
    m.Refusal: "refusal",
    m.Join: "join",
    m.Checkpoint: "checkpoint",
    m.Cosigned: "cosigned",
    m.Goodbye: "goodbye",
    m.Receipt: "receipt",
    m.MissedResult: "missed_result",
}
"""Name of the envelope's field for each type of body."""


def envelope_to_proto(envelope: m.Envelope[m.Body]) -> pb.Envelope:
    """Build the protobuf envelope.

    Raises:
        KeyError: the body is of no known type.
        ValueError: a number does not fit its field.
    """
    body = envelope.body
    proto = pb.Envelope(
        suite=envelope.suite, session_id=envelope.session_id, sender=envelope.sender, context=envelope.context
    )
    field = BODY_FIELDS[type(body)]
    # An empty body still has to be present, so it is marked before it is filled.
    getattr(proto, field).SetInParent()
    getattr(proto, field).CopyFrom(_ENCODERS[type(body)](body))
    return proto


def signed_to_proto(message: m.Signed[Any]) -> pb.SignedMessage:
    """Wrap the bytes that were signed, verbatim."""
    return pb.SignedMessage(signed_bytes=message.signed_bytes, signature=message.signature)


def _header(body: m.Header) -> pb.Header:
    rule, target, cap = body.rule, body.target, body.norm_cap
    return pb.Header(
        run_id=body.run_id,
        round=body.round,
        attempt=body.attempt,
        levels=[pb.Visibility.ValueType(level) for level in body.levels],
        rule=pb.RuleTerms(
            rule=rule.rule,
            beta=rule.beta,
            projection=rule.projection,
            filter=rule.filter,
            align=rule.align,
            estimator=rule.estimator,
            learning_rate_factor=rule.learning_rate_factor,
            select=rule.select,
        ),
        target=None
        if target is None
        else pb.TargetTerms(
            steps=target.steps,
            learning_rate=target.learning_rate,
            update_digest=target.update_digest,
            mean_square=target.mean_square,
            scatter=target.scatter,
        ),
        layers=[pb.Layer(name=layer.name, shape=layer.shape, clip=layer.clip) for layer in body.layers],
        architecture_digest=body.architecture_digest,
        model_digest=body.model_digest,
        roster_digest=body.roster_digest,
        participants=body.participants,
        threshold=body.threshold,
        modulus_bits=body.modulus_bits,
        n_max=body.n_max,
        max_samples=body.max_samples,
        training_deadline_ms=body.training_deadline_ms,
        phase_deadline_ms=body.phase_deadline_ms,
        previous_result_digest=body.previous_result_digest,
        previous_checkpoint=body.previous_checkpoint,
        cohort_size=body.cohort_size,
        cohort_quorum=body.cohort_quorum,
        sum_quorum=body.sum_quorum,
        norm_cap=None
        if cap is None
        else pb.NormCapTerms(kappa=cap.kappa, others=cap.others, granularity=pb.Granularity.ValueType(cap.granularity)),
        metrics=body.metrics,
    )


def _advertise(body: m.Advertise) -> pb.Advertise:
    return pb.Advertise(
        mask_key=body.mask_key,
        box_key=body.box_key,
        self_mask_commitment=body.self_mask_commitment,
        nonce_commitment=body.nonce_commitment,
        row_commitment=body.row_commitment,
    )


def _survivors(body: m.Survivors) -> pb.Survivors:
    survivors = [pb.Survivor(index=entry.index, input_digest=entry.input_digest) for entry in body.survivors]
    return pb.Survivors(survivors=survivors, dropped=body.dropped)


def _share(share: m.SelfMaskShare | m.MasterShare) -> pb.UnmaskShare:
    if isinstance(share, m.SelfMaskShare):
        return pb.UnmaskShare(owner=share.owner, self_mask=share.share)
    return pb.UnmaskShare(owner=share.owner, master=share.share)


def _update(body: m.Update) -> pb.Update:
    return pb.Update(
        digest=body.digest,
        length_bytes=body.length_bytes,
        samples=body.samples,
        loss=body.loss,
        accuracy=body.accuracy,
    )


def _join(body: m.Join) -> pb.Join:
    return pb.Join(
        architecture_digest=body.architecture_digest,
        software_version=body.software_version,
        visibility=pb.Visibility.ValueType(body.visibility),
        metrics=body.metrics,
        known=body.known,
    )


def _receipt(body: m.Receipt) -> pb.Receipt:
    return pb.Receipt(
        run_id=body.run_id,
        round=body.round,
        number=body.number,
        result_digest=body.result_digest,
        model_digest=body.model_digest,
    )


_ENCODERS: dict[type, Callable[[Any], Message]] = {
    m.Header: _header,
    m.Advertise: _advertise,
    m.KeyList: lambda body: pb.KeyList(advertisements=[signed_to_proto(one) for one in body.advertisements]),
    m.ShareBundle: lambda body: pb.ShareBundle(
        boxes=[pb.ShareBox(peer=box.peer, box=box.box) for box in body.boxes], nonce=body.nonce
    ),
    m.ShareDelivery: lambda body: pb.ShareDelivery(
        boxes=[pb.DeliveredBox(peer=box.peer, box=box.box, nonce=box.nonce) for box in body.boxes]
    ),
    m.MaskedInput: lambda body: pb.MaskedInput(digest=body.digest, length_bytes=body.length_bytes),
    m.Update: _update,
    m.Survivors: _survivors,
    m.SurvivorSignature: lambda body: pb.SurvivorSignature(survivors_digest=body.survivors_digest),
    m.Consistency: lambda body: pb.Consistency(
        signatures=[signed_to_proto(one) for one in body.signatures],
        inputs=[signed_to_proto(one) for one in body.inputs],
    ),
    m.Unmask: lambda body: pb.Unmask(shares=[_share(share) for share in body.shares]),
    m.Result: lambda body: pb.Result(sum_digest=body.sum_digest, count=body.count, model_digest=body.model_digest),
    m.Abort: lambda body: pb.Abort(step=pb.Step.ValueType(body.step), check=body.check, accused=body.accused),
    m.Refusal: lambda body: pb.Refusal(key=body.key),
    m.Join: _join,
    m.Checkpoint: lambda body: pb.Checkpoint(
        note=body.note, old_size=body.old_size, proof=body.proof, known=body.known
    ),
    m.Cosigned: lambda body: pb.Cosigned(size=body.size, signature=body.signature),
    m.Goodbye: lambda body: pb.Goodbye(completed=body.completed, rounds=body.rounds, reason=body.reason),
    m.Receipt: _receipt,
    m.MissedResult: lambda body: pb.MissedResult(
        result=signed_to_proto(body.result), receipts=[signed_to_proto(one) for one in body.receipts]
    ),
}
