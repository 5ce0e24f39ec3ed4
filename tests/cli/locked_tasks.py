"""A task that takes an option whose name marks a secret."""

from dataclasses import replace

from securefda.tasks import TaskSettings
from securefda.tasks.tabular import Tabular


class LockedTable(Tabular):
    def __init__(self, settings: TaskSettings) -> None:
        if (settings.options["access-token"], settings.options["store"]["password"]) != ("sesame", 7):
            raise ValueError("opens nothing")
        rest = {name: one for name, one in settings.options.items() if name not in ("access-token", "store")}
        super().__init__(replace(settings, options=rest))
