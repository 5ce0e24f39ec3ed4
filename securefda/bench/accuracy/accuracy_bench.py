"""``securefda bench accuracy``: the target's accuracy under every rule of a suite, at one level of visibility.

    done = bench_accuracy(Request("fed-heart", level="sum", data_dir=Path("data")), Path("runs/fed-heart"))
    done.results.mean("fedgp_auto", done.results.columns[0])

A run is a simulated federation: at `sum` masked, at `cohort` and `individual` as its policies permit. Each finished run
is kept in the folder at once; the same request continues where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from securefda.bench.accuracy.columns import Column
from securefda.bench.accuracy.engines import ONE_BY_ONE, EngineSettings, run_all
from securefda.bench.accuracy.federated import RunResult
from securefda.bench.accuracy.plan import Planned, Request, level_keys, plan
from securefda.bench.accuracy.plots import write_plots
from securefda.bench.accuracy.pool import Failed
from securefda.bench.accuracy.requirements import AtLeast, compare_levels
from securefda.bench.accuracy.results import Results, RunKey
from securefda.bench.accuracy.suite_folder import SuiteFolder, open_folder, read_folder, result_line, settings_of
from securefda.bench.accuracy.tables import tables
from securefda.bench.resources import this_machine
from securefda.bootstrap import rows_here
from securefda.errors import ConfigError
from securefda.operations.records import software_versions
from securefda.operations.run_folder import replace_file

RESULTS_FILE, TABLE_FILE = "results.json", "table.md"
SCHEMA_VERSION = 1
COMPARED_POINTS = 1.0
"""The largest permitted difference between the means of two levels."""


class Watcher:
    """Receives reports of progress; this one shows nothing."""

    def begin(self, finished: int, total: int) -> None:
        """Report how many of all runs have finished before."""

    def finished(self, key: RunKey, result: RunResult) -> None:
        """Report a run that has finished."""

    def failed(self, key: RunKey, why: str) -> None:
        """Report a run that has failed; the others go on."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The results so far.

    Attributes:
        request: what was asked for.
        out: the folder.
        results: all runs of the folder, also of rules and seeds that were not asked for now.
        failed: run -> why it gave nothing this time.
        misses: a line for each requirement of the suite that does not hold or cannot be judged.
    """

    request: Request
    out: Path
    results: Results
    failed: Mapping[RunKey, str] = field(default_factory=dict)
    misses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two levels of a suite: rule -> points above the other level, and a line for each that is too far
    off.
    """

    other: Path
    differences: Sequence[tuple[str, float]]
    misses: Sequence[str]


def bench_accuracy(
    request: Request, out: Path, *, engine: EngineSettings = ONE_BY_ONE, watcher: Watcher | None = None
) -> Accuracy:
    """Run what the folder lacks, then write ``results.json``, ``table.md`` and the plots.

    Args:
        request: what to measure.
        out: folder, new or of the same settings.
        engine: what computes the runs, each on one thread of torch.
        watcher: hears of every run.

    Raises:
        ConfigError: a setting is wrong, or the folder was made with other settings or is in use.
        DataError: data are missing or unfit; nothing was run or written.
        SecureFdaError: the folder cannot be written; every run that finished is in it.
    """
    planned = plan(request)
    # Load what every site trains on once for each target of a column: hundreds of runs would fail of one file.
    seen = set()
    for one in planned:
        place = (one.key.data, one.key.column, one.key.target)
        if place in seen:
            continue
        seen.add(place)
        federation = one.job.config.federation
        for site in (federation.target, *federation.sources):
            rows_here(one.job.config, site, one.job.seed)
    with open_folder(out, request) as folder:
        failed = _measure(folder, planned, request.level, engine, watcher or Watcher())
        results = Results(request.definition, folder.finished(planned))
        done = Accuracy(request, out, results, failed, tuple(misses_of(request, results)))
        replace_file(done.out / RESULTS_FILE, results_text(done).encode())
        replace_file(done.out / TABLE_FILE, tables(done.request.definition, done.results, done.request.level).encode())
        if done.results.runs:
            write_plots(done.request.definition, done.results, done.out)
    return done


def misses_of(request: Request, results: Results) -> list[str]:
    """Return a line for each requirement that does not hold or cannot be judged with all requested seeds.

    Requirements on a data set that is not requested are left out.
    """
    judged = results.complete(range(request.seeds), request.data_sets)
    known = {"", *request.data_sets}
    bars = [bar for bar in request.definition.bars if not isinstance(bar, AtLeast) or bar.data in known]
    return [line for bar in bars for line in bar.misses(judged)]


def at_another_level(request: Request, other: Path) -> Results:
    """Return the runs of a folder with the same suite and the requested settings except for the level.

    Raises:
        ConfigError: the folder holds no suite, another one, the same level, or one with other settings or data.
    """
    theirs, results = read_folder(other)
    own = settings_of(request)
    if theirs["suite"] != own["suite"]:
        raise ConfigError("--compare", f"{other} holds suite {theirs['suite']}", hint=f"not {own['suite']}")
    if theirs["level"] == own["level"]:
        raise ConfigError("--compare", f"{other} is at level {theirs['level']} too", hint="name another one's folder")
    _require_alike(other, {"release": theirs["release"]}, {"release": own["release"]})
    for data, settings in own["federations"].items():
        if data in theirs["federations"]:
            of_level = {*level_keys(data, own["level"]), *level_keys(data, theirs["level"])}
            _require_alike(other, theirs["federations"][data], settings, apart_from=of_level)
    for data, files in own["files"].items():
        _require_alike(other, theirs["files"].get(data, files), files)
    return results


def compared(done: Accuracy, other: Path, results: Results) -> Comparison:
    """Compare the measurements with the runs of another folder (`at_another_level`), with every seed asked for."""
    request = done.request
    own, theirs = (one.complete(range(request.seeds), request.data_sets) for one in (done.results, results))
    misses, differences = compare_levels(own, theirs, COMPARED_POINTS, request.used_rules)
    return Comparison(other, differences, misses)


def _require_alike(
    other: Path, theirs: Mapping[str, Any], own: Mapping[str, Any], apart_from: Collection[str] = ()
) -> None:
    for key in dict.fromkeys((*own, *theirs)):
        if key not in apart_from and theirs.get(key) != own.get(key):
            why = f"{other} was measured with {json.dumps(theirs.get(key))}, this with {json.dumps(own.get(key))}"
            raise ConfigError(key, why, hint="levels are compared with all else alike")


def _measure(
    folder: SuiteFolder, planned: list[Planned], level: str, engine: EngineSettings, watcher: Watcher
) -> dict[RunKey, str]:
    known = folder.finished(planned)
    lacking = [one for one in planned if one.key not in known]
    failed: dict[RunKey, str] = {}
    watcher.begin(len(planned) - len(lacking), len(planned))

    def done(one: Planned, outcome: RunResult | Failed) -> None:
        if isinstance(outcome, Failed):
            failed[one.key] = outcome.why
            watcher.failed(one.key, outcome.why)
        else:
            folder.add(one, level, outcome)
            watcher.finished(one.key, outcome)

    run_all(lacking, engine, folder.path, folder.scratch, done)
    return failed


def results_text(done: Accuracy) -> str:
    """Return the contents of ``results.json``: all runs, a line for each, with the settings needed to interpret
    them.
    """
    request = done.request
    head = {
        "schema_version": SCHEMA_VERSION,
        "suite": request.suite,
        "level": request.level,
        "seeds": done.results.seeds,
        "rules": list(done.results.rules),
        "set": list(request.overrides),
        "machine": this_machine(),
        "versions": software_versions(),
        "metric": done.results.suite.metric,
        "means": means(done.results),
        "means_by_metric": means_by_metric(done.results),
        "misses": list(done.misses),
        "failed": {str(key): why for key, why in done.failed.items()},
    }
    lines = ",\n".join(_json(asdict(key) | result_line(result)) for key, result in done.results.runs.items())
    return f'{_json(head)[:-1]}, "runs": [\n{lines}\n]}}\n'


def means(results: Results, metric: str = "") -> dict[str, Any]:
    """Return rule -> data set -> column -> a metric, of the suite unless it is named.

    It is the mean over the seeds, in percent where `RunResult.metrics` is; None if a target lacks a seed.
    """

    def rounded(rule: str, column: Column) -> float | None:
        mean = results.mean(rule, column, metric)
        return None if mean is None else round(mean, 5)

    return {
        rule: {data: {one.name: rounded(rule, one) for one in results.columns_of(data)} for data in results.data}
        for rule in results.rules
    }


def means_by_metric(results: Results) -> dict[str, Any]:
    """Return `means` of each metric that any run has, by its name."""
    names = dict.fromkeys(name for data in results.data for name in results.metrics_of(data))
    return {name: means(results, name) for name in names}


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
