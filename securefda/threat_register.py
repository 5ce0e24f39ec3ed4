"""The threat register and the results of the last test run: two files of the source tree, strictly parsed.

``threats.toml`` holds the claims. ``.last-run.json`` beside it holds the last result of each test of these claims;
``threat_model/recorder.py`` writes it. Nothing here imports the source tree, which is not part of the package.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import AwareDatetime, Field, ValidationError, model_validator

import securefda
from securefda.disk import read_whole
from securefda.errors import ConfigError
from securefda.settings import Settings, parse_settings, read_toml

REGISTER_FILE = "threats.toml"
LAST_RUN_FILE = ".last-run.json"

Attacker = Literal["HbC-A", "Mal-A", "CS", "MS", "COL", "NET", "OUT", "INS"]
Level = Literal["individual", "cohort", "sum"]
Status = Literal["mitigated", "accepted", "out of scope", "planned"]
Kind = Literal["adversary", "control"]
Outcome = Literal["passed", "failed", "skipped", "not run"]

_Text = Annotated[str, Field(min_length=1)]
_Texts = Annotated[tuple[_Text, ...], Field(strict=False)]


class Threat(Settings):
    """One row of the register.

    Attributes:
        id: ``T`` and two digits; stays with the threat for good.
        title: what happens, a few words.
        attackers: who would do it; empty where it happens by chance.
        asset: what is lost.
        levels: visibility levels at which it can happen.
        status: ``planned`` is not mitigated yet, whatever part of it is.
        mitigation: what stands in the way today; for ``planned``, also what is missing.
        modules: files that hold the mitigation, from the root of the source tree.
        residual: what remains.
        condition: without what nothing is mitigated, a few words; empty where it holds by default.
        control: whether a positive control has to succeed: the same adversary with the mitigation switched off.
    """

    id: Annotated[str, Field(pattern=r"^T\d\d$")]
    title: _Text
    attackers: Annotated[tuple[Attacker, ...], Field(strict=False)]
    asset: _Text
    levels: Annotated[tuple[Level, ...], Field(strict=False, min_length=1)]
    status: Status
    mitigation: _Text
    modules: _Texts
    residual: _Text
    control: bool
    condition: str = ""

    @model_validator(mode="after")
    def _status_fits(self) -> Self:
        if self.status == "mitigated" and not self.modules:
            raise ConfigError(self.id, "a mitigated threat names the modules that mitigate it")
        if self.status != "mitigated" and self.control:
            raise ConfigError(self.id, "a control switches a mitigation off, and this threat has none")
        if self.status != "mitigated" and self.condition:
            raise ConfigError(self.id, "a condition is of a mitigation, and this threat has none")
        return self


class Register(Settings):
    """All threats, in rising order of their ids."""

    threat: Annotated[tuple[Threat, ...], Field(strict=False, min_length=1)]

    @model_validator(mode="after")
    def _ids_rise(self) -> Self:
        ids = [threat.id for threat in self.threat]
        if ids != sorted(set(ids)):
            raise ConfigError("threat", "ids must differ and rise")
        return self


class RecordedTest(Settings):
    """The result of one test of a threat when it last ran; ``seconds`` includes its set-up."""

    threats: _Texts
    kind: Kind
    outcome: Literal["passed", "failed", "skipped"]
    seconds: float
    time: AwareDatetime


class LastRun(Settings):
    """The results of the tests by their pytest id; ``full_run`` is when all of them last ran."""

    full_run: AwareDatetime | None = None
    tests: dict[str, RecordedTest] = Field(default_factory=dict)

    @property
    def latest(self) -> AwareDatetime | None:
        """When a test last ran; None if none did."""
        return max((record.time for record in self.tests.values()), default=None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of all tests of one kind for one threat; ``time`` is that of the one that ran longest ago."""

    outcome: Outcome
    records: tuple[RecordedTest, ...]

    def count(self, outcome: Outcome) -> int:
        """Return how many of the tests had this outcome."""
        return sum(record.outcome == outcome for record in self.records)

    @property
    def time(self) -> AwareDatetime | None:
        """The time of the test that ran longest ago; None if none ran."""
        return min((record.time for record in self.records), default=None)


def verdict(last: LastRun, threat_id: str, kind: Kind) -> Verdict:
    """Judge the tests of one kind: all must have passed, and at least one must have run."""
    records = tuple(record for record in last.tests.values() if threat_id in record.threats and record.kind == kind)
    outcomes = {record.outcome for record in records}
    ranked: Iterable[Outcome] = ("failed", "passed", "skipped")
    return Verdict(next((outcome for outcome in ranked if outcome in outcomes), "not run"), records)


def register_folder(given: Path | None) -> Path:
    """The folder that holds the register: the one given, or ``threat_model`` beside the package's source tree.

    Raises:
        ConfigError: there is no register.
    """
    if given is not None:
        if not (given / REGISTER_FILE).is_file():
            raise ConfigError("--register", f"{given} holds no {REGISTER_FILE}", hint="name a threat_model folder")
        return given
    folder = Path(securefda.__file__).parents[1] / "threat_model"
    if not (folder / REGISTER_FILE).is_file():
        raise ConfigError(
            "threats",
            "the threat register is part of the source tree, not of the installed package",
            hint="name the tree's folder: --register PATH/threat_model",
        )
    return folder


def load_register(folder: Path) -> Register:
    """Read ``threats.toml``.

    Raises:
        ConfigError: it is missing or malformed, a key is unknown, or a value is wrong.
    """
    path = folder / REGISTER_FILE
    return parse_settings(Register, read_toml(path), file=path)


def load_last_run(folder: Path) -> LastRun | None:
    """Read the results of the tests; None if they never ran.

    Raises:
        ConfigError: the file cannot be read, or is not what this release writes.
    """
    path = folder / LAST_RUN_FILE
    try:
        return LastRun.model_validate_json(read_whole(path))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(str(path), f"cannot be read: {error.strerror}") from error
    except ValidationError as error:
        why = error.errors(include_url=False)[0]["msg"]
        raise ConfigError(str(path), f"is no record of a test run: {why}", hint="delete it and run make test") from None


def unproven(register: Register, last: LastRun, kind: Kind) -> list[Threat]:
    """Return the threats whose tests of this kind have to pass, but failed or did not run."""
    due = (
        threat for threat in register.threat if threat.status == "mitigated" and (kind == "adversary" or threat.control)
    )
    return [threat for threat in due if verdict(last, threat.id, kind).outcome != "passed"]


def by_status(register: Register) -> dict[Status, int]:
    """Count the threats by status."""
    counts = {status: sum(threat.status == status for threat in register.threat) for status in get_args(Status)}
    return {status: count for status, count in counts.items() if count}
