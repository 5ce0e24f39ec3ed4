"""The federation that adds up statistics of tables, and what its run left at the target or at a source."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from torch import Tensor

from securefda.bootstrap import task_of
from securefda.errors import ConfigError
from securefda.operations.records import SeenLine
from securefda.operations.run_folder import MODEL_FILE, read_run
from securefda.operations.trained import read_tensors, trained_model
from securefda.site.config import FederationConfig, load_aggregator, load_source
from securefda.site.config.sections import StrategySection, TaskSection
from securefda.site.kit import LOCAL, SETTINGS_FILE, load_kit
from securefda.tasks import Task, tabular
from securefda.tasks.table_statistics import CONSTANTS, FACTORY, LONGEST, NumberStatistics, Statistics, TableStatistics

_MOST_FAR = 0.02
"""From this share of values far from the center on, a scaling that suits them hides what is wrong with them."""


def federation_of_statistics(config: FederationConfig) -> FederationConfig:
    """Return the federation whose one round adds up statistics of the same tables at the same sites.

    Raises:
        ConfigError: its task does not read tables that are described by options.
    """
    sides = config.training
    # Here the target does not train, and no layer stays at a site.
    still = {"dp": sides.target.dp.model_copy(update={"noise_multiplier": 0.0}), "personal_layers": 0}
    target = sides.target.model_copy(update={"labels": "none", "adapt": "none"} | still)
    source = sides.source.model_copy(update={"personal_layers": 0})
    parts = {
        "task": _measured(config.task),
        "strategy": StrategySection(rule="analytic", rounds=1),
        "training": sides.model_copy(update={"target": target, "source": source}),
        "session": config.session.model_copy(update={"clip": LONGEST}),
    }
    return FederationConfig.model_validate(config.model_copy(update=parts).model_dump(by_alias=True))


def _measured(section: TaskSection) -> TaskSection:
    if section.factory not in (tabular.FACTORY, FACTORY):
        why = f"{section.factory} reads no tables that are described by options"
        raise ConfigError("task.factory", why, hint=f"statistics are of {tabular.FACTORY}")
    return section.model_copy(update={"factory": FACTORY})


@dataclass(frozen=True, slots=True)
class SharedStatistics:
    """The statistics of a run, beside those of the site that looks at them.

    Attributes:
        folder: of the run.
        task: whose columns are measured.
        site: which looks at them.
        rows: how many rows of the sources are in the sums; None where a source looks, which does not know.
        sums: how many sources are in each sum, or 1 for a source that the target saw by itself; likewise, empty.
        sources: of the sources together.
        own: of the site's own rows.
        look: what somebody should look at, a line each.
    """

    folder: Path
    task: TableStatistics
    site: str
    rows: int | None
    sums: tuple[int, ...]
    sources: tuple[Statistics, ...]
    own: tuple[Statistics, ...]
    look: tuple[str, ...]

    @classmethod
    def of(
        cls, folder: Path, task: Task, site: str, tensors: Mapping[str, Tensor], seen: Sequence[SeenLine] = ()
    ) -> SharedStatistics:
        """Read the statistics from the model of a run; ``seen`` is what its target opened, by sums.

        Raises:
            ConfigError: the model is of another task or width.
        """
        if not isinstance(task, TableStatistics) or CONSTANTS not in tensors:
            raise ConfigError(str(folder), "holds no statistics", hint="name the folder of a run of `statistics`")
        constants = tensors[CONSTANTS]
        if constants.shape != (task.width,):
            why = f"holds {constants.numel()} sums, and the task's options ask for {task.width}"
            raise ConfigError(str(folder), why, hint="look at it with the options of the run")
        sources, own = task.of_constants(constants), task.of_site(site)
        rows, sums = sum(one["rows"] for one in seen), tuple(len(one["members"]) for one in seen)
        look = tuple(task.cautions(sources, own, site))
        return cls(folder, task, site, rows if seen else None, sums, sources, own, look)


def with_scaling(text: str, statistics: Iterable[Statistics]) -> str:
    """Return the text of a federation's file with the center and scale that suit the rows of these statistics.

    All else stays as it is, comments too.

    Raises:
        ConfigError: a column of numbers is not described in one line, as ``securefda new`` writes it.
    """
    for column, center, scale in suited(statistics):
        key = f"(?:{re.escape(column)}|{re.escape(json.dumps(column, ensure_ascii=False))})"
        found = re.search(rf"^\s*{key}\s*=\s*{{[^}}\n]*}}", text, re.MULTILINE)
        line = found[0] if found else ""
        for name, value in (("center", center), ("scale", scale)):
            line, count = re.subn(rf"\b{name}\s*=\s*[-+0-9.eE_]+", f"{name} = {value:g}", line)
            if count != 1:
                why = f"{column} has no center and scale in one line"
                hint = f"write center = {center:g}, scale = {scale:g} by hand"
                raise ConfigError("--write", why, hint=hint)
        text = text[: found.start()] + line + text[found.end() :] if found else text
    return text


def suited(statistics: Iterable[Statistics]) -> list[tuple[str, float, float]]:
    """Return columns of numbers with a center and a scale that suit their values, with two digits that count.

    They are median and spread. A column with many values far from the public center is left out: its units differ.
    """
    return [
        (one.column, float(f"{one.median:.2g}"), float(f"{one.spread:.2g}"))
        for one in statistics
        if isinstance(one, NumberStatistics) and one.spread > 0 and one.far < _MOST_FAR
    ]


def statistics_of_run(folder: Path) -> SharedStatistics:
    """Return the statistics in a target's run folder. Raises what ``trained_model`` does."""
    task, model = trained_model(folder)
    seen = read_run(folder).rounds[-1].get("seen", [])
    return SharedStatistics.of(folder, task, task.settings.target, model.state_dict(), seen)


def statistics_of_kit(
    folder: Path, now: datetime, config: Path | None, out: Path | None, overrides: Iterable[str]
) -> SharedStatistics:
    """Return the statistics that a run left at a kit's site.

    Args:
        folder: the kit.
        now: the present time.
        config: the site's settings; None for those in the kit.
        out: of the run; None for the folder that the settings name.
        overrides: of settings, ``KEY=VALUE``.

    Raises:
        ConfigError: a file is missing or unfit, or the folder holds no statistics.
    """
    kit, file = load_kit(folder, now), config or folder / LOCAL / SETTINGS_FILE
    if kit.role == "target":
        return statistics_of_run(out or load_aggregator(file, overrides, os.environ).aggregator.out)
    settings = load_source(file, overrides, os.environ)
    model = (out or settings.source.out) / MODEL_FILE
    if not model.exists():
        why = f"{kit.site_id} has no {MODEL_FILE} there: its run goes on, or its target shares none"
        raise ConfigError(
            str(model.parent), why, hint="look again when the run has ended, or name its folder with --out"
        )
    task = task_of(_measured(settings.task), kit.roster, 0)
    return SharedStatistics.of(model.parent, task, kit.site_id, read_tensors(model))
