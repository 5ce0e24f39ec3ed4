"""The attacker's sources. They replace an honest endpoint and are built on the honest code."""

from __future__ import annotations

from dataclasses import dataclass, field

from securefda.protocol import source_session as steps
from securefda.protocol.agreement import SharePair
from securefda.protocol.messages import Body, Parcel, Signer
from securefda.protocol.secret import Secret
from securefda.source.source_run import SourceReporter, SourceRun, SourceSite


@dataclass
class Copied:
    """The copied secrets of one session of a colluding source; ``shares`` are those it holds of others."""

    master: Secret | None = None
    self_secret: Secret | None = None
    box_private: Secret | None = None
    nonce: bytes = b""
    shares: dict[int, SharePair] = field(default_factory=dict)


class ColludingSource(SourceRun):
    """Follows the protocol and passes everything that it knows to the aggregator.

    Powers: its own keys and shares of each session (``copied``, by session id) and its own update. Nothing of others
    but what the protocol sends it.
    """

    def __init__(self, site: SourceSite, reporter: SourceReporter) -> None:
        super().__init__(site, reporter)
        self.copied: dict[bytes, Copied] = {}

    def handle(self, parcel: Parcel) -> list[Parcel]:
        """Answer as an honest source, after copying what a phase is about to forget."""
        self._copy()
        answers = super().handle(parcel)
        self._copy()
        return answers

    def secrets_of(self, session_id: bytes) -> Copied:
        """Return what it knows of a session; nothing if it took no part."""
        return self.copied.get(session_id, Copied())

    @property
    def signer(self) -> Signer:
        """The signer with its key, which the attacker holds as well."""
        return self._site.signer

    @property
    def phase(self) -> object:
        """The phase of the session in progress; None outside of one."""
        return self._round.phase if self._round is not None else None

    def _copy(self) -> None:
        phase = self.phase
        if self._round is None or phase is None:
            return
        known = self.copied.setdefault(self._round.header.envelope.session_id, Copied())
        if isinstance(phase, steps.AwaitingKeyList | steps.AwaitingRoll):
            secrets = phase.secrets
            known.master, known.self_secret = _again(secrets.master), _again(secrets.self_secret)
            known.box_private, known.nonce = _again(secrets.private), secrets.nonce.reveal()
        if isinstance(phase, steps.AwaitingSurvivors):
            known.shares = {
                owner: SharePair(_again(pair.master), _again(pair.self_secret))
                for owner, pair in phase.secrets.shares.items()
            }


def _again(secret: Secret) -> Secret:
    return Secret(secret.reveal())


class MaliciousSource(ColludingSource):
    """Sends arbitrary answers. A subclass overrides :meth:`answers`; this class follows the protocol.

    Powers: the real key of its site and all that the protocol gives to that site.
    """

    def handle(self, parcel: Parcel) -> list[Parcel]:
        """Answer as an honest source, except for what :meth:`answers` changes."""
        return self.answers(parcel, super().handle(parcel))

    def answers(self, parcel: Parcel, honest: list[Parcel]) -> list[Parcel]:  # noqa: ARG002 - for overriding
        """Return the answers to ``parcel`` that replace the honest ones."""
        return honest

    def resigned(self, parcel: Parcel, body: Body, *vectors: bytes) -> Parcel:
        """Return an answer with another body, validly signed in the same session and context."""
        envelope = parcel.message.envelope
        return Parcel(self._site.signer.sign(envelope.session_id, envelope.context, body), vectors or parcel.vectors)
