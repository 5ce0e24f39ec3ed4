"""Keys of a masking session: X25519 pairs, labelled derivations, commitments and sealed share boxes.

Every derivation is HKDF-SHA256 (RFC 5869) under a transcript hash as salt, with a label, the roster indices of its
parties and a block number in the info; one label has one use. Nothing here derives from a long-lived key. Parties are
roster indices: the transcript binds the roster, and equal widths keep equal messages equally long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import constant_time, hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from securefda.protocol.secret import RandomBytes, Secret, draw
from securefda.protocol.shamir import SHARE_BYTES, ShareError, element_of

KEY_BYTES = 32
HASH_BYTES = 32
INDEX_BYTES = 4
NONCE_BYTES = 12
TAG_BYTES = 16
PLAINTEXT_BYTES = HASH_BYTES + 2 * INDEX_BYTES + 2 * SHARE_BYTES
BOX_BYTES = NONCE_BYTES + PLAINTEXT_BYTES + TAG_BYTES
"""Length of a sealed box without a norm report: nonce 12, plaintext 106, tag 16."""

REPORT_OPENING_BYTES = 32
"""Random bytes in front of a norm report, which keep its commitment from being guessed."""


class Label(Enum):
    """Purpose of a derivation, a commitment or a box; one use each, with the protocol's version inside."""

    MASK_KEY = b"securefda/1/mask-sk"
    PAIR_MASK = b"securefda/1/pair-mask"
    SELF_MASK = b"securefda/1/self-mask"
    SHARE_BOX = b"securefda/1/share-box"
    SELF_COMMITMENT = b"securefda/1/self-commitment"
    REPORT_COMMITMENT = b"securefda/1/report-commitment"
    HYBRID_BOX = b"securefda/1/hybrid-box"
    PAIR_SECRET = b"securefda/1/pair-secret"
    PAIR_HALF = b"securefda/1/pair-half"
    HALF_COMMITMENT = b"securefda/1/half-commitment"
    HYBRID_PAIR_MASK = b"securefda/1/hybrid-pair-mask"


class KeyAgreementError(ValueError):
    """A public key that gives no shared secret: wrong length, or a point of low order."""


class CommitmentError(ValueError):
    """A reconstructed secret is not the one that its owner committed to."""


class BoxError(ValueError):
    """A share box does not open, or holds something other than its address says. The caller assigns the blame."""


def encode_fields(*fields: bytes | int) -> bytes:
    """Encode fields so that no two lists of them look alike: each with its length, 4 bytes big-endian, in front.

    Integers (roster indices, block numbers) become 4 big-endian bytes.

    Raises:
        ValueError: an integer is negative or needs more than 4 bytes.
    """
    encoded = (encode_index(item) if isinstance(item, int) else item for item in fields)
    return b"".join(len(item).to_bytes(4, "big") + item for item in encoded)


def encode_index(index: int) -> bytes:
    """Encode a roster index or a block number as 4 big-endian bytes.

    Raises:
        ValueError: it is negative or does not fit.
    """
    if not 0 <= index < 1 << (8 * INDEX_BYTES):
        raise ValueError(f"index {index} does not fit {INDEX_BYTES} bytes")
    return index.to_bytes(INDEX_BYTES, "big")


def derive(
    secret: Secret,
    *,
    salt: bytes,
    label: Label,
    parties: Sequence[int],
    block: int = 0,
    length: int = KEY_BYTES,
    bound: bytes = b"",
) -> Secret:
    """HKDF-SHA256 of ``secret`` with info = (label, number of parties, their indices, block, and ``bound`` if any).

    Args:
        secret: input key material with at least 256 bits of entropy or of an X25519 exchange.
        salt: transcript hash, 32 bytes.
        label: what the result is for.
        parties: roster indices in the order that the use defines: (own), (low, high) or (sender, recipient).
        block: which of several results of one purpose.
        length: bytes wanted.
        bound: public bytes on which the result depends, too.

    Raises:
        ValueError: the salt is not 32 bytes, or an index does not fit.
    """
    _require_hash(salt)
    info = encode_fields(label.value, len(parties), *parties, block, *([bound] if bound else []))
    # The transcript as salt: sites with different views of the session derive different keys (T08, T14).
    kdf = HKDF(algorithm=hashes.SHA256(), length=length, salt=salt, info=info)
    return Secret(kdf.derive(secret.reveal()))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class LoadedKey:
    """A private key of X25519, ready for exchanges."""

    _key: X25519PrivateKey

    @classmethod
    def of(cls, private: Secret) -> LoadedKey:
        """Load 32 private bytes: for many exchanges, since it costs as much as one of them.

        The library holds a copy of the private key for as long as the result is kept: do not keep it in a state.

        Raises:
            ValueError: the secret has been erased.
        """
        return cls(X25519PrivateKey.from_private_bytes(private.reveal()))

    def exchange(self, peer_public: bytes) -> Secret:
        """Shared secret with the owner of ``peer_public``: raw, so to be used through :func:`derive` only.

        Raises:
            KeyAgreementError: the key has another length than 32 bytes, or the result would be all zero
                (a low-order point lets its sender fix the outcome).
        """
        if len(peer_public) != KEY_BYTES:
            raise KeyAgreementError(f"an X25519 public key has {KEY_BYTES} bytes, not {len(peer_public)}")
        try:
            # The library refuses a result of zeros (RFC 7748, section 6.1).
            return Secret(self._key.exchange(X25519PublicKey.from_public_bytes(peer_public)))
        except ValueError as error:
            raise KeyAgreementError("the public key is a point of low order") from error


@dataclass(frozen=True, slots=True)
class KeyPair:
    """X25519 pair (RFC 7748): 32 private bytes, clamped by the library, and the 32 public bytes that follow.

    Raises:
        ValueError: the private key is not 32 bytes.
    """

    private: Secret
    public: bytes = field(init=False)

    def __post_init__(self) -> None:
        if len(self.private) != KEY_BYTES:
            raise ValueError(f"an X25519 private key has {KEY_BYTES} bytes, not {len(self.private)}")
        public = X25519PrivateKey.from_private_bytes(self.private.reveal()).public_key()
        object.__setattr__(self, "public", public.public_bytes_raw())

    def loaded(self) -> LoadedKey:
        """The private key, ready for many exchanges; see :meth:`LoadedKey.of`."""
        return LoadedKey.of(self.private)

    def exchange(self, peer_public: bytes) -> Secret:
        """One exchange; see :meth:`LoadedKey.exchange`."""
        return self.loaded().exchange(peer_public)


# Any clamped key is a multiple of the cofactor 8 and meets the same points of low order (RFC 7748, section 5).
_NO_SECRET = KeyPair(Secret(bytes(KEY_BYTES))).loaded()


def check_public_key(public: bytes) -> None:
    """Refuse a key that gives no peer a shared secret, without a private key of one's own.

    Clamped private keys are multiples of the cofactor, so a point of low order fails with one exactly if it fails
    with all of them; the private key of this test is no secret.

    Raises:
        KeyAgreementError: wrong length, or a point of low order.
    """
    _NO_SECRET.exchange(public).erase()


def mask_pair(master: Secret, *, own: int, ctx: bytes) -> KeyPair:
    """Pair behind the pairwise masks of party ``own``, a function of its 32-byte master secret.

    Sharing the master therefore shares the private key, and the public key is the commitment to the master.
    """
    return KeyPair(derive(master, salt=ctx, label=Label.MASK_KEY, parties=(own,)))


def pair_seed(
    own_pair: KeyPair | LoadedKey,
    peer_public: bytes,
    *,
    own: int,
    peer: int,
    ctx2: bytes,
    block: int = 0,
    halves: tuple[Secret, Secret] | None = None,
) -> Secret:
    """Key s_ij of a pairwise mask, 32 bytes; both ends get the same one only if they agree on the whole transcript.

    Args:
        own_pair: mask pair of ``own``.
        peer_public: mask key that ``peer`` advertised.
        own, peer: roster indices, different.
        ctx2: transcript hash over header, key list and share senders.
        block: number of the vector block, 0 for the first or only one.
        halves: of ``own`` and of ``peer``, under the key agreement of :mod:`.hybrid`.

    Raises:
        KeyAgreementError: see :meth:`LoadedKey.exchange`.
        ValueError: ``own`` equals ``peer``.
    """
    if own == peer:
        raise ValueError("a party has no pairwise mask with itself")
    # In one order at both ends: they need the same key, and the sign of the mask tells them apart.
    parties, secret = (min(own, peer), max(own, peer)), own_pair.exchange(peer_public)
    if halves is None:
        return derive(secret, salt=ctx2, label=Label.PAIR_MASK, parties=parties, block=block)
    low, high = halves if own < peer else reversed(halves)
    # Parts of fixed length in a fixed order, so their concatenation has one reading. The
    # seed is secret while one part is (T36).
    together = Secret(low.reveal() + high.reveal() + secret.reveal())
    seed = derive(together, salt=ctx2, label=Label.HYBRID_PAIR_MASK, parties=parties, block=block)
    for part in (secret, together):
        part.erase()
    return seed


def self_seed(self_secret: Secret, *, own: int, ctx2: bytes, block: int = 0) -> Secret:
    """Key of the self mask of party ``own``, 32 bytes, from its self secret b_i, the one that is shared."""
    return derive(self_secret, salt=ctx2, label=Label.SELF_MASK, parties=(own,), block=block)


def self_secret_commitment(self_secret: Secret, *, own: int, ctx: bytes) -> bytes:
    """Commit to the self secret b_i: SHA-256 over (label, ctx, own, b_i), 32 bytes.

    It hides because b_i has 256 random bits, and binds because SHA-256 has no known collisions.
    """
    return _commitment(Label.SELF_COMMITMENT, self_secret, own=own, ctx=ctx)


def report_commitment(report: Secret, *, own: int, ctx: bytes) -> bytes:
    """Commit to a norm report: SHA-256 over (label, ctx, own, report), 32 bytes.

    ``report`` begins with :data:`REPORT_OPENING_BYTES` random bytes, without which it could be guessed. All that open
    their box see the same report, or notice.
    """
    return _commitment(Label.REPORT_COMMITMENT, report, own=own, ctx=ctx)


def _commitment(label: Label, secret: Secret, *, own: int, ctx: bytes) -> bytes:
    return committed(label, ctx, own, secret.reveal())


def committed(label: Label, ctx: bytes, *fields: bytes | int) -> bytes:
    """SHA-256 over a label, a transcript hash and fields, 32 bytes; the last field is what is committed to."""
    _require_hash(ctx)
    digest = hashes.Hash(hashes.SHA256())
    digest.update(encode_fields(label.value, ctx, *fields))
    return digest.finalize()


def opened_mask_pair(master: Secret, *, owner: int, ctx: bytes, advertised: bytes) -> KeyPair:
    """Mask pair of a dropped party from its reconstructed master, proven to be the one it advertised.

    Raises:
        CommitmentError: another public key comes out, so the owner or a share holder lied.
    """
    pair = mask_pair(master, own=owner, ctx=ctx)
    if not constant_time.bytes_eq(pair.public, advertised):
        raise CommitmentError(f"the master secret of party {owner} does not give its advertised mask key")
    return pair


def check_self_secret(self_secret: Secret, *, owner: int, ctx: bytes, committed: bytes) -> None:
    """Prove that a reconstructed self secret is the one its owner committed to.

    Raises:
        CommitmentError: it is another one, so the owner or a share holder lied.
    """
    if not constant_time.bytes_eq(self_secret_commitment(self_secret, own=owner, ctx=ctx), committed):
        raise CommitmentError(f"the self secret of party {owner} does not match its commitment")


@dataclass(frozen=True, slots=True)
class BoxAddress:
    """The address of a share box: the transcript (32 bytes) and the roster indices of its two ends.

    ``commitment`` is to the sender's half of the pairwise mask, under the key agreement of :mod:`.hybrid`;
    ``report_commitment`` to the norm report in its boxes. Each is empty where there is none.

    Raises:
        ValueError: ctx1 is not 32 bytes, an index does not fit 4 bytes, or both ends are one party.
    """

    ctx1: bytes
    sender: int
    recipient: int
    commitment: bytes = b""
    report_commitment: bytes = b""

    def __post_init__(self) -> None:
        _require_hash(self.ctx1)
        if encode_index(self.sender) == encode_index(self.recipient):
            raise ValueError("a share box goes to another party")

    def with_commitment(self, commitment: bytes) -> BoxAddress:
        """The same address with the commitment to its sender's half."""
        return replace(self, commitment=commitment)

    def header(self) -> bytes:
        """Fixed-length copy of the address inside the plaintext, 40 bytes."""
        return self.ctx1 + encode_index(self.sender) + encode_index(self.recipient)

    def associated_data(self) -> bytes:
        """The associated data that the box authenticates beside its content."""
        bound = filter(None, (self.commitment, self.report_commitment))
        return encode_fields(Label.SHARE_BOX.value, self.ctx1, self.sender, self.recipient, *bound)


@dataclass(frozen=True, slots=True)
class SharePair:
    """The shares that one source holds for another: one of its master secret and one of its self secret.

    Both are 33 bytes, as :mod:`securefda.protocol.shamir` makes them.

    Raises:
        ShareError: a share is malformed.
    """

    master: Secret
    self_secret: Secret

    def __post_init__(self) -> None:
        # A malformed share is found where it arrives. In R4, the blame would be on the source that passes it on.
        element_of(self.master)
        element_of(self.self_secret)

    def moved(self) -> SharePair:
        """Hand both shares to a new pair; see :meth:`Secret.moved`."""
        return SharePair(self.master.moved(), self.self_secret.moved())

    def erase(self) -> None:
        """Overwrite both."""
        self.master.erase()
        self.self_secret.erase()


def sealing_key(own_pair: KeyPair | LoadedKey, peer_public: bytes, address: BoxAddress) -> Secret:
    """AES-256-GCM key of the boxes from sender to recipient in this session; both ends derive the same.

    Args:
        own_pair: box key pair of whichever end computes it.
        peer_public: box key that the other end advertised.
        address: gives the direction and the transcript.

    Raises:
        KeyAgreementError: see :meth:`LoadedKey.exchange`.
    """
    parties = (address.sender, address.recipient)
    return derive(own_pair.exchange(peer_public), salt=address.ctx1, label=Label.SHARE_BOX, parties=parties)


def seal_box(
    key: Secret, address: BoxAddress, shares: SharePair, random_bytes: RandomBytes, report: Secret | None = None
) -> bytes:
    """Encrypt a pair of shares, and a norm report where there is one, to their recipient: nonce, ciphertext, tag."""
    # The key is for one box of one session, so no nonce can come twice under it.
    nonce = draw(random_bytes, NONCE_BYTES)
    plaintext = address.header() + shares.master.reveal() + shares.self_secret.reveal()
    plaintext += report.reveal() if report else b""
    return nonce + AESGCM(key.reveal()).encrypt(nonce, plaintext, address.associated_data())


def open_box(key: Secret, address: BoxAddress, box: bytes, report_bytes: int = 0) -> tuple[SharePair, Secret | None]:
    """Decrypt a box and check that it is what ``address`` says; ``report_bytes`` is the length of the report in it.

    Returns:
        The shares, and the norm report with its opening; None where none is due.

    Raises:
        BoxError: wrong length, not authentic under this key and address, another address inside, or a share
            outside the field. The message does not tell more than that, and never shows content.
    """
    if len(box) != BOX_BYTES + report_bytes:
        raise BoxError(f"a share box has {BOX_BYTES + report_bytes} bytes here, not {len(box)}")
    try:
        plaintext = AESGCM(key.reveal()).decrypt(box[:NONCE_BYTES], box[NONCE_BYTES:], address.associated_data())
    except InvalidTag as error:
        raise BoxError("a share box is not authentic") from error
    header = address.header()
    # Bonawitz et al. 2017, Figure 4, round 4: the names inside must be those outside.
    if not constant_time.bytes_eq(plaintext[: len(header)], header):
        raise BoxError("a share box was made for another place")
    content = plaintext[len(header) :]
    master, self_secret, report = content[:SHARE_BYTES], content[SHARE_BYTES:][:SHARE_BYTES], content[2 * SHARE_BYTES :]
    try:
        return SharePair(Secret(master), Secret(self_secret)), Secret(report) if report else None
    except ShareError as error:
        raise BoxError("a share box holds a malformed share") from error


def _require_hash(value: bytes) -> None:
    if len(value) != HASH_BYTES:
        raise ValueError(f"a transcript hash has {HASH_BYTES} bytes, not {len(value)}")
