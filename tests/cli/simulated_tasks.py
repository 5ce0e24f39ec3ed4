"""A task that one site cannot take part in."""

from securefda.errors import DataError
from securefda.tasks.digits import Digits


class NoRowsAtSourceThree(Digits):
    def train_data(self, site):
        if site == "source-3":
            raise DataError("task.data-dir", "there are no rows of source-3", hint="put them there")
        return super().train_data(site)
