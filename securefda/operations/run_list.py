"""A folder of runs: which runs it has, their results, and how their settings differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from securefda.errors import ConfigError
from securefda.operations.records import REPORTED_ROUNDS, Help, chosen_metric, mean_metrics, metrics_in
from securefda.operations.run_folder import (
    METRICS_FILE,
    SITES_FOLDER,
    SUMMARY_FILE,
    RunRecord,
    clear_run,
    read_run,
)
from securefda.operations.state import ENDED, INTERRUPTED, ProcessState, Role, read_state, require_ended
from securefda.operations.summary_text import ALONE, BASELINES, WARM, interval_text, setting_text
from securefda.parse import dotted
from securefda.task_metric import ACCURACY, TaskMetric, metric_of, with_balance
from securefda.text import aligned

_BUDGET = {"target-epsilon": "limit", "target-delta": "delta", "accountant": "accountant"}
"""Settings of the target's budget -> where a summary has them."""
_DEEPEST = 3
"""Folders below the one that is named: ``demo`` puts its runs one deeper than ``run`` does."""


@dataclass(frozen=True, slots=True)
class FoundRun:
    """A run at one site, as shown in a list. Only the target's folder has task, accuracy and settings.

    Attributes:
        path: its folder.
        status: ``finished``, ``failed``, ``interrupted``; ``open`` where neither a summary nor the last process says
            so: it goes on, or was killed; ``damaged``; ``unreadable`` for this user.
        ended: of its last round, at a source of its last process, RFC 3339; empty where that is unknown.
        task, rule: class and rule by name.
        rounds: finished rounds; ``planned`` 0 where that is unknown.
        accuracy: mean over the last rounds, from 0 to 1; None for a task without.
        alone: the same of the target alone; None where it was not measured.
        warm: the same of the target alone from the model after warm-up; None where it was not measured.
        helped: `target_only` and `warm_target` -> by how much the run is better, as far as it was measured.
        source_share: the sources' mean share of the steps after warm-up; None where no round has one.
        settings: dotted key -> value, of all that the summary holds.
        role: of the site.
        metric: the chosen one, in which `helped` is.
        metrics: the task's metrics by name, as the accuracy.
        baselines: `target_only` and `warm_target` -> the same of the target alone, as far as it was measured.
    """

    path: Path
    status: str
    ended: str
    task: str
    rule: str
    rounds: int
    planned: int
    accuracy: float | None
    alone: float | None
    settings: Mapping[str, Any]
    role: Role = "target"
    warm: float | None = None
    helped: Mapping[str, Help] = field(default_factory=dict)
    source_share: float | None = None
    metric: TaskMetric = ACCURACY
    metrics: Mapping[str, float] = field(default_factory=dict)
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        names: tuple[str, ...] = ("role", "status", "ended", "task", "rule", "rounds", "planned", "accuracy", "alone")
        names += ("warm", "helped", "source_share", "metrics", "baselines")
        return {"run": str(self.path), **{name: getattr(self, name) for name in names}, "metric": self.metric.name}


def found_run(path: Path) -> FoundRun:
    """Read one run for the list.

    Raises:
        ConfigError: there is no run in ``path``, or a file of it is damaged.
    """
    record, state = read_run(path), read_state(path)
    summary = record.summary or {}
    if state.role == "source" if state is not None else _is_of_a_source(record):
        return _at_source(record, state)
    rounds = [line for line in record.rounds if line.get("status") != "lost"]
    metrics = mean_metrics(rounds[-REPORTED_ROUNDS:]) or metrics_in(summary, "target_")
    status = summary.get("status", "open")
    if state is not None and state.doing != ENDED and status != "finished":  # it was started again
        status = "open"
    setting = summary.get("setting") or {}
    cap, budget = summary.get("norm_cap"), summary.get("target_privacy") or {}
    settings = {
        **dict(dotted(summary.get("strategy") or {}, "strategy")),
        **dict(dotted(setting.get("training") or {}, "training")),
        **dict(dotted(setting.get("task_options") or {}, "task.options")),
        **{key: setting[key] for key in ("federation", "target", "seed") if key in setting},
        **({"task.data-dir": setting["data_dir"]} if setting.get("data_dir") else {}),
        **({"sources": ", ".join(setting["sources"])} if "sources" in setting else {}),
        **({"privacy.norm-cap-kappa": cap["kappa"] if cap else 0.0} if "norm_cap" in summary else {}),
        **({"privacy.norm-cap-granularity": cap["granularity"]} if cap else {}),
        **{f"privacy.budget.{key}": budget[name] for key, name in _BUDGET.items() if name in budget},
        **dict(dotted(summary.get("visibility") or {}, "visibility")),
        **({"task": summary["task"]} if "task" in summary else {}),
        **dict(dotted(summary.get("versions") or {}, "versions")),
    }
    return FoundRun(
        path,
        status=status,
        ended=summary.get("ended") or (record.rounds[-1].get("ended", "") if record.rounds else ""),
        task=str(summary.get("task", "")).rpartition(":")[2],
        rule=(summary.get("strategy") or {}).get("rule") or (rounds[-1].get("rule", "") if rounds else ""),
        rounds=len(rounds) or summary.get("rounds", 0),
        planned=summary.get("rounds_planned", 0),
        accuracy=metrics.get(ACCURACY.name),
        alone=(summary.get("target_only") or {}).get("accuracy"),
        settings=settings,
        warm=(summary.get("warm_target") or {}).get("accuracy"),
        helped={name: one["help"] for name in BASELINES if "help" in (one := summary.get(name) or {})},
        source_share=summary.get("source_share"),
        metric=chosen_metric(summary, *rounds),
        metrics=metrics,
        baselines={name: metrics_in(one) for name in BASELINES if (one := summary.get(name))},
    )


def _is_of_a_source(record: RunRecord) -> bool:
    """Whether the rounds are a source's own, as in a folder of a simulated run: only a target's say who was in them."""
    return record.summary is None and bool(record.rounds) and not {"status", "survivors"} & record.rounds[0].keys()


def _at_source(record: RunRecord, state: ProcessState | None) -> FoundRun:
    """Describe a run at a source from the source's own record and the state in which its process ended, if any."""
    rounds = [line for line in record.rounds if "refused" not in line]
    status, ended, planned = "open", "", state.rounds if state is not None else 0
    if state is not None and state.doing == ENDED:
        status = {"": "finished", INTERRUPTED: "interrupted"}.get(state.error, "failed")
        ended = datetime.fromtimestamp(state.changed, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    rule = rounds[-1].get("rule", "") if rounds else ""
    return FoundRun(record.path, status, ended, "", rule, len(rounds), planned, None, None, {}, "source")


def runs_below(folder: Path) -> list[FoundRun]:
    """Return all runs in ``folder``, itself included, the latest last. A site's folder in a run is not a separate run.

    Raises:
        ConfigError: the folder does not exist.
    """
    if not folder.is_dir():
        hint = "runs are in ./runs, unless --out named another: securefda runs ls FOLDER"
        raise ConfigError(str(folder), "there is no such folder", hint=hint)
    runs = []
    for path in _run_folders(folder, _DEEPEST):
        try:
            runs.append(found_run(path))
        except (ConfigError, OSError) as error:  # `runs show` says what is wrong with it
            status = "unreadable" if isinstance(error, OSError) else "damaged"
            runs.append(FoundRun(path, status, "", "", "", 0, 0, None, None, {}))
    return sorted(runs, key=lambda run: (run.ended, run.path))


def runs_table(runs: Sequence[FoundRun]) -> str:
    """Return a table with a line for each run."""
    names = {run.metric.title for run in runs if run.metrics} or {ACCURACY.title}
    rows = [("run", "ended", "task", "rule", "rounds", " or ".join(sorted(names)), ALONE, WARM, "status")]
    rows += [
        (
            str(run.path),
            run.ended.replace("T", " ").removesuffix("Z") or "-",
            run.task or "-",
            run.rule or "-",
            f"{run.rounds} of {run.planned}" if run.planned else str(run.rounds),
            *_values_of(run),
            run.status,
        )
        for run in runs
    ]
    return aligned(rows)


def _values_of(run: FoundRun) -> tuple[str, str, str]:
    """Return the chosen metric of a run, of the target alone and of the warm-started one."""
    found = (run.metrics, run.baselines.get("target_only", {}), run.baselines.get("warm_target", {}))
    own, alone, warm = (with_balance(run.metric, metrics) for metrics in found)
    return own, alone, warm


def differences(runs: Sequence[FoundRun]) -> dict[str, list[Any]]:
    """Return the settings in which these runs differ -> each run's value; None if a run does not say."""
    keys = dict.fromkeys(key for run in runs for key in run.settings)
    values = {key: [run.settings.get(key) for run in runs] for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def comparison(runs: Sequence[FoundRun]) -> str:
    """Return a table of the results of runs, one column each, and below it the settings in which they differ."""
    named = dict.fromkeys([*(run.metric.name for run in runs), *(name for run in runs for name in run.metrics)])
    declared = {run.metric.name: run.metric for run in runs}
    shown = [declared.get(name) or metric_of(name) for name in named]
    rows: list[tuple[str, ...]] = [
        ("", *(str(run.path) for run in runs)),
        ("ended", *(run.ended.replace("T", " ").replace("Z", " UTC") or "-" for run in runs)),
        ("status", *(run.status for run in runs)),
        ("rounds", *(str(run.rounds) for run in runs)),
        *((f"target {metric.title}", *(metric.text(run.metrics.get(metric.name)) for run in runs)) for metric in shown),
        *(zip((ALONE, WARM), *(_values_of(run)[1:] for run in runs), strict=True)),
        *(
            (f"over the {words}", *(interval_text(run.helped.get(name), run.metric) for run in runs))
            for name, words in BASELINES.items()
            if any(name in run.helped for run in runs)
        ),
        ("sources' share", *("-" if run.source_share is None else f"{100 * run.source_share:.0f} %" for run in runs)),
    ]
    differing = differences(runs)
    rows += [
        (key, *("-" if value is None else setting_text(value) for value in values)) for key, values in differing.items()
    ]
    same = "\n\nno setting differs that a summary holds; how the sources train is in none"
    return aligned(rows) + ("" if differing else same)


def require_deletable(path: Path) -> None:
    """Refuse a folder that :func:`delete_run` would not delete, as far as that can be seen without trying.

    Raises:
        ConfigError: the folder holds no run, or the run goes on, or it belongs to a startup kit, whose state is what
            keeps a site from releasing twice.
    """
    if any((parent / "startup").is_dir() for parent in path.absolute().parents):
        hint = "a run of experiments is its own folder; a site's run is forgotten with its kit"
        raise ConfigError(str(path), "belongs to a startup kit, and remembers what the site released", hint=hint)
    read_run(path)
    require_ended(path)


def delete_run(path: Path) -> None:
    """Delete a run with its folder.

    Raises:
        ConfigError: as of :func:`require_deletable`, or the folder holds something else as well. Nothing was deleted.
        SecureFdaError: a file cannot be deleted.
    """
    require_deletable(path)
    clear_run(path)
    path.absolute().rmdir()


def _run_folders(folder: Path, deepest: int) -> Iterator[Path]:
    try:
        is_run = (folder / METRICS_FILE).exists() or (folder / SUMMARY_FILE).exists()
        inner = sorted(folder.iterdir()) if deepest and not is_run else []
    except PermissionError:
        is_run, inner = True, []  # for all that can be seen
    if is_run:
        yield folder
    for below in inner:
        if below.is_dir() and not below.is_symlink() and below.name not in (SITES_FOLDER, "kits"):
            yield from _run_folders(below, deepest - 1)
