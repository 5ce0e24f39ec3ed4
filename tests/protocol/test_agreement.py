import itertools

import pytest
import secagg_oracles as oracle
from depth import at_depth
from hypothesis import given, settings
from hypothesis import strategies as st

from securefda.protocol import agreement
from securefda.protocol.agreement import (
    BOX_BYTES,
    BoxAddress,
    BoxError,
    CommitmentError,
    KeyAgreementError,
    KeyPair,
    Label,
    SharePair,
)
from securefda.protocol.secret import Secret
from securefda.protocol.shamir import PRIME, ShareError

CTX, OTHER_CTX = bytes([1]) * 32, bytes([2]) * 32
MASTER, SELF_SECRET = Secret(bytes([3]) * 32), Secret(bytes([4]) * 32)
SHARES = SharePair(Secret(b"\0" + bytes([5]) * 32), Secret(b"\0" + bytes([6]) * 32))

keys = st.binary(min_size=32, max_size=32)
field_lists = st.lists(st.one_of(st.binary(max_size=6), st.integers(0, 2**32 - 1)), max_size=5)


def as_bytes(values: list[bytes | int]) -> list[bytes]:
    return [value.to_bytes(4, "big") if isinstance(value, int) else value for value in values]


@given(first=field_lists, second=field_lists)
def test_field_lists_encode_alike_only_if_their_fields_are_alike(
    first: list[bytes | int], second: list[bytes | int]
) -> None:
    same = agreement.encode_fields(*first) == agreement.encode_fields(*second)
    assert same == (as_bytes(first) == as_bytes(second))


@pytest.mark.parametrize("index", [-1, 2**32])
def test_index_that_does_not_fit_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        agreement.encode_index(index)


def test_derivations_differ_in_every_part_of_their_context() -> None:
    contexts = itertools.product((MASTER, SELF_SECRET), (CTX, OTHER_CTX), Label, ((0,), (1,), (0, 1), (1, 0)), (0, 1))
    derived = {
        agreement.derive(secret, salt=salt, label=label, parties=parties, block=block).reveal()
        for secret, salt, label, parties, block in contexts
    }
    assert len(derived) == 2 * 2 * len(Label) * 4 * 2


@pytest.mark.parametrize("salt", [b"", bytes(31), bytes(33)])
def test_salt_that_is_no_transcript_hash_is_refused(salt: bytes) -> None:
    with pytest.raises(ValueError, match="transcript hash"):
        agreement.derive(MASTER, salt=salt, label=Label.SELF_MASK, parties=(0,))
    with pytest.raises(ValueError, match="transcript hash"):
        agreement.self_secret_commitment(SELF_SECRET, own=0, ctx=salt)
    with pytest.raises(ValueError, match="transcript hash"):
        BoxAddress(salt, 0, 1)


@settings(max_examples=at_depth(25, 250), deadline=None)
@given(a=keys, b=keys, ends=st.lists(st.integers(0, 99), min_size=2, max_size=2, unique=True))
def test_both_ends_derive_one_pair_seed_and_one_box_key_per_direction(a: bytes, b: bytes, ends: list[int]) -> None:
    low, high = ends
    first, second = KeyPair(Secret(a)), KeyPair(Secret(b))
    seed = agreement.pair_seed(first, second.public, own=low, peer=high, ctx2=CTX)
    assert seed == agreement.pair_seed(second, first.public, own=high, peer=low, ctx2=CTX)
    there, back = BoxAddress(CTX, low, high), BoxAddress(CTX, high, low)
    key = agreement.sealing_key(first, second.public, there)
    assert key == agreement.sealing_key(second, first.public, there)
    assert key != agreement.sealing_key(first, second.public, back)
    assert key != seed


def test_pair_seed_changes_with_transcript_parties_and_block() -> None:
    pair, peer = KeyPair(MASTER), KeyPair(SELF_SECRET).public
    seeds = [
        agreement.pair_seed(pair, peer, own=0, peer=1, ctx2=CTX),
        agreement.pair_seed(pair, peer, own=0, peer=1, ctx2=OTHER_CTX),
        agreement.pair_seed(pair, peer, own=0, peer=2, ctx2=CTX),
        agreement.pair_seed(pair, peer, own=0, peer=1, ctx2=CTX, block=1),
    ]
    assert len({seed.reveal() for seed in seeds}) == len(seeds)


def test_self_seed_changes_with_transcript_owner_and_block() -> None:
    seeds = [
        agreement.self_seed(SELF_SECRET, own=0, ctx2=CTX),
        agreement.self_seed(SELF_SECRET, own=0, ctx2=OTHER_CTX),
        agreement.self_seed(SELF_SECRET, own=1, ctx2=CTX),
        agreement.self_seed(SELF_SECRET, own=0, ctx2=CTX, block=1),
    ]
    assert len({seed.reveal() for seed in seeds}) == len(seeds)


def test_no_pairwise_mask_with_oneself() -> None:
    with pytest.raises(ValueError, match="itself"):
        agreement.pair_seed(KeyPair(MASTER), KeyPair(SELF_SECRET).public, own=3, peer=3, ctx2=CTX)


@pytest.mark.parametrize("length", [0, 31, 33, 64])
def test_keys_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(KeyAgreementError, match="32 bytes"):
        KeyPair(MASTER).exchange(bytes(length))
    if length:
        with pytest.raises(ValueError, match="32 bytes"):
            KeyPair(Secret(bytes(length)))


def test_opened_master_gives_the_advertised_pair() -> None:
    pair = agreement.mask_pair(MASTER, own=2, ctx=CTX)
    assert agreement.opened_mask_pair(MASTER, owner=2, ctx=CTX, advertised=pair.public) == pair


@pytest.mark.parametrize(("secret", "owner", "ctx"), [(SELF_SECRET, 2, CTX), (MASTER, 1, CTX), (MASTER, 2, OTHER_CTX)])
def test_other_master_owner_or_transcript_misses_the_advertised_key(secret: Secret, owner: int, ctx: bytes) -> None:
    advertised = agreement.mask_pair(MASTER, own=2, ctx=CTX).public
    with pytest.raises(CommitmentError, match=f"party {owner}"):
        agreement.opened_mask_pair(secret, owner=owner, ctx=ctx, advertised=advertised)


@pytest.mark.parametrize(
    ("secret", "owner", "ctx"), [(MASTER, 2, CTX), (SELF_SECRET, 1, CTX), (SELF_SECRET, 2, OTHER_CTX)]
)
def test_other_self_secret_owner_or_transcript_misses_the_commitment(secret: Secret, owner: int, ctx: bytes) -> None:
    committed = agreement.self_secret_commitment(SELF_SECRET, own=2, ctx=CTX)
    agreement.check_self_secret(SELF_SECRET, owner=2, ctx=CTX, committed=committed)
    with pytest.raises(CommitmentError, match=f"party {owner}"):
        agreement.check_self_secret(secret, owner=owner, ctx=ctx, committed=committed)


@settings(max_examples=at_depth(50, 500), deadline=None)
@given(values=st.tuples(st.integers(0, PRIME - 1), st.integers(0, PRIME - 1)))
def test_box_returns_every_pair_of_shares(values: tuple[int, int]) -> None:
    shares = SharePair(*(Secret(value.to_bytes(33, "big")) for value in values))
    address = BoxAddress(CTX, 0, 1)
    box = agreement.seal_box(MASTER, address, shares, oracle.tape("box"))
    assert len(box) == BOX_BYTES == 134
    assert agreement.open_box(MASTER, address, box) == (shares, None)


@given(report=st.binary(min_size=1, max_size=200))
def test_box_returns_its_norm_report_and_opens_at_no_other_length(report: bytes) -> None:
    address = BoxAddress(CTX, 0, 1)
    box = agreement.seal_box(MASTER, address, SHARES, oracle.tape("report"), Secret(report))
    assert len(box) == BOX_BYTES + len(report)
    assert agreement.open_box(MASTER, address, box, len(report)) == (SHARES, Secret(report))
    for other in (0, len(report) - 1, len(report) + 1):
        if other != len(report):
            with pytest.raises(BoxError):
                agreement.open_box(MASTER, address, box, other)


def test_commitment_binds_norm_report_owner_and_session() -> None:
    report = Secret(bytes(32) + b"codes")
    usual = agreement.report_commitment(report, own=1, ctx=CTX)
    others = (
        agreement.report_commitment(Secret(bytes(32) + b"coder"), own=1, ctx=CTX),
        agreement.report_commitment(Secret(b"\1" + bytes(31) + b"codes"), own=1, ctx=CTX),
        agreement.report_commitment(report, own=2, ctx=CTX),
        agreement.report_commitment(report, own=1, ctx=bytes(32)),
        agreement.self_secret_commitment(report, own=1, ctx=CTX),
    )
    assert len({usual, *others}) == 1 + len(others)


def test_every_flipped_bit_of_a_box_is_found() -> None:
    address = BoxAddress(CTX, 0, 1)
    box = agreement.seal_box(MASTER, address, SHARES, oracle.tape("flip"))
    for bit in range(8 * len(box)):
        forged = bytearray(box)
        forged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BoxError):
            agreement.open_box(MASTER, address, bytes(forged))


@pytest.mark.parametrize(
    "address", [BoxAddress(OTHER_CTX, 0, 1), BoxAddress(CTX, 1, 0), BoxAddress(CTX, 2, 1), BoxAddress(CTX, 0, 2)]
)
def test_box_does_not_open_at_another_address_even_under_its_key(address: BoxAddress) -> None:
    box = agreement.seal_box(MASTER, BoxAddress(CTX, 0, 1), SHARES, oracle.tape("address"))
    with pytest.raises(BoxError, match="not authentic"):
        agreement.open_box(MASTER, address, box)


def test_two_boxes_of_one_content_share_no_nonce() -> None:
    read = oracle.tape("nonce")
    boxes = [agreement.seal_box(MASTER, BoxAddress(CTX, 0, 1), SHARES, read) for _ in range(2)]
    assert boxes[0][:12] != boxes[1][:12]
    assert boxes[0][12:] != boxes[1][12:]


def test_box_to_oneself_is_refused() -> None:
    with pytest.raises(ValueError, match="another party"):
        BoxAddress(CTX, 1, 1)


@pytest.mark.parametrize("share", [bytes(32), bytes(34), PRIME.to_bytes(33, "big"), b"\xff" * 33])
def test_malformed_share_is_not_packed(share: bytes) -> None:
    with pytest.raises(ShareError):
        SharePair(Secret(share), Secret(bytes(33)))
    with pytest.raises(ShareError):
        SharePair(Secret(bytes(33)), Secret(share))
