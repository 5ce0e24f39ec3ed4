"""Tasks that end badly with seed 1, for suites that have to go on."""

import os
import signal

from securefda.errors import TrainingError
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
