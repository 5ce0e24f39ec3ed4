"""A federation in which sites train by DP-SGD, with ledgers in its folder and rows that a test chooses."""

from __future__ import annotations

import os
import random
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from rounds_federation import SEED, TARGET, UNIX_S, Federation, identity, site_id
from rounds_tasks import Points

from securefda.aggregator.run import AggregatorRun
from securefda.privacy.accountants import epsilon
from securefda.privacy.dp_events import Budget, DpEvent
from securefda.privacy.ledger import Ledger
from securefda.protocol.secret import RandomBytes
from securefda.site.policy import MetadataPolicy, SourcePolicy, WorkLimits
from securefda.site.privacy_account import PrivacyAccount, Reserving, data_set_of
from securefda.site.private_trainer import PrivateTrainer
from securefda.source.source_run import SourceRun
from securefda.tasks import Samples, TaskSettings
from securefda.training import TrainingSettings
from securefda.training.trainer import SiteTrainer
from securefda.training.training_settings import NoiseSettings
from securefda.transport.in_memory import UnderWay

NOISE = NoiseSettings(1.0)
WIDE = Budget(10_000.0, 1e-5)
ANY_RATE = WorkLimits(learning_rate_min=1e-30)
ALL = MetadataPolicy(may_leave=("samples", "loss", "accuracy"))


def settings_with(noise: NoiseSettings | None, **changes: Any) -> TrainingSettings:
    defaults: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 0.05, "batch_size": 4, "device": "cpu"}
    return TrainingSettings(**(defaults | changes), dp=noise)


def enough_for(rounds: int, event: DpEvent) -> Budget:
    """A budget that pays for so many rounds and no more."""
    return Budget(epsilon([event] * rounds, WIDE.delta), WIDE.delta)


class PrivateFederation(Federation):
    """As :class:`Federation`, by DP-SGD.

    Args:
        private: roster indices of those that train with noise; None for all.
        training: how those train; the others do so as usual.
        rows: roster index -> which of the many data sets of equal size a site has; 0 where it is not named.
        budgets: roster index -> what its rows may cost, where that is not nearly endless.
        repeats: every random byte of every site is the same in each federation of this kind.
        trainer: class of the trainers with noise.
        reserving: roster index -> how a source's runs reserve what they will cost; without it nothing is reserved.
    """

    def __init__(
        self,
        folder: Path,
        n: int = 3,
        *,
        private: Collection[int] | None = None,
        training: TrainingSettings | None = None,
        rows: dict[int, int] | None = None,
        budgets: dict[int, Budget] | None = None,
        repeats: bool = False,
        trainer: type[PrivateTrainer] = PrivateTrainer,
        reserving: dict[int, Reserving] | None = None,
        **options: Any,
    ) -> None:
        self.private = frozenset(range(n + 1) if private is None else private)
        self.training = training or settings_with(NOISE)
        self.rows, self.budgets = rows or {}, budgets or {}
        self.trainer_class, self.reserving = trainer, reserving or {}
        self.repeats = repeats
        self._streams: dict[object, RandomBytes] = {}
        self.log: list[UnderWay] = []
        super().__init__(folder, n, **options)

    def stream(self, *purpose: object) -> RandomBytes:
        """Random bytes for a purpose; restarts of a site go on with them."""
        if not self.repeats:
            return os.urandom
        # With this word FedGP leaves something of the noise in each round; with others it may leave nothing.
        return self._streams.setdefault(purpose, random.Random(f"{purpose!r} 2").randbytes)

    def task_of(self, index: int) -> Points:
        sources = tuple(site_id(number) for number in range(1, self.n + 1))
        return Points(TaskSettings(site_id(TARGET), sources, SEED + 1000 * self.rows.get(index, 0)))

    def data_of(self, index: int) -> Samples:
        return self.task_of(index).train_data(site_id(index))

    def ledger_of(self, index: int) -> Ledger:
        file, data = self.folder / f"ledger-{index}.sqlite", data_set_of(site_id(index), "points", self.data_of(index))
        return Ledger(file, data) if file.exists() else Ledger.create(file, data, now=UNIX_S)

    def charged(self, index: int) -> list[tuple[int, int]]:
        """Round and attempt of what was charged to a site."""
        return [(event.round, event.attempt) for event in self.ledger_of(index).events()]

    def trainer_of(self, index: int) -> SiteTrainer:
        task, data = self.task_of(index), self.data_of(index)
        if index not in self.private:
            return SiteTrainer(task, site_id(index), data, settings_with(None), SEED)
        ledger = self.ledger_of(index)
        account = PrivacyAccount(
            ledger,
            data_set_of(site_id(index), "points", data),
            self.budgets.get(index, WIDE),
            identity(index).public_key().public_bytes_raw(),
            unix_time=lambda: self.unix_s,
        )
        noise = self.stream(index, "noise")
        return self.trainer_class(task, site_id(index), data, self.training, SEED, account=account, random_bytes=noise)

    def new_aggregator(self) -> AggregatorRun:
        made = super().new_aggregator()
        made._site.witness.journal.close()
        site = replace(
            made._site,
            trainer=self.trainer_of(TARGET),
            test_data=self.task_of(TARGET).test_data("target"),
            random_bytes=self.stream(TARGET, "session"),
        )
        return AggregatorRun(site, self.settings, self.store, self.watch)

    def source(self, index: int, *, policy: SourcePolicy | None = None, **_: Any) -> SourceRun:
        permitted = policy or self.policy(index, metadata=ALL, limits=ANY_RATE)
        made = super().source(index, policy=permitted)
        trainer = self.trainer_of(index)
        if isinstance(trainer, PrivateTrainer) and index in self.reserving:
            logged = replace(self.reserving[index], on_change=made._site.witness.journal.reserved)
            trainer.account = replace(trainer.account, reserving=logged)
        site = replace(
            made._site,
            trainer=trainer,
            random_bytes=self.stream(index, "session"),
            with_noise=index in self.private,
        )
        return SourceRun(site, made._reporter)

    def put(self, parcel: UnderWay) -> None:
        self.log.append(replace(parcel, vectors=tuple(map(bytes, parcel.vectors))))
        super().put(parcel)


def differing(one: list[UnderWay], other: list[UnderWay]) -> list[tuple[int, str]]:
    """Sender and type of every message that is not the same in both to the last byte."""
    pairs = [(a, b) for a, b in zip(one, other, strict=False) if a != b]
    found = [(a.sender, a.read().message.type_name) for a, _ in pairs]
    return found + [(-1, "their number")] * (len(one) != len(other))
