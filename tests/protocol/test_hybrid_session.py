"""Sessions under ``x25519-mlkem768``: exact sums whoever drops out, and who is blamed for a half that is not right."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import ml_kem_oracle
import numpy as np
import pytest
from cohort import Bytes, Cohort, leaving, on_ring, resigned, secrets_in
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from lies_of_source import DROPPED, LIAR
from test_lying_source import assert_close_blames
from test_session import assert_sum_is_exact

from securefda.errors import ConfigError
from securefda.protocol import agreement, hybrid, share_boxes
from securefda.protocol import source_session as src
from securefda.protocol.agreement import BoxAddress, CommitmentError, KeyAgreementError, SharePair
from securefda.protocol.header import KEY_AGREEMENTS
from securefda.protocol.header_checks import quantisation
from securefda.protocol.hybrid import BOX_KEY_BYTES, BOX_PRIVATE_BYTES, RECOVERY_BYTES, BoxKey, Half
from securefda.protocol.messages import BOX_KEY_LENGTHS, Advertise, KeyAgreement, ShareBox, Visibility
from securefda.protocol.secret import Secret
from securefda.site.policy.schema import SourcePolicy

AGREED = {"key_agreement": KeyAgreement.X25519_MLKEM768}
CTX = bytes(range(32))
DROPS: list[Mapping[int, float]] = [{}, {3: 0}, {3: 1}, {3: 2}, {3: 3}, {3: 4}, {0: 2, 5: 2}, {0: 2, 4: 3}]
COHORTS = {"level": Visibility.COHORT, "cohort_size": 3, "cohort_quorum": 2, "threshold": 4}


def session(n: int = 6, drops: Mapping[int, float] = {}, **changes: Any) -> Cohort:
    return Cohort(n, leaving(drops), {"threshold": 4, **AGREED, **changes})


@pytest.mark.parametrize("drops", DROPS, ids=str)
def test_sum_is_that_of_all_survivors_whoever_drops_out(drops: Mapping[int, float]) -> None:
    assert_sum_is_exact(session(drops=drops), drops)


@pytest.mark.parametrize("drops", [{}, {6: 2}], ids=str)
def test_sums_of_cohorts_are_exact(drops: Mapping[int, float]) -> None:
    cohort = session(drops=drops, **COHORTS)
    for one in cohort.finish().sums:
        clear = cohort.session.encoding.decode(cohort.sum_of(sorted(one.survivors)), len(one.survivors))
        assert np.array_equal(one.decoded.vector, clear.vector)


@pytest.mark.parametrize("drops", [{}, {3: 0.5}, {3: 2}, {0: 0, 5: 0.5, 9: 2}], ids=str)
def test_sum_on_a_ring_is_exact(drops: Mapping[int, float]) -> None:
    assert_sum_is_exact(Cohort(12, leaving(drops), on_ring(9, **AGREED)), drops)


def test_sum_is_the_same_as_with_x25519_alone() -> None:
    sums = [Cohort(6, leaving({3: 2}), {"threshold": 4, "key_agreement": one}).finish() for one in KeyAgreement]
    assert np.array_equal(sums[0].sums[0].decoded.vector, sums[1].sums[0].decoded.vector)


def test_every_source_uploads_a_recovery_value_for_each_peer_behind_its_vector() -> None:
    plain, both = (Cohort(5, changes={"key_agreement": one}).until(2, collected=True) for one in KeyAgreement)
    assert {len(vector) for vector in plain.vectors.values()} == {plain.session.encoding.nbytes}
    assert {len(vector) for vector in both.vectors.values()} == {plain.session.encoding.nbytes + 4 * RECOVERY_BYTES}


# What is wrong with a half shows at the end, and names its owner.


def test_wrong_recovery_value_for_a_dropped_source_names_its_sender_and_leaves_the_sum_as_it_was() -> None:
    cohort = session(drops={DROPPED: 2}).until(2)
    honest, vector = cohort.outbox[LIAR], bytearray(cohort.vectors[LIAR])
    vector[-RECOVERY_BYTES] ^= 1  # the last value is for the source of the highest index, 6; the one before it for 5
    vector[-2 * RECOVERY_BYTES] ^= 1
    cohort.vectors[LIAR] = bytes(vector)
    cohort.outbox[LIAR] = resigned(honest, replace(honest.body, digest=sha256(vector).digest()))
    cohort.phases[LIAR] = replace(cohort.phases[LIAR], input_digest=cohort.outbox[LIAR].body.digest)
    cohort.collect()
    cohort.close()
    cohort.exchange()
    cohort.answer()
    cohort.collect()
    masked = cohort.running_sum()
    assert_close_blames(cohort, "INPUT_RECOVERY", f"source-{LIAR}")
    assert np.array_equal(cohort.running_sum(), masked)


def test_pair_secret_that_is_not_the_masters_names_its_owner_once_it_dropped_out() -> None:
    """It sealed halves of another master, committed to them, and left: its own master does not give them."""
    cohort = session(drops={DROPPED: 2})
    cohort.exchange()
    phase, honest = cohort.step(DROPPED, cohort.inbox.pop(DROPPED))
    cohort.answer()
    boxes = share_boxes.boxes_of(cohort.header.body, phase.secrets.private)
    opened = {
        box.peer: share_boxes.boxes_of(cohort.header.body, cohort.phases[box.peer].secrets.private).open(
            BoxAddress(phase.ctx1, DROPPED, box.peer, report_commitment=honest.body.report_commitment),
            phase.u1[DROPPED].box_key,
            box.box,
            len(box.box) - share_boxes.box_bytes(cohort.header.body),
        )
        for box in honest.body.boxes
    }
    lies = [
        ShareBox(
            peer,
            boxes.seal(
                BoxAddress(phase.ctx1, DROPPED, peer, report_commitment=honest.body.report_commitment),
                phase.u1[peer].box_key,
                one.shares,
                one.report,
                master=Secret(bytes(32)),
                random_bytes=Bytes("lies", peer),
            ),
        )
        for peer, one in opened.items()
    ]
    cohort.phases[DROPPED] = phase
    cohort.outbox[DROPPED] = resigned(honest, replace(honest.body, boxes=tuple(lies)))
    cohort.collect()
    cohort.close()
    cohort.exchange(2)
    cohort.answer()
    cohort.collect()
    assert_close_blames(cohort, "SHARE_COMMITMENT", f"source-{DROPPED}")


# The parts.


def test_library_and_the_standard_agree_on_keys_ciphertexts_and_implicit_rejection() -> None:
    for number in range(3):
        seed = Bytes("ML-KEM", number)(64)
        key = MLKEM768PrivateKey.from_seed_bytes(seed)
        public, _ = ml_kem_oracle.keys(seed)
        assert public == key.public_key().public_bytes_raw()
        shared, ciphertext = ml_kem_oracle.encapsulated(public, Bytes("message", number)(32))
        assert key.decapsulate(ciphertext) == shared == ml_kem_oracle.decapsulated(seed, ciphertext)
        altered = bytes([ciphertext[0] ^ 1]) + ciphertext[1:]
        assert key.decapsulate(altered) == ml_kem_oracle.decapsulated(seed, altered) != shared


def keys(*seed: object) -> BoxKey:
    return BoxKey.of(Secret(Bytes(*seed)(BOX_PRIVATE_BYTES)))


def test_both_ends_derive_one_box_key_and_another_from_any_other_input() -> None:
    here, there, other = keys("here"), keys("there"), keys("other")
    address = BoxAddress(CTX, 1, 2)
    key, ciphertext = here.encapsulate(there.public, address)
    assert there.decapsulate(here.public, address, ciphertext) == key
    altered = ciphertext[:-1] + bytes([ciphertext[-1] ^ 1])
    mixed = other.public[:32] + here.public[32:]
    others = [
        there.decapsulate(here.public, address, altered),
        there.decapsulate(here.public, BoxAddress(CTX, 2, 1), ciphertext),
        there.decapsulate(here.public, BoxAddress(bytes(32), 1, 2), ciphertext),
        there.decapsulate(mixed, address, ciphertext),
        other.decapsulate(here.public, address, ciphertext),
        here.encapsulate(there.public, address)[0],
    ]
    assert all(one != key for one in others)


def test_a_broken_x25519_or_a_broken_ml_kem_gives_no_box_key() -> None:
    """Whoever has all private keys of one kind, and only public ones of the other, derives another key."""
    private, own = Secret(Bytes("there")(BOX_PRIVATE_BYTES)), keys("here")
    there, address = BoxKey.of(private), BoxAddress(CTX, 1, 2)
    key, ciphertext = own.encapsulate(there.public, address)
    known, guessed = private.reveal(), Bytes("a guess")(BOX_PRIVATE_BYTES)
    for broken in (known[:32] + guessed[32:], guessed[:32] + known[32:]):
        assert BoxKey.of(Secret(broken)).decapsulate(own.public, address, ciphertext) != key
    assert BoxKey.of(Secret(known)).decapsulate(own.public, address, ciphertext) == key


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=32, max_size=32))
def test_whoever_has_one_master_gets_both_halves_and_nobody_else_does(one: bytes, two: bytes) -> None:
    mine = Half.of_master(Secret(one), owner=1, peer=2, ctx1=CTX)
    theirs = Half.of_master(Secret(two), owner=2, peer=1, ctx1=CTX)
    value = mine.recovery_value(theirs)
    assert theirs.recovered(value, mine.commitment) == mine.half
    assert Half.of_pair_secret(mine.pair_secret, owner=1, peer=2, ctx1=CTX).half == mine.half
    changed = bytes([value[0] ^ 1]) + value[1:]
    with pytest.raises(CommitmentError):
        theirs.recovered(changed, mine.commitment)
    with pytest.raises(CommitmentError):
        Half.of_master(Secret(one), owner=1, peer=3, ctx1=CTX).require(mine.commitment)


def test_pair_secrets_are_gone_once_the_masked_input_is_made_and_when_the_session_dies_before() -> None:
    for dies in (False, True):
        cohort = session().until(1, collected=True)
        cohort.close()
        ready = src.receive_shares(cohort.phases[LIAR], cohort.inbox[LIAR])
        held = {secret.reveal() for secret in ready.secrets.pair_secrets.values()}
        assert len(held) == 5
        assert held <= set(secrets_in(ready))
        if dies:
            src.erase(ready)
        else:
            following, _, _ = src.masked_input(ready, cohort.encoded(LIAR), quantisation(cohort.header.body))
            assert not held & set(secrets_in(following))
        assert not held & set(secrets_in(ready))


def test_erased_half_holds_nothing() -> None:
    half = Half.of_master(Secret(bytes(range(32))), owner=1, peer=2, ctx1=CTX)
    half.erase()
    for secret in (half.pair_secret, half.half, half.recovery_key):
        with pytest.raises(ValueError, match="erased"):
            secret.reveal()


def test_no_half_or_key_shows_what_it_holds() -> None:
    half = Half.of_master(Secret(b"\x5a" * 32), owner=1, peer=2, ctx1=CTX)
    boxes = share_boxes.HybridBoxes(Secret(b"\x5a" * BOX_PRIVATE_BYTES))
    shares = SharePair(Secret(bytes(33)), Secret(bytes(33)))
    shown = "".join(map(repr, (half, boxes, keys("shown"), share_boxes.OpenedBox(shares, half.half, None))))
    assert "5a5a" not in shown
    assert "ZZ" not in shown


@pytest.mark.parametrize("length", [0, 32, BOX_KEY_BYTES - 1, BOX_KEY_BYTES + 1])
def test_box_key_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(KeyAgreementError, match="1216 bytes"):
        hybrid.check_box_key(bytes(length))


def test_names_and_lengths_are_declared_alike_wherever_they_are_needed() -> None:
    assert set(BOX_KEY_LENGTHS) == {agreement.KEY_BYTES, BOX_KEY_BYTES}
    for name in KEY_AGREEMENTS:
        assert KeyAgreement.named(name).label == name
        assert SourcePolicy(key_agreements=(name,)).key_agreements == (name,)
    with pytest.raises(ValueError, match="box_key"):
        Advertise(bytes(32), bytes(33), bytes(32), bytes(32))


def test_build_without_ml_kem_is_named_with_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.backends.openssl.backend import backend

    monkeypatch.setattr(type(backend), "mlkem_supported", lambda self: False)
    for act in (lambda: keys("none"), lambda: hybrid.check_box_key(bytes(BOX_KEY_BYTES))):
        with pytest.raises(ConfigError, match="no ML-KEM-768") as refused:
            act()
        assert refused.value.key == "session.key-agreement"
