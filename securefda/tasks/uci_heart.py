"""Conversion of UCI's original heart disease files into the CSV files that Fed-Heart reads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from securefda.disk import read_whole
from securefda.errors import ConfigError, DataError
from securefda.tasks.fed_heart import COLUMNS, HOSPITALS, ORIGIN, SHA256


@dataclass(frozen=True, slots=True)
class Converted:
    """The CSV file of one hospital, and its number of patients."""

    hospital: str
    file: Path
    patients: int


def convert(folder: Path, out: Path) -> tuple[Converted, ...]:
    """Write ``HOSPITAL.csv`` into ``out`` for each of the four ``processed.HOSPITAL.data`` in ``folder``.

    A line of an original has 14 values, with commas between, and ``?`` where one is missing. Line ends may be of any
    system. All four are read and compared with the published ones before any is written.

    Raises:
        DataError: a file is missing, or holds something else than the published rows.
        ConfigError: one of the CSV files is there already.
    """
    texts = {hospital: _csv_of(folder / f"processed.{hospital}.data", hospital) for hospital in HOSPITALS}
    taken = [out / f"{hospital}.csv" for hospital in HOSPITALS if (out / f"{hospital}.csv").exists()]
    if taken:
        raise ConfigError("--out", f"{taken[0]} is there already", hint="name another folder, or remove the file")
    try:
        out.mkdir(parents=True, exist_ok=True)
        for hospital, text in texts.items():
            (out / f"{hospital}.csv").write_text(text, encoding="ascii", newline="")
    except OSError as error:
        raise ConfigError("--out", f"{out} cannot be written: {error.strerror}") from error
    return tuple(Converted(name, out / f"{name}.csv", text.count("\n") - 1) for name, text in texts.items())


def _csv_of(path: Path, hospital: str) -> str:
    where = f"it is one of four files named processed.HOSPITAL.data at {ORIGIN}"
    try:
        lines = [line.strip() for line in read_whole(path).decode("ascii").splitlines() if line.strip()]
    except OSError as error:
        raise DataError(str(path), f"cannot be read: {error.strerror}", hint=where) from error
    except UnicodeDecodeError as error:
        raise DataError(str(path), "is no text", hint=where) from error
    unfit = [number for number, line in enumerate(lines, start=1) if len(line.split(",")) != len(COLUMNS)]
    if unfit:
        why = f"{len(unfit)} of {len(lines)} lines do not hold {len(COLUMNS)} values with commas between"
        raise DataError(str(path), why, hint=f"line {unfit[0]} is the first; {where}")
    rows = [",".join("" if value == "?" else value for value in line.split(",")) for line in lines]
    text = "\n".join([",".join(COLUMNS), *rows, ""])
    if hashlib.sha256(text.encode()).hexdigest() != SHA256[hospital]:
        raise DataError(str(path), f"does not hold the {hospital} rows as UCI published them", hint=where)
    return text
