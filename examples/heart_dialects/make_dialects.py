"""Writes the tables of ../heart_tables again, in German and each in a dialect: python make_dialects.py [DIR]

clinic.csv has semicolons, decimal commas and Latin-1; nord.csv is the "Unicode text" of Excel, UTF-16 with tabs;
sued.csv has commas, decimal points and other names, ages in months, sizes in centimetres; west.xlsx is an Excel file.
"""

import csv
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import openpyxl

TABLES = Path(__file__).parent.parent / "heart_tables"
HEADER = [
    "Fall-Nr", "Alter", "Blutdruck", "Größe", "Cholesterin", "Puls", "Geschlecht", "Raucher", "Aufnahme", "krank",
]  # fmt: skip
SUED = ["Fall", "Alter_Monate", "RR", "Groesse_cm", "Cholesterin", "Puls", "Geschlecht", "Raucher", "Aufnahme", "KRANK"]
GERMAN = {"yes": "ja", "no": "nein", "former": "früher", "f": "w"}


def main(folder: Path) -> None:
    """Write the file of each site."""
    header, *rows = read("clinic")
    write(folder / "clinic.csv", [header, *rows], separator=";", encoding="latin-1")
    write(folder / "nord.csv", read("north"), separator="\t", encoding="utf-16")
    write(folder / "sued.csv", [SUED, *map(in_sued, read("south")[1:])], separator=",", encoding="utf-8")
    book = openpyxl.Workbook()
    book.properties.created = book.properties.modified = datetime(2024, 12, 31, tzinfo=UTC).replace(tzinfo=None)
    book.active.title = "Export"
    header, *rows = read("west")
    for row in (header, *map(as_values, rows)):
        book.active.append(row)
    book.create_sheet("Notizen").append(["Stand", "31.12.2024"])
    book.save(folder / "west.xlsx")


def read(site: str) -> list[list[str]]:
    """Return the lines of a site's table, in German."""
    with (TABLES / f"{site}.csv").open(encoding="utf-8-sig", newline="") as file:
        _, *rows = csv.reader(file, delimiter=";")
    return [HEADER, *([GERMAN.get(cell, cell) for cell in row] for row in rows)]


def write(path: Path, lines: Sequence[Sequence[object]], *, separator: str, encoding: str) -> None:
    """Write a file of CSV."""
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=separator).writerows(lines)


def in_sued(row: Sequence[str]) -> list[str]:
    """Return a row with the age in months, the size in centimetres, and large letters for the sex."""
    case, age, pressure, size, cholesterol, pulse, sex, smokes, admitted, ill = row
    months, centimetres = 12 * int(age) + int(case[1:]) % 12, round(float(size.replace(",", ".")) * 100)
    rest = [pulse, sex.upper(), smokes, admitted, ill]
    return [case, str(months), pressure, str(centimetres), cholesterol.replace(",", "."), *rest]


def as_values(row: Sequence[str]) -> list[object]:
    """Return a row of numbers, dates and texts, as Excel has them."""
    case, age, pressure, size, cholesterol, pulse, sex, smokes, admitted, ill = row
    numbers = [float(cell.replace(",", ".")) if cell else None for cell in (age, pressure, size, cholesterol, pulse)]
    return [case, *numbers, sex, smokes, datetime.strptime(admitted, "%d.%m.%Y"), ill]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
