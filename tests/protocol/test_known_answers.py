"""Each vector is reproduced twice: by the library, and by a route that shares no code with it."""

import hashlib
import struct
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import secagg_oracles as oracle
from published import load

from securefda.errors import ConfigError
from securefda.protocol import agreement, masking, shamir
from securefda.protocol.agreement import BoxAddress, BoxError, KeyAgreementError, KeyPair, Label, SharePair
from securefda.protocol.down_link import packed, rounded, unpacked
from securefda.protocol.encoding import EncodedLayer, Quantisation, vector_to_wire
from securefda.protocol.masking import Mask, add_masks
from securefda.protocol.messages import DownLink
from securefda.protocol.secret import Secret


def secret(text: str) -> Secret:
    return Secret(bytes.fromhex(text))


def replay(text: str) -> Any:
    """Random source that gives recorded bytes again."""
    stream = bytes.fromhex(text)
    position = 0

    def read(length: int) -> bytes:
        nonlocal position
        position += length
        return stream[position - length : position]

    return read


def test_oracles_meet_the_answers_printed_in_their_standards() -> None:
    output = oracle.hkdf_sha256(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42)  # RFC 5869, A.1
    assert output.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")  # RFC 7748, 6.1
    bob_public = bytes.fromhex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert oracle.x25519(alice, bob_public).hex() == shared
    sealed = oracle.aes_gcm(bytes(32), bytes(12), bytes(16), b"")  # McGrew and Viega, test case 14
    assert sealed.hex() == "cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919"


@pytest.mark.parametrize("case", load("derivations"), ids=lambda case: f"{case['label']}-{case['parties']}")
def test_derivation(case: dict[str, Any]) -> None:
    salt, label = bytes.fromhex(case["salt"]), case["label"].encode()
    info = oracle.fields(label, len(case["parties"]), *case["parties"], case["block"])
    by_hand = oracle.hkdf_sha256(bytes.fromhex(case["secret"]), salt, info, case["length"])
    derived = agreement.derive(
        secret(case["secret"]),
        salt=salt,
        label=Label(label),
        parties=case["parties"],
        block=case["block"],
        length=case["length"],
    )
    assert derived.reveal().hex() == by_hand.hex() == case["output"]


def test_mask_keys_and_commitments_of_every_party() -> None:
    vectors = load("keys")
    ctx, base = bytes.fromhex(vectors["ctx"]), (9).to_bytes(32, "little")
    for own, party in enumerate(vectors["parties"]):
        pair = agreement.mask_pair(secret(party["master"]), own=own, ctx=ctx)
        info = oracle.fields(b"securefda/1/mask-sk", 1, own, 0)
        private = oracle.hkdf_sha256(bytes.fromhex(party["master"]), ctx, info, 32)
        assert pair.private.reveal().hex() == private.hex() == party["mask_private"]
        assert pair.public.hex() == oracle.x25519(private, base).hex() == party["mask_public"]
        committed = agreement.self_secret_commitment(secret(party["self_secret"]), own=own, ctx=ctx)
        preimage = oracle.fields(b"securefda/1/self-commitment", ctx, own, bytes.fromhex(party["self_secret"]))
        assert committed.hex() == hashlib.sha256(preimage).hexdigest() == party["commitment"]


def test_seeds_of_every_mask() -> None:
    vectors = load("keys")
    ctx2, parties = bytes.fromhex(vectors["ctx2"]), vectors["parties"]
    for own, party in enumerate(parties):
        seed = agreement.self_seed(secret(party["self_secret"]), own=own, ctx2=ctx2)
        info = oracle.fields(b"securefda/1/self-mask", 1, own, 0)
        by_hand = oracle.hkdf_sha256(bytes.fromhex(party["self_secret"]), ctx2, info, 32)
        assert seed.reveal().hex() == by_hand.hex() == party["self_seed"]
        for peer_text, expected in party["pair_seeds"].items():
            peer = int(peer_text)
            theirs = bytes.fromhex(parties[peer]["mask_public"])
            pair = KeyPair(secret(party["mask_private"]))
            seed = agreement.pair_seed(pair, theirs, own=own, peer=peer, ctx2=ctx2)
            shared = oracle.x25519(bytes.fromhex(party["mask_private"]), theirs)
            info = oracle.fields(b"securefda/1/pair-mask", 2, min(own, peer), max(own, peer), 0)
            assert seed.reveal().hex() == oracle.hkdf_sha256(shared, ctx2, info, 32).hex() == expected


@pytest.mark.parametrize("point", load("keys")["refused_public_keys"])
def test_point_of_low_order_is_refused(point: str) -> None:
    pair = KeyPair(Secret(b"\x42" * 32))
    assert oracle.x25519(b"\x42" * 32, bytes.fromhex(point)) == bytes(32)
    with pytest.raises(KeyAgreementError, match="low order"):
        pair.exchange(bytes.fromhex(point))


@pytest.mark.parametrize("case", load("shares")["valid"], ids=lambda case: f"t={case['threshold']}")
def test_shares_lie_on_the_recorded_polynomial(case: dict[str, Any]) -> None:
    threshold, xs = case["threshold"], [int(x) for x in case["shares"]]
    dealt = shamir.split(secret(case["secret"]), threshold, xs, replay(case["random"]))
    assert {str(x): share.reveal().hex() for x, share in dealt.items()} == case["shares"]
    coefficients = [int(case["secret"], 16), *oracle.field_elements(bytes.fromhex(case["random"]))]
    assert len(coefficients) == threshold
    for x in xs:
        value = sum(coefficient * x**power for power, coefficient in enumerate(coefficients)) % oracle.PRIME
        assert value == int(case["shares"][str(x)], 16)


@pytest.mark.parametrize("case", load("shares")["valid"], ids=lambda case: f"t={case['threshold']}")
def test_every_set_of_threshold_shares_gives_the_secret(case: dict[str, Any]) -> None:
    shares = {int(x): secret(share) for x, share in case["shares"].items()}
    for chosen in combinations(shares, case["threshold"]):
        opened = shamir.reconstruct({x: shares[x] for x in chosen}, case["threshold"])
        assert opened.reveal().hex() == case["secret"]
    solved = oracle.polynomial_through({x: int(case["shares"][str(x)], 16) for x in chosen})
    assert solved[0] == int(case["secret"], 16)


@pytest.mark.parametrize("case", load("shares")["invalid"], ids=lambda case: case["why"])
def test_share_error_vector_is_refused(case: dict[str, Any]) -> None:
    shares = {int(x): secret(share) for x, share in case["shares"].items()}
    with pytest.raises(shamir.ShareError):
        shamir.reconstruct(shares, case["threshold"])


def test_share_box_opens_at_the_other_end_and_matches_gcm_by_hand() -> None:
    case = load("boxes")
    address = BoxAddress(bytes.fromhex(case["ctx1"]), case["sender"], case["recipient"])
    ends = [KeyPair(secret(private)) for private in case["private_keys"]]
    for mine, theirs in ((0, 1), (1, 0)):
        key = agreement.sealing_key(ends[mine], bytes.fromhex(case["public_keys"][theirs]), address)
        assert key.reveal().hex() == case["key"]
    shares = SharePair(secret(case["share_of_master"]), secret(case["share_of_self_secret"]))
    nonce = bytes.fromhex(case["random"])[-12:]
    assert agreement.seal_box(key, address, shares, lambda _: nonce).hex() == case["box"]
    assert agreement.open_box(key, address, bytes.fromhex(case["box"])) == (shares, None)
    ends_hex = f"{case['sender']:08x}{case['recipient']:08x}"
    plaintext = bytes.fromhex(case["ctx1"] + ends_hex + case["share_of_master"] + case["share_of_self_secret"])
    associated = oracle.fields(b"securefda/1/share-box", address.ctx1, address.sender, address.recipient)
    assert (nonce + oracle.aes_gcm(key.reveal(), nonce, plaintext, associated)).hex() == case["box"]


@pytest.mark.parametrize("case", load("boxes")["invalid"], ids=lambda case: case["why"])
def test_box_error_vector_is_refused(case: dict[str, Any]) -> None:
    address = BoxAddress(bytes.fromhex(case["ctx1"]), case["sender"], case["recipient"])
    with pytest.raises(BoxError):
        agreement.open_box(secret(load("boxes")["key"]), address, bytes.fromhex(case["box"]))


@pytest.mark.parametrize("case", load("masks")["streams"])
def test_mask_stream(case: dict[str, Any]) -> None:
    words = np.zeros(case["words"], dtype=np.uint32)
    add_masks(words, [Mask(secret(case["key"]))])
    by_hand = oracle.keystream(bytes.fromhex(case["key"]), 4 * case["words"])
    assert hashlib.sha256(by_hand).hexdigest() == case["sha256"]
    assert words.astype(words.dtype.newbyteorder("<")).tobytes() == by_hand
    assert words[:8].tolist() == case["first"]


def test_all_256_bits_of_a_seed_count_so_that_no_seed_is_folded() -> None:
    case = load("masks")["seed_bits"]
    seed = int.from_bytes(bytes.fromhex(case["key"]), "little")
    seeds = [seed, *(seed ^ 1 << bit for bit in range(256))]
    streams = []
    for seed in seeds:
        words = np.zeros(4, dtype=np.uint32)
        add_masks(words, [Mask(Secret(seed.to_bytes(32, "little")))])
        streams.append(words.astype("<u4").tobytes().hex())
        assert streams[-1] == oracle.keystream(seed.to_bytes(32, "little"), 16).hex()
    assert streams == [case["first_bytes"], *case["flipped"]]
    assert len(set(streams)) == 257


def test_seed_folded_to_32_bits_would_give_streams_twice() -> None:
    """The fold of a system that failed: its seed is the exclusive or of the key's words."""
    seed = int.from_bytes(bytes.fromhex(load("masks")["seed_bits"]["key"]), "little")
    seeds = [seed, *(seed ^ 1 << bit for bit in range(256))]
    folded = [oracle.folded_keystream(seed.to_bytes(32, "little"), 16) for seed in seeds]
    assert len(set(folded)) == 33


@pytest.mark.parametrize("case", load("masks")["sessions"])
def test_masked_inputs_follow_the_formula(case: dict[str, Any]) -> None:
    bits, parties = 32, load("keys")["parties"]
    for own, (clear, expected) in enumerate(zip(case["inputs"], case["masked"], strict=True)):
        vector = np.array(clear, dtype=np.uint32)
        seeds = {int(peer): secret(seed) for peer, seed in parties[own]["pair_seeds"].items()}
        masking.mask(vector, own=own, self_seed=secret(parties[own]["self_seed"]), pair_seeds=seeds)
        assert vector.tolist() == expected
        by_hand = list(clear)
        streams = [(parties[own]["self_seed"], 1)]
        streams += [(seed, 1 if int(peer) < own else -1) for peer, seed in parties[own]["pair_seeds"].items()]
        for seed, sign in streams:
            words = oracle.keystream_words(bytes.fromhex(seed), bits, len(clear))
            by_hand = [(value + sign * word) % 2**bits for value, word in zip(by_hand, words, strict=True)]
        assert by_hand == expected


@pytest.mark.parametrize("case", load("masks")["sessions"])
def test_sum_without_the_dropped_party_opens(case: dict[str, Any]) -> None:
    bits, parties, survivors = 32, load("keys")["parties"], case["survivors"]
    total = np.array(case["masked_sum"], dtype=np.uint32)
    masked = [case["masked"][own] for own in survivors]
    assert total.tolist() == [sum(column) % 2**bits for column in zip(*masked, strict=True)]
    seeds = {own: secret(parties[2]["pair_seeds"][str(own)]) for own in survivors}
    self_seeds = {own: secret(parties[own]["self_seed"]) for own in survivors}
    masking.unmask(total, self_seeds=self_seeds, dropped={2: seeds})
    clear = [case["inputs"][own] for own in survivors]
    assert total.tolist() == [sum(column) % 2**bits for column in zip(*clear, strict=True)] == case["sum"]


@pytest.mark.parametrize(
    "case", load("fixed_point")["valid"], ids=lambda case: f"{case['modulus_bits']}-{case['n_max']}"
)
def test_fixed_point(case: dict[str, Any]) -> None:
    layers = tuple(EncodedLayer(size, float.fromhex(limit)) for size, limit in case["layers"])
    bits, n_max = case["modulus_bits"], case["n_max"]
    quantisation = Quantisation(layers, case["n_max"], case["modulus_bits"], n_statistics=len(case["statistics"]))
    vector = [float.fromhex(text) for text in case["vector"]]
    statistics = [float.fromhex(text) for text in case["statistics"]]
    assert quantisation.q_max == case["q_max"] == (2 ** (bits - 1) - 1) // n_max
    encoded = quantisation.encode(np.array(vector), secret(case["rounding"]), np.array(statistics))
    limits = [layer.range for layer in layers for _ in range(layer.size)]
    drawn = oracle.keystream_words(bytes.fromhex(case["rounding"]), 16, len(vector))
    exact = [oracle.encode_exactly(x, c, case["q_max"], w) for x, c, w in zip(vector, limits, drawn, strict=True)]
    of_statistics = [round(Fraction(x) * ((2**31 - 1) // n_max)) for x in statistics]
    assert encoded.tolist() == case["encoded"] == [q % 2**32 for q in (*exact, *of_statistics)]
    packed = sum(q % 2**bits << bits * place for place, q in enumerate(exact))
    on_wire = packed.to_bytes(-(-len(exact) * bits // 8), "little")
    on_wire += b"".join(q.to_bytes(4, "little") for q in of_statistics)
    assert bytes(quantisation.pack(encoded)).hex() == case["packed"] == on_wire.hex()
    received = quantisation.unpack(on_wire)
    assert received.tolist() == [*(q % 2**bits for q in exact), *of_statistics]
    assert case["clipped"] == sum(abs(x) > c for x, c in zip(vector, limits, strict=True))
    decoded = quantisation.decode(received, 1)
    assert [value.hex() for value in (*decoded.vector.tolist(), *decoded.statistics.tolist())] == case["decoded"]
    for text, q, limit in zip(case["decoded"], exact, limits, strict=False):
        true = Fraction(limit) * q / case["q_max"]
        assert abs(Fraction(float.fromhex(text)) - true) <= abs(true) / 2**51


@pytest.mark.parametrize("case", load("down_link")["valid"], ids=lambda case: DownLink(case["down_link"]).label)
def test_down_link(case: dict[str, Any]) -> None:
    down_link, trained = DownLink(case["down_link"]), [float.fromhex(text) for text in case["vector"]]
    exact = [oracle.nearest(x, case["down_link"]) for x in trained]
    sent = rounded(np.array(trained, np.float32), down_link, "it")
    assert [x.hex() for x in sent.tolist()] == case["rounded"] == [x.hex() for x in exact]
    on_wire = b"".join(oracle.bytes_down(x, case["down_link"]) for x in exact)
    assert bytes(packed(vector_to_wire(sent), down_link)).hex() == case["bytes"] == on_wire.hex()
    as_float32 = struct.pack(f"<{len(exact)}f", *exact)
    assert bytes(unpacked(on_wire, down_link)) == as_float32
    assert hashlib.sha256(as_float32).hexdigest() == case["digest"]


@pytest.mark.parametrize("case", load("down_link")["invalid"], ids=lambda case: case["why"])
def test_down_link_error_vector_is_refused(case: dict[str, Any]) -> None:
    down_link = DownLink(case["down_link"])
    if case["refused_at"] == "rounding":
        vector = np.array([float.fromhex(text) for text in case["vector"]], np.float32)
        assert np.all(np.isfinite(vector))
        with pytest.raises(ConfigError, match=r"session\.down-link"):
            rounded(vector, down_link, "it")
    else:
        with pytest.raises(ValueError, match="5 bytes"):
            unpacked(bytes.fromhex(case["bytes"]), down_link)


def refused_encoding(case: dict[str, Any]) -> Any:
    """The act of an error vector; all but those about the terms share one encoding."""
    terms = Quantisation((EncodedLayer(2, 1.0),), 4, 32, n_statistics=1)
    match case["refused_at"]:
        case "terms":
            limit = float.fromhex(case["range"])
            return lambda: Quantisation((EncodedLayer(2, limit),), case["n_max"], case["modulus_bits"], n_statistics=1)
        case "encode":
            vector, statistics = ([float.fromhex(text) for text in case[name]] for name in ("vector", "statistics"))
            return lambda: terms.encode(np.array(vector), Secret(bytes(32)), np.array(statistics))
        case "unpack":
            narrow = Quantisation((EncodedLayer(3, 1.0),), 4, 20, n_statistics=1)
            return lambda: narrow.unpack(bytes.fromhex(case["packed"]))
    return lambda: terms.decode(np.array(case["words"], dtype=np.uint32), case["count"])


@pytest.mark.parametrize("case", load("fixed_point")["invalid"], ids=lambda case: case["why"])
def test_fixed_point_error_vector_is_refused(case: dict[str, Any]) -> None:
    act = refused_encoding(case)
    with pytest.raises(ValueError, match=r"[a-z]"):
        act()


def test_fixed_point_error_vectors_differ_from_right_ones_in_one_thing() -> None:
    terms = Quantisation((EncodedLayer(2, 1.0),), 4, 32, n_statistics=1)
    encoded = terms.encode(np.zeros(2), Secret(bytes(32)), np.ones(1))
    assert encoded.tolist() == [0, 0, terms.q_max]
    reached = np.array([2 * terms.q_max, 2**32 - 2 * terms.q_max, 2 * terms.q_max], dtype=np.uint32)
    assert terms.decode(reached, 2).vector.tolist() == [2.0, -2.0]
