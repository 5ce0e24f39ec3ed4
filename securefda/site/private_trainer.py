"""Training at a site by DP-SGD: every round is charged to the site's ledger before its first step."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256

import torch

from securefda.errors import TrainingError
from securefda.privacy.dp_events import DpEvent
from securefda.privacy.ledger import Reservation
from securefda.privacy.noise import NoiseSource
from securefda.privacy.planning import schedule_of
from securefda.privacy.private_training import cost_of, fitting, loss_lines, train_private
from securefda.protocol.encoding import vector_to_wire
from securefda.protocol.secret import RandomBytes
from securefda.rules import Moments
from securefda.site.privacy_account import PrivacyAccount
from securefda.tasks import Samples, Task
from securefda.training import LocalResult, TrainingSettings, Vector
from securefda.training.alignment import FeatureAlignment
from securefda.training.head import head_rows
from securefda.training.team import Team, TrainingOrder, not_federated
from securefda.training.trainer import PermittedRows, PlannedRound, SiteTrainer


@dataclass(frozen=True, slots=True, repr=False)
class _KeptResult:
    """The last result, the inputs that it belongs to, and the charge that paid for it."""

    of: tuple[str, str, int, bytes, float]
    reservation: Reservation
    result: LocalResult


class PrivateTrainer(SiteTrainer):
    """A :class:`SiteTrainer` that trains by DP-SGD and within a budget.

    Where the first session of a round came to nothing, a second one gets the result of the first training: sending it
    again costs nothing, training again would. After a reset of the ledger the first charge counts no more, so the round
    is trained and charged again.

    Args:
        task, site, rows, settings, seed: as for :class:`SiteTrainer`; ``settings.dp`` is set.
        account: pays for the rounds.
        random_bytes: where noise and the rows of each step come from; anything but ``os.urandom`` is for tests.
        team: as there. This process alone draws rows and noise, and charges.

    Raises:
        TrainingError: the model cannot be trained by DP-SGD; the layer is named.
        ConfigError: the batch is larger than the data; this machine does not have the device; one more row could
            change which others train.
    """

    def __init__(
        self,
        task: Task,
        site: str,
        rows: Samples,
        settings: TrainingSettings,
        seed: int,
        *,
        account: PrivacyAccount,
        random_bytes: RandomBytes = os.urandom,
        team: Team | None = None,
    ) -> None:
        super().__init__(task, site, rows, settings, seed, team=team)
        task.require_own_sides(site)
        settings = self.settings = fitting(task, self.module, rows, self.settings)
        if settings.dp is not None and settings.dp.ghost_clipping:
            self.trains_on += ", ghost clipping"
        schedule_of(settings, len(rows))
        self.repeatable = False
        self.account = account
        self._random_bytes = random_bytes
        self._kept: _KeptResult | None = None

    def event(self, run_id: str, round_number: int, attempt: int) -> DpEvent:
        """Return the ledger event with which a round is charged."""
        settings, dp = self.settings, self.settings.dp
        if dp is None:
            raise ValueError("a private trainer's settings have dp")
        schedule = schedule_of(settings, self.samples)
        return DpEvent(
            run_id=run_id,
            round=round_number,
            attempt=attempt,
            noise_multiplier=dp.noise_multiplier,
            sampling_rate=schedule.sampling_rate,
            steps=schedule.steps_per_round,
            max_grad_norm=dp.max_grad_norm,
        )

    def cost_lines(self) -> list[str]:
        """Return what noise does not take of the loss, and what a round costs, by one step timed now, if much."""
        torch.set_num_threads(self.threads)
        of_loss = loss_lines(self.task, self.module, self.labelled_rows())
        return [*of_loss, *cost_of(self.task, self.module, self.labelled_rows(), self.settings).words()]

    def release_of_moments(self, run_id: str, round_number: int, attempt: int, bound: float) -> DpEvent:
        """Return the ledger event with which second moments are charged: one step over all rows.

        Its epsilon does not depend on ``bound``, by which the noise is scaled.
        """
        event = self.event(run_id, round_number, attempt)
        return replace(event, sampling_rate=1.0, steps=1, max_grad_norm=bound)

    def moments(
        self,
        received: Vector,
        round_number: int,
        *,
        bound: float,
        permitted: PermittedRows | None = None,  # noqa: ARG002 - epsilon covers no choice of rows
        run_id: str = "",
        attempt: int = 0,
    ) -> LocalResult:
        """Charge one release, then return the second moments of this site's rows with noise.

        What a row adds to the sums that are sent is at most ``bound`` long, so with and without it they lie at most
        ``bound`` apart: one step of the Gaussian mechanism over all rows. No row is held back, and no count of
        rows leads to a refusal: either would tell something that the noise does not cover.

        Args and the shape of the result are those of :meth:`SiteTrainer.moments`.

        Raises:
            BudgetExhausted, LedgerError: as of :meth:`train`; nothing leaves.
            TrainingError, ConfigError, DataError: as of :meth:`SiteTrainer.moments`; nothing was charged.
        """
        asked = ("moments", run_id, round_number, sha256(vector_to_wire(received)).digest(), bound)
        kept = self._kept
        if kept is not None and kept.of == asked and self.account.still_counts(kept.reservation):
            return kept.result
        self._kept = None
        rows = self.samples
        sums = torch.from_numpy(Moments.of(*head_rows(self, received), bound=bound).means() * rows)
        # All that can fail because of the rows or the model comes before the charge, which is never taken back.
        event = self.release_of_moments(run_id, round_number, attempt, bound)
        reservation = self.account.reserve(event)
        noise = NoiseSource(self._random_bytes)
        noisy = noise.added_to(sums, event.noise_multiplier * bound, overwrite=True).numpy()
        self.account.commit(reservation, 1)
        result = self.result_of_moments(noisy / rows, epsilon=reservation.spent)
        self._kept = _KeptResult(asked, reservation, result)
        return result

    def charged_round(self, factor: float) -> PlannedRound:
        """Return the round that the ledger is charged for with this learning rate factor."""
        steps = schedule_of(self.settings, self.samples).steps_per_round
        return PlannedRound(self.samples, steps, self.settings.with_learning_rate_factor(factor).learning_rate)

    def reserve_run(self, run_id: str, rounds: int, *, moments: bool) -> None:
        """Reserve what the rounds of a run cost.

        Raises:
            BudgetReserved: they do not fit beside what other runs have reserved.
            LedgerError, ConfigError: the ledger is missing, cannot be written, or is in doubt.
        """
        event = self.release_of_moments(run_id, 1, 0, 1.0) if moments else self.event(run_id, 1, 0)
        self.account.reserve_run(event, rounds)

    def release_run(self, run_id: str) -> None:
        """Free what a run that has ended did not use. Raises LedgerError, ConfigError."""
        self.account.release_run(run_id)

    def train(
        self,
        received: Vector,
        round_number: int,
        factor: float,
        *,
        run_id: str = "",
        attempt: int = 0,
        fewest_steps: int = 1,
        on_step: Callable[[Vector], None] | None = None,
        align: FeatureAlignment | None = None,
    ) -> LocalResult:
        """Charge the round, then train it from ``received``, float32 (m,).

        Raises:
            BudgetExhausted: the budget does not pay for the round; nothing was charged, nothing trained.
            LedgerError: the ledger is missing, cannot be written, or is in doubt; nothing trained.
            TrainingError: as for ``train_private``; the round stays charged. With ``align``: nothing was charged.
        """
        if align is not None:
            raise TrainingError(
                f"{self.site} trains with noise, and what {align.kind} sends beside the update would have none",
                hint="set training.dp.noise-multiplier to 0, or another strategy.rule at the target",
            )
        asked = ("update", run_id, round_number, sha256(vector_to_wire(received)).digest(), factor)
        kept = self._kept
        # The same release once more teaches nothing new, so it costs nothing. After
        # a reset its charge no longer counts.
        if on_step is None and kept is not None and kept.of == asked and self.account.still_counts(kept.reservation):
            return kept.result
        self._kept = None
        torch.set_num_threads(self.threads)
        settings = self.settings.with_learning_rate_factor(factor)
        if self.team is not None:
            self.team.require_all()  # before anything is charged
        # In full, before the first step (decision 0017).
        reservation = self.account.reserve(self.event(run_id, round_number, attempt))
        if self.team is not None:
            self.team.order(TrainingOrder(received, not_federated(self.module), settings, self.threads, None))
        result = train_private(
            self.task,
            self.module,
            received,
            self.labelled_rows(),
            settings=settings,
            site=self.site,
            fewest_steps=fewest_steps,
            on_step=on_step,
            on_progress=self.on_progress,
            random_bytes=self._random_bytes,
            team=self.team,
        )
        self.account.commit(reservation, result.steps)
        result = replace(result, epsilon=reservation.spent)
        self._kept = _KeptResult(asked, reservation, result)
        return result
