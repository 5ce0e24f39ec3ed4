"""The model of a run at the aggregator: the target trains it, each round changes it, and it is stored."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from securefda.aggregator.attempt import RoundSum
from securefda.aggregator.headers import Place, SessionPlan, make_header
from securefda.aggregator.receipts import Receipts
from securefda.aggregator.rounds import CurrentRound, RoundTotal, total_of, update_of
from securefda.aggregator.settings import RunSettings, TargetSite
from securefda.aggregator.store import AggregatorStore, Asked, KeptResult, Position, TargetRelease
from securefda.aggregator.target import train_target
from securefda.operations.progress import Reporter
from securefda.protocol.encoding import vector_to_wire
from securefda.protocol.messages import Header, Parcel, Result, Signed, Visibility
from securefda.rules import ServerState, server_step
from securefda.training import Vector


@dataclass(frozen=True, slots=True, repr=False)
class Change:
    """What a round's sum amounts to: the totals, the model after it, and the state of the server's optimiser."""

    total: RoundTotal
    vector: Vector
    server: ServerState | None


class RunModel:
    """The global model, trained at the target and changed by every round that is finished.

    ``vector`` holds its parameters, float32 ``(n_params,)``; it is empty before :meth:`begin` or :meth:`restore`. All
    that a round leaves behind is in the store before a method returns. ``receipts`` are those for the last result.
    """

    def __init__(
        self, site: TargetSite, settings: RunSettings, store: AggregatorStore, reporter: Reporter, run_id: bytes
    ) -> None:
        self._site, self._settings, self._store, self._reporter = site, settings, store, reporter
        self._run_id = run_id
        self._result_digest = b""
        self.receipts = Receipts(site, store, run_id)
        self._server: ServerState | None = None
        self.vector: Vector = np.zeros(0, np.float32)

    def begin(self) -> None:
        """Start from the task's own model."""
        self.vector = self._site.trainer.initial_model()
        self._store.begin_run(self._run_id, self._settings.config_digest, self.vector)

    def restore(self, position: Position) -> None:
        """Start from where the run was interrupted."""
        self._result_digest = position.result_digest
        self.receipts.restore()
        self.vector, self._server = self._store.model(), self._store.server()

    def train_target(self, current: CurrentRound) -> None:
        """Once per round, whatever the number of attempts: what is published of the target stays one release."""
        if current.trained:
            return
        site, run, factor = self._site, self._run_id.hex(), current.plan.learning_rate_factor
        began = site.clock()
        attempt = current.attempt + 1
        current.target = train_target(
            site.trainer, self.vector, current.number, current.plan, run_id=run, attempt=attempt
        )
        if site.personal is not None:
            site.personal.train(self.vector, run, current.number, factor)
        current.trained = True
        current.spent("train_target", site.clock() - began)

    def header(self, current: CurrentRound, session: SessionPlan, metrics: bool) -> Signed[Header]:
        """The header of the next attempt at a round. Nothing of it may leave before :meth:`publish`."""
        witnessed = self._site.witness.note
        return make_header(
            self._site,
            self._settings,
            Place(self._run_id, current.number, current.attempt + 1, self._result_digest, witnessed),
            plan=current.plan,
            target=current.target,
            model=self.vector,
            session=session,
            metrics=metrics,
        )

    def publish(self, current: CurrentRound, header: Header, asked: Asked) -> None:
        """Write down that an attempt begins, and what of the target leaves with its header."""
        current.begin(header, asked)
        self._store.begin_attempt(current.number, current.attempt, asked)
        if header.target is not None and header.target.update_digest:
            recipients = [self._site.name(index) for index in header.at(Visibility.SUM)]
            digest = header.target.update_digest.hex()
            release = TargetRelease(current.number, current.attempt, digest, recipients, self._settings.target_noise)
            self._store.release_target(release)
            current.released_to |= set(recipients)

    def header_for(self, header: Signed[Header], index: int, current: CurrentRound) -> Parcel:
        """The header with the model, and with g_T for a source that evaluates the rule."""
        vectors: tuple[memoryview, ...] = (vector_to_wire(self.vector),)
        body = header.body
        if body.target and body.target.update_digest and current.target and body.level_of(index) is Visibility.SUM:
            vectors = (*vectors, vector_to_wire(current.target.result.update))
        return Parcel(header, vectors)

    def take_target_update(self, current: CurrentRound) -> None:
        """Finish a round of the target alone."""
        if current.target is not None:
            self.vector = self.vector + current.target.result.update
        self._record(current)

    def change_by(self, current: CurrentRound, header: Header, outcome: RoundSum) -> Change:
        """What the model becomes by the sum that an attempt gave. Nothing is changed yet.

        Raises:
            ValueError: a source lied about its part; which source is hidden, so none can be named.
        """
        began = self._site.clock()
        total, server = total_of(header, current.target, outcome), self._server
        update = update_of(current.plan.rule, total, current.target, self._settings.max_samples)
        if current.plan.server is not None:
            update, server = server_step(current.plan.server, server, update)
        current.target_cosine = current.cosine_with_target(update)
        vector = (self.vector + update).astype(np.float32)
        current.spent("rule", self._site.clock() - began)
        return Change(total, vector, server)

    def take(self, current: CurrentRound, header: Signed[Header], outcome: RoundSum, change: Change) -> Signed[Result]:
        """Finish a round with what its attempt gave; the result is for the sources in its sums."""
        self.vector, self._server = change.vector, change.server
        body = Result(outcome.digest, outcome.count, sha256(vector_to_wire(self.vector)).digest())
        result = self._site.signer.sign(header.envelope.session_id, header.digest(), body)
        self._result_digest = result.digest()
        kept = self.receipts.following(current.number, result)
        self._record(current, header.body.participants, outcome, change.total, kept)
        self.receipts.published(kept)
        return result

    def lose(self, current: CurrentRound, participants: Iterable[int]) -> None:
        """Give a round up: the model stays as it is."""
        line = current.lost_line(self._site, self.vector, participants)
        self._store.lose_round(dict(line))
        self._reporter.round_finished(line)

    def _record(
        self,
        current: CurrentRound,
        participants: Iterable[int] = (),
        outcome: RoundSum | None = None,
        total: RoundTotal | None = None,
        kept: KeptResult | None = None,
    ) -> None:
        site, began = self._site, self._site.clock()
        if site.personal is None:
            evaluation = site.trainer.evaluate(self.vector, site.test_data)
        else:  # the target is measured with the model of its own
            evaluation = site.personal.evaluate(self.vector, self._run_id.hex(), current.number, site.test_data)
        current.spent("evaluate", site.clock() - began)
        line = current.finished_line(
            site, self.vector, participants, outcome=outcome, total=total, max_samples=self._settings.max_samples
        )
        line["accuracy"] = evaluation.metrics["accuracy"]
        line["loss"], line["metrics"] = evaluation.loss, evaluation.metrics
        if site.personal is not None:
            line["evaluated"] = "personal"
        self._store.finish_round(dict(line), self.vector, self._result_digest, self._server, kept)
        self._reporter.round_finished(line)
