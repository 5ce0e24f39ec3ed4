"""Tasks that end badly: with seed 1, for suites that have to go on, or with too many rows, before any run."""

import os
import signal

from securefda.errors import DataError, TrainingError
from securefda.tasks.digits import Digits


class FailsWithSeedOne(Digits):
    def __init__(self, settings):
        super().__init__(settings)
        if settings.seed == 1:
            raise TrainingError("the loss is NaN")


class DiesWithSeedOne(Digits):
    def __init__(self, settings):
        super().__init__(settings)
        if settings.seed == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class NoMoreThanTwoHundredRows(Digits):
    def train_data(self, site):
        rows = super().train_data(site)
        if site == self.settings.target and len(rows) > 200:
            raise DataError("task.options.target-rows", "there are 200")
        return rows
