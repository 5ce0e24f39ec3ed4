"""What ``securefda bench accuracy`` prints, and the exit code it ends with."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securefda.bench.accuracy import TABLE_FILE, Accuracy, means
from securefda.bench.plan import Request, level_keys
from securefda.bench.results import Results
from securefda.bench.suite_folder import read_folder, settings_of
from securefda.bench.suites import compare_levels
from securefda.cli.output import Format, print_error, print_result
from securefda.errors import ConfigError, SecureFdaError
from securefda.text import aligned

COMPARED_POINTS = 1.0
"""How far the means of two levels may be apart."""


class RunsFailed(SecureFdaError):
    """Some runs of a suite gave nothing."""


class BarsMissed(SecureFdaError):
    """A suite's figures are not what they have to be."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two levels of a suite: rule -> points above the other one, and a line for each that is too far off."""

    other: Path
    differences: Sequence[tuple[str, float]]
    misses: Sequence[str]


def at_another_level(request: Request, other: Path) -> Results:
    """The runs of a folder of the same suite and, but for the level, of the settings that are asked for.

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
    """Compare what was measured with the runs of another folder (`at_another_level`), with every seed asked for."""
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


def print_accuracy(output: Format, done: Accuracy, comparison: Comparison | None, *, check: bool) -> int:
    """Print tables and requirements; return 1 where a run failed or, with ``check``, a requirement does not hold."""
    misses = [*done.misses, *(comparison.misses if comparison else ())]
    data: dict[str, Any] = {
        "out": str(done.out),
        "suite": done.request.suite,
        "level": done.request.level,
        "seeds": done.results.seeds,
        "means": means(done.results),
        "misses": misses,
        "failed": {str(key): why for key, why in done.failed.items()},
        "differences": dict(comparison.differences) if comparison else {},
    }
    error = _error(done, misses if check else [])
    if output is Format.JSON and error is not None:
        return print_error(error, as_json=True, data=data)
    print_result(output, data, _text(done, comparison, misses))
    return 0 if error is None else print_error(error, as_json=False)


def _error(done: Accuracy, misses: Sequence[str]) -> SecureFdaError | None:
    if done.failed:
        key, why = next(iter(done.failed.items()))
        count = len(done.failed)
        what = f"{count} {'run' if count == 1 else 'runs'} failed, first {key}: {why}"
        return RunsFailed(what, hint="the same command tries again what failed, and nothing else")
    if misses:
        count = len(misses)
        return BarsMissed(f"{count} {'requirement does' if count == 1 else 'requirements do'} not hold")
    return None


def _text(done: Accuracy, comparison: Comparison | None, misses: Sequence[str]) -> str:
    parts = [(done.out / TABLE_FILE).read_text().rstrip("\n")]
    if comparison is not None:
        rows = [["rule", f"points above {comparison.other}"]]
        rows += [[rule, f"{difference:+.2f}"] for rule, difference in comparison.differences]
        parts.append(aligned(rows))
    if done.request.definition.bars or comparison is not None:
        parts.append("\n".join(misses) or "Every requirement holds.")
    return "\n\n".join([*parts, f"in {done.out}"])
