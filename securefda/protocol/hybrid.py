"""The key agreement ``x25519-mlkem768``: what a session adds to X25519 so that breaking X25519 opens nothing.

*Share boxes.* A box key has two parts, X25519 and ML-KEM-768 (FIPS 203). The sender of a box encapsulates to the
recipient's, and the key of the box is HKDF-SHA256 over both shared secrets: salt is ctx1, the hash of the signed header
and of all public keys, and the info holds the ciphertext. So it stays secret while one of the two is unbroken, as with
the combiners of draft-irtf-cfrg-hybrid-kems and X-Wing (draft-connolly-cfrg-xwing-kem).

*Pairwise masks.* ML-KEM needs a message from one end to the other, and the aggregator must be able to compute the
masks of a source that dropped out from that source's master secret and from public values. So every source i derives,
from its master secret, a *pair secret* for each other source j, and sends it inside its box to j. From the pair secret
both derive the *half* that i adds to the seed of their mask, and a *recovery key*. Beside its masked input, j sends its
own half under i's recovery key: whoever knows the master secret of i can compute i's half, the recovery key, j's half,
and with them the seed. Commitments to the halves are beside the boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import constant_time
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey

from securefda.errors import ConfigError
from securefda.protocol import agreement
from securefda.protocol.agreement import (
    HASH_BYTES,
    KEY_BYTES,
    BoxAddress,
    CommitmentError,
    KeyAgreementError,
    KeyPair,
    Label,
    LoadedKey,
    derive,
)
from securefda.protocol.header import KeyAgreement
from securefda.protocol.secret import Secret

KeyT = TypeVar("KeyT", MLKEM768PrivateKey, MLKEM768PublicKey)

BOX_PRIVATE_BYTES = KEY_BYTES + 64
"""Length of a private box key: X25519 32, the seed of ML-KEM-768 64."""

BOX_KEY_BYTES = KEY_BYTES + 1184
"""Length of a public box key: X25519 32, ML-KEM-768 1184."""

CIPHERTEXT_BYTES = 1088

PAIR_SECRET_BYTES = 32
RECOVERY_BYTES = 32
"""Length of a recovery value: the sender's half under the recovery key of its peer."""

FRONT_BYTES = CIPHERTEXT_BYTES + HASH_BYTES
"""What is in front of a box: the ciphertext of the KEM, and the commitment to the sender's half."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class BoxKey:
    """A private box key of both kinds, loaded; like :class:`LoadedKey`, not to be kept in a state."""

    _x25519: KeyPair
    _loaded: LoadedKey
    _kem: MLKEM768PrivateKey

    @classmethod
    def of(cls, private: Secret) -> BoxKey:
        """Load a private box key: 32 bytes of X25519, then the 64 bytes of the seed of ML-KEM-768.

        Raises:
            ConfigError: ``session.key-agreement``, this build of the library has no ML-KEM.
            ValueError: the secret has another length.
        """
        revealed = private.reveal()
        pair = KeyPair(Secret(revealed[:KEY_BYTES]))
        return cls(pair, pair.loaded(), _with_ml_kem(MLKEM768PrivateKey.from_seed_bytes, revealed[KEY_BYTES:]))

    @property
    def public(self) -> bytes:
        """The public box key, 1216 bytes: X25519, then ML-KEM-768."""
        return self._x25519.public + self._kem.public_key().public_bytes_raw()

    def encapsulate(self, peer_public: bytes, address: BoxAddress) -> tuple[Secret, bytes]:
        """The key of the box from here to the owner of ``peer_public``, and the ciphertext that goes with it.

        Raises:
            KeyAgreementError: the public key gives no shared secret.
        """
        exchanged = self._loaded.exchange(peer_public[:KEY_BYTES])
        shared, ciphertext = encapsulated(_kem_public(peer_public))
        return _combined(Secret(shared), exchanged, address, ciphertext), ciphertext

    def decapsulate(self, peer_public: bytes, address: BoxAddress, ciphertext: bytes) -> Secret:
        """The key of the box that the owner of ``peer_public`` sent here.

        A ciphertext that was altered gives another key (FIPS 203, implicit rejection), with which no box opens.

        Raises:
            KeyAgreementError: the public key gives no shared secret.
        """
        exchanged = self._loaded.exchange(peer_public[:KEY_BYTES])
        return _combined(Secret(self._kem.decapsulate(ciphertext)), exchanged, address, ciphertext)


def require_available(agreements: Collection[str]) -> str:
    """Check that this machine can do one of these key agreements; returns a line about it.

    Raises:
        ConfigError: ``session.key-agreement``, all of them need ML-KEM-768 and this build of the library has none.
    """
    try:
        _with_ml_kem(MLKEM768PrivateKey.from_seed_bytes, bytes(BOX_PRIVATE_BYTES - KEY_BYTES))
    except ConfigError:
        if KeyAgreement.X25519.label not in agreements:
            raise
        return f"{' or '.join(agreements)}; this machine has no ML-KEM-768"
    return f"{' or '.join(agreements)}; this machine has ML-KEM-768"


def encapsulated(public: MLKEM768PublicKey) -> tuple[bytes, bytes]:
    """A shared secret, 32 bytes, and its ciphertext; what they depend on is drawn by the library's own generator."""
    return public.encapsulate()


def check_box_key(public: bytes) -> None:
    """Refuse a public box key that gives no shared secret.

    Raises:
        KeyAgreementError: wrong length, a point of low order, or no key of ML-KEM-768.
    """
    # First, as it also checks the length: the slice below would do with fewer bytes.
    _kem_public(public)
    agreement.check_public_key(public[:KEY_BYTES])


def _kem_public(public: bytes) -> MLKEM768PublicKey:
    if len(public) != BOX_KEY_BYTES:
        raise KeyAgreementError(f"a box key of X25519 and ML-KEM-768 has {BOX_KEY_BYTES} bytes, not {len(public)}")
    try:
        return _with_ml_kem(MLKEM768PublicKey.from_public_bytes, public[KEY_BYTES:])
    except ValueError as error:
        raise KeyAgreementError("the bytes are no public key of ML-KEM-768") from error


def _with_ml_kem(read: Callable[[bytes], KeyT], data: bytes) -> KeyT:
    try:
        return read(data)
    except UnsupportedAlgorithm as error:
        why = "this build of the package cryptography has no ML-KEM-768"
        hint = 'install its wheel from PyPI, or set session.key-agreement = "x25519" and let every policy allow that'
        raise ConfigError("session.key-agreement", why, hint=hint) from error


def _combined(shared: Secret, exchanged: Secret, address: BoxAddress, ciphertext: bytes) -> Secret:
    """Both secrets have a fixed length, so their concatenation is unambiguous; the salt binds all public keys."""
    # The post-quantum secret comes first, as in X-Wing. With the ciphertext in the info, nothing rests on how a KEM
    # binds its ciphertext to its secret (decision 0032).
    together = Secret(shared.reveal() + exchanged.reveal())
    parties = (address.sender, address.recipient)
    key = derive(together, salt=address.ctx1, label=Label.HYBRID_BOX, parties=parties, bound=ciphertext)
    for secret in (shared, exchanged, together):
        secret.erase()
    return key


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Half:
    """What one source adds to the seed of the mask that it shares with a peer.

    Attributes:
        owner, peer: roster indices.
        ctx1: transcript hash, 32 bytes.
        pair_secret: 32 bytes, which the owner sends to the peer inside its box.
        half: 32 bytes of the seed's input.
        recovery_key: 32 bytes, under which the peer sends its own half.
    """

    owner: int
    peer: int
    ctx1: bytes
    pair_secret: Secret
    half: Secret
    recovery_key: Secret

    @classmethod
    def of_master(cls, master: Secret, *, owner: int, peer: int, ctx1: bytes) -> Half:
        """The half of the source with this master secret."""
        secret = derive(master, salt=ctx1, label=Label.PAIR_SECRET, parties=(owner, peer))
        return cls.of_pair_secret(secret, owner=owner, peer=peer, ctx1=ctx1)

    @classmethod
    def of_pair_secret(cls, secret: Secret, *, owner: int, peer: int, ctx1: bytes) -> Half:
        """The half of ``owner``, as its peer derives it from what the box holds."""
        # One derivation gives both: different output bytes of HKDF reveal nothing of each other.
        both = derive(
            secret, salt=ctx1, label=Label.PAIR_HALF, parties=(owner, peer), length=KEY_BYTES + RECOVERY_BYTES
        )
        half, recovery_key = Secret(both.reveal()[:KEY_BYTES]), Secret(both.reveal()[KEY_BYTES:])
        both.erase()
        return cls(owner, peer, ctx1, secret, half, recovery_key)

    @property
    def commitment(self) -> bytes:
        """Commitment to the half, 32 bytes, in front of the owner's box to the peer."""
        return half_commitment(self.half, owner=self.owner, peer=self.peer, ctx1=self.ctx1)

    def require(self, committed: bytes) -> None:
        """Compare the half with the commitment to it.

        Raises:
            CommitmentError: it is another one.
        """
        _require_committed(self.half, committed, owner=self.owner, peer=self.peer, ctx1=self.ctx1)

    def recovery_value(self, theirs: Half) -> bytes:
        """This half under the peer's recovery key, 32 bytes, which goes beside the owner's masked input.

        Each recovery key covers one half, so it is a one-time pad.
        """
        return _xor(self.half.reveal(), theirs.recovery_key.reveal())

    def recovered(self, value: bytes, committed: bytes) -> Secret:
        """The peer's half from the recovery value that it sent, and its commitment.

        Raises:
            CommitmentError: it is another one than the peer committed to.
        """
        half = self.opened(value)
        _require_committed(half, committed, owner=self.peer, peer=self.owner, ctx1=self.ctx1)
        return half

    def opened(self, value: bytes) -> Secret:
        """The peer's half from its recovery value, compared with nothing."""
        return Secret(_xor(value, self.recovery_key.reveal()))

    def erase(self) -> None:
        """Overwrite all three secrets."""
        for secret in (self.pair_secret, self.half, self.recovery_key):
            secret.erase()


def half_commitment(half: Secret, *, owner: int, peer: int, ctx1: bytes) -> bytes:
    """Commit to a half: SHA-256 over (label, ctx1, owner, peer, half), 32 bytes."""
    return agreement.committed(Label.HALF_COMMITMENT, ctx1, owner, peer, half.reveal())


def _require_committed(half: Secret, committed: bytes, *, owner: int, peer: int, ctx1: bytes) -> None:
    if not constant_time.bytes_eq(half_commitment(half, owner=owner, peer=peer, ctx1=ctx1), committed):
        raise CommitmentError(f"the half of party {owner} for {peer} does not match its commitment")


def _xor(left: bytes, right: bytes) -> bytes:
    return (int.from_bytes(left, "big") ^ int.from_bytes(right, "big")).to_bytes(len(right), "big")


def commitment_in(box: bytes) -> bytes:
    """The commitment to its sender's half in front of a box, of which the length has been checked."""
    return box[CIPHERTEXT_BYTES:FRONT_BYTES]


def recovery_values(tail: bytes | memoryview, peers: Collection[int]) -> Mapping[int, bytes]:
    """What comes behind a masked vector, by peer: one recovery value for each, in rising order of their indices."""
    return {peer: bytes(tail[at * RECOVERY_BYTES : (at + 1) * RECOVERY_BYTES]) for at, peer in enumerate(sorted(peers))}
