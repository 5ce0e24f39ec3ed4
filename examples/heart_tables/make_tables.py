"""Writes the four tables of this folder: made-up patients, as a spreadsheet program in Europe exports them.

Semicolons between cells, decimal commas, a byte order mark, dates, and here and there a missing value. At every
site the same makes ill: above all a pulse that is too slow or too fast, then pressure, age, smoking, cholesterol, and
chance. The clinic's device shows a blood pressure that is 20 too high: that is its domain shift.

Run: python make_tables.py [DIR]
"""

import csv
import random
import sys
from pathlib import Path

HEADER = ["case", "age", "pressure", "height", "cholesterol", "pulse", "sex", "smoker", "admitted", "ill"]
SITES = [("clinic", 200, 20), ("north", 480, 0), ("south", 400, 3), ("west", 560, -3)]


def main(folder: Path) -> None:
    """Write SITE.csv for each site."""
    chance = random.Random(7)  # noqa: S311 - made-up patients
    for site, rows, device_error in SITES:
        with (folder / f"{site}.csv").open("w", encoding="utf-8-sig", newline="") as file:
            table = csv.writer(file, delimiter=";")
            table.writerow(HEADER)
            for number in range(rows):
                age, pressure, height = chance.gauss(58, 11), chance.gauss(130, 18), chance.gauss(1.72, 0.09)
                smokes = chance.choice(["no", "no", "yes", "former"])
                cholesterol, pulse = chance.gauss(5.4, 1.1), chance.gauss(74, 12)
                risk = (age - 58) / 11 + 1.6 * (pressure - 130) / 18 + 0.5 * (cholesterol - 5.4) / 1.1
                risk += 3.2 * (abs(pulse - 74) / 12 - 0.8) + {"no": -0.3, "yes": 0.8, "former": 0.2}[smokes]
                table.writerow(
                    [
                        f"{site[0].upper()}{1000 + number}",
                        round(age),
                        "" if chance.random() < 0.03 else round(pressure + device_error),
                        f"{height:.2f}".replace(".", ","),
                        f"{cholesterol:.1f}".replace(".", ","),
                        round(pulse),
                        chance.choice("mf"),
                        smokes,
                        f"{chance.randint(1, 28):02}.{chance.randint(1, 12):02}.2024",
                        "yes" if risk + chance.gauss(0, 1.2) > 0.3 else "no",
                    ]
                )


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
