"""What to look at in columns: codes for missing values, identifiers, units, leakage; and what is none of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from securefda.tasks.column_cautions import (
    are_codes,
    are_days,
    center_and_spread,
    codes_in,
    identifier,
    look_at,
    words_for_missing,
)
from securefda.tasks.tabular import Table, TabularOptions

AGES = [20 + i % 71 for i in range(300)]
STAYS = [i * i % 97 for i in range(300)]
PRESSURES = [100 + i % 60 for i in range(300)]


def array(numbers: Sequence[float]) -> Any:
    return np.array(numbers, dtype=np.float64)


class TestCodes:
    @pytest.mark.parametrize(
        ("numbers", "code"),
        [
            ([*AGES, 999, 999], "999"),
            ([*AGES, -999, -999], "-999"),
            ([*AGES, *[-999999] * 30], "-999999"),  # the public report delphi-epidata 1366
            ([*AGES, -1, -1], "-1"),
            ([*STAYS, -9, -9], "-9"),
            ([*STAYS, 9999, 9999], "9999"),
            ([*STAYS, 888, 888], "888"),
            ([0.1 * age for age in AGES] + [99.9, 99.9], "99.9"),
            ([1, 2, 3] * 30 + [9] * 5, "9"),
            ([*range(7)] * 20 + [99, 99], "99"),
            ([*AGES, 5000, 999, 999], "999"),  # beside a number that is only wrong
        ],
    )
    def test_a_usual_code_far_from_all_others_is_sure(self, numbers: list[float], code: str) -> None:
        assert codes_in(array(numbers)).sure == {code: numbers.count(float(code))}

    def test_several_codes_are_found_together(self) -> None:
        codes = codes_in(array([*AGES, 999, 999, -999, -999, 9999, 9999, -1, -1]))
        assert set(codes.sure) == {"999", "-999", "9999", "-1"}
        assert (codes.without(array([*AGES, 999, -1])) == array(AGES)).all()

    @pytest.mark.parametrize(
        ("numbers", "code"),
        [
            ([*AGES, 999], "999"),  # in one row
            ([*AGES, *[99] * 20], "99"),  # near
            ([*PRESSURES, 0], "0"),
            ([*PRESSURES, *[0] * 50], "0"),
            ([*PRESSURES, *[500] * 5], "500"),
        ],
    )
    def test_what_only_may_be_a_code_is_doubtful(self, numbers: list[float], code: str) -> None:
        codes = codes_in(array(numbers))
        assert (codes.sure, codes.doubtful) == ({}, {code: numbers.count(float(code))})

    @pytest.mark.parametrize(
        "numbers",
        [
            AGES,
            STAYS,
            [i % 120 for i in range(300)],  # 99 is one of many
            [i - 150 for i in range(300)],  # -1, -9, -99 and 99 are
            [-1, 1] * 50,
            [-1, 0, 1] * 50,
            [0] * 150 + list(range(1, 100)),
            [0] * 60 + [0.1 * i for i in range(1, 100)],
            [1, 2, 3, 9] * 3,
            [min(i, 90) for i in range(100)] * 3,  # all above 90 count as 90
        ],
    )
    def test_numbers_that_mean_themselves_are_none(self, numbers: list[float]) -> None:
        codes = codes_in(array(numbers))
        assert (dict(codes.sure), dict(codes.doubtful)) == ({}, {})

    def test_words_count_only_where_all_others_are_numbers(self) -> None:
        assert words_for_missing(["1,5", "2", "k.A.", "3"], ",") == {"k.A.": 1}
        assert words_for_missing(["1,5", "2", "k.A.", "Meier"], ",") == {}
        assert words_for_missing(["none", "unknown", "3"], ",") == {}


class TestSpread:
    def test_a_tenth_of_wrong_numbers_does_not_move_it_far(self) -> None:
        chance = np.random.default_rng(1)
        numbers = chance.normal(60, 12, 1000)
        center, spread = center_and_spread(numbers)
        assert (center, spread) == (pytest.approx(60, abs=1), pytest.approx(12, abs=1))
        numbers[:50], numbers[50:90] = 1e9, -1e9
        assert center_and_spread(numbers) == (pytest.approx(60, abs=1), pytest.approx(12, abs=12))

    def test_of_mostly_equal_numbers_it_is_the_distance_of_the_others(self) -> None:
        assert center_and_spread(array([0] * 95 + [2, 4, 4, 4, 1e9])) == (0, 4)
        assert center_and_spread(array([7] * 20)) == (7, 0)


def ids(count: int, least: int = 61_634, most: int = 13_454_352, seed: int = 0) -> list[float]:
    return [float(each) for each in random.Random(seed).sample(range(least, most), count)]


class TestIdentifiers:
    @pytest.mark.parametrize(
        ("name", "numbers"),
        [
            ("sample", [*ids(645), *ids(54)]),  # 645 numbers in 699 rows, not sorted
            ("sample", sorted(ids(645))),
            ("row", [float(each) for each in random.Random(1).sample(range(1, 301), 300)]),
            ("time", [float(each) for each in range(0, 900, 3)]),
            ("Fall-Nr", ids(100, 0, 100_000_000)),
            ("hospital_id", [float(i % 62) for i in range(700)]),
        ],
        ids=["some twice", "sorted", "all numbers up to 300", "in order", "a name", "a sure name that repeats"],
    )
    def test_they_are_seen(self, name: str, numbers: list[float]) -> None:
        assert f"{len(set(numbers))} different whole numbers in {len(numbers)} rows" in identifier(
            name, array(numbers), len(numbers)
        )

    @pytest.mark.parametrize(
        ("name", "numbers"),
        [
            ("CD4", [float(random.Random(i).randint(50, 1500)) for i in range(300)]),
            ("days", [float(random.Random(i).randint(1, 4800)) for i in range(418)]),
            ("income", [each - each % 10 for each in ids(300)]),
            ("index", [each / 100 for each in ids(300)]),
            ("platelets", [float(random.Random(i).randint(50, 600)) for i in range(60)]),
            ("number of nodes", [float(i % 30) for i in range(300)]),
        ],
    )
    def test_measurements_are_none(self, name: str, numbers: list[float]) -> None:
        assert identifier(name, array(numbers), len(numbers)) == ""

    def test_days_in_digits(self) -> None:
        assert are_days(array([20240131, 19991231]))
        assert not are_days(array([20240131, 20241331]))
        assert not are_days(array([20240131, 20240100]))

    def test_few_small_whole_numbers_may_be_codes(self) -> None:
        assert are_codes(array([3, 6, 7] * 10))
        for numbers in ([0, 1] * 20, [0.5, 1, 2] * 10, [70, 80, 90] * 10, [*range(7)] * 5, [1, 2, 3]):
            assert not are_codes(array(numbers)), numbers


LABEL = {"column": "ill", "classes": ["0", "1"]}
NUMBER = {"type": "number", "center": 0, "scale": 1}
ILL = [str(int(i % 3 == 0)) for i in range(60)]


def table(**columns: Sequence[object]) -> Table:
    cells = {name: [str(cell) for cell in column] for name, column in columns.items()}
    return Table(Path("a.csv"), cells, range(len(next(iter(cells.values())))))


def seen(
    tables: Table | Mapping[str, Table], columns: Mapping[str, Any], label: Mapping[str, Any] = LABEL
) -> list[str]:
    options = TabularOptions.model_validate({"label": label, "columns": columns})
    return look_at({"clinic": tables} if isinstance(tables, Table) else tables, options)


def noise(seed: int, count: int = 60) -> list[str]:
    chance = random.Random(seed)
    return [f"{chance.gauss(50, 10):.1f}" for _ in range(count)]


class TestLookAt:
    def test_numbers_that_no_model_takes_are_left_to_the_reader_of_rows(self) -> None:
        assert seen(table(age=[*noise(1)[:58], "1e999", "-1e300"], ill=ILL), {"age": NUMBER}) == []

    def test_a_long_table_is_looked_at_in_part(self) -> None:
        many = table(age=[*["999"] * 100, *noise(1, 11_900)], ill=["0", "1"] * 6_000)
        assert seen(many, {"age": NUMBER})[0].startswith('age: "999" in 34 of 4,000 rows, ')

    def test_good_columns_are_not_mentioned(self) -> None:
        columns = {"age": NUMBER, "sex": {"type": "category", "values": ["m", "w"]}}
        assert seen(table(age=noise(1), sex=["m", "w"] * 30, ill=ILL), columns) == []

    def test_of_a_code_the_line_says_where_how_often_and_what_to_write(self) -> None:
        ages = [*noise(1)[:50], *["999"] * 10]
        said = seen(table(age=ages, ill=ILL), {"age": NUMBER})
        assert said == [
            'age: "999" in 10 of 60 rows, far from all others. If it stands for a missing value, write '
            'missing-values = ["999"] and missing = "fill"'
        ]
        follows = {**NUMBER, "missing-values": ["999.0"], "missing": "fill"}
        assert seen(table(age=ages, ill=ILL), {"age": follows}) == []

    def test_a_number_that_is_no_usual_code_is_not_quoted(self) -> None:
        said = seen(table(age=[*noise(1)[:50], *["4711"] * 10], ill=ILL), {"age": NUMBER})
        assert said[0].startswith("age: one number in 10 of 60 rows, far from all others. ")
        assert "4711" not in said[0]

    def test_a_code_among_the_classes_of_the_label(self) -> None:
        said = seen(
            table(age=noise(1), ill=[*ILL[:50], *["9"] * 10]), {"age": NUMBER}, {**LABEL, "classes": ["0", "1", "9"]}
        )
        assert said == [
            'ill: "9" in 10 of 60 rows, far from all others. If it stands for a missing value, take it out of classes, '
            'and write missing-values = ["9"] and missing = "drop-row" there'
        ]

    def test_what_several_sites_and_columns_share_is_one_line(self) -> None:
        coded = table(grade=["1", "2", "3"] * 20, cp=["1", "2", "4"] * 20, ill=random.Random(1).sample(ILL, 60))
        (said,) = seen({"clinic": coded, "north": coded}, {"grade": NUMBER, "cp": NUMBER})
        assert said.startswith("cp, grade: few small whole numbers at clinic, north. If they are codes, write type =")

    def test_a_column_that_never_varies(self) -> None:
        (said,) = seen(table(age=["50"] * 60, bmi=noise(1), ill=ILL), {"age": NUMBER, "bmi": NUMBER})
        assert said.startswith("age: one value in all rows. If it stands for a missing")
        (said,) = seen(table(age=[""] * 60, bmi=noise(1), ill=ILL), {"age": NUMBER, "bmi": NUMBER})
        assert said.startswith("age: no value in any row. ")

    def test_a_rare_category_that_one_site_lacks_is_not_mentioned(self) -> None:
        aids = {"type": "category", "values": ["0", "1"]}
        sites = {"clinic": table(aids=["0", "1"] * 30, ill=ILL), "north": table(aids=["0"] * 60, ill=ILL)}
        assert seen(sites, {"aids": aids}) == []
        sites = {"clinic": table(chol=noise(1), ill=ILL), "north": table(chol=["0"] * 60, ill=ILL)}
        assert [line.partition(".")[0] for line in seen(sites, {"chol": NUMBER})] == [
            "chol: one value in all rows at north"
        ]

    def test_dates_that_are_read_as_categories(self) -> None:
        days = ["2024-05-01", "2024-05-02"] * 30
        (said,) = seen(table(day=days, ill=ILL), {"day": {"type": "category", "values": days[:2]}})
        assert said == "day: dates. Export an age or a number of days instead"

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda height: height / 100, "1/100 of those at clinic, as m and cm are apart"),
            (lambda height: height * 2.54, "2.54 times those at clinic, as inches and cm are apart"),
            (lambda height: height * 3.3, "3.3 times those at clinic. "),
            (lambda height: (height - 160) ** 2 + 1000, "times those at clinic. "),  # more than a unit, and too far
        ],
    )
    def test_another_unit(self, change: Callable[[float], float], words: str) -> None:
        heights = [150 + i * 7 % 43 for i in range(60)]
        others = [f"{change(height):.4f}" for height in heights]
        sites = {"clinic": table(height=heights, ill=ILL), "north": table(height=others, ill=ILL)}
        sites["west"] = sites["clinic"]
        (said,) = seen(sites, {"height": NUMBER})
        assert said.startswith("height: numbers at north are about ")
        assert words in said
        assert said.endswith("Bring them to one unit")

    def test_another_domain_is_no_other_unit(self) -> None:
        heights = [150 + i * 7 % 43 for i in range(60)]
        others = [f"{120 + i * 11 % 90}.5" for i in range(60)]
        sites = {"clinic": table(height=heights, ill=ILL), "north": table(height=others, ill=ILL)}
        assert seen(sites, {"height": NUMBER}) == []

    @pytest.mark.parametrize(
        "column",
        [
            ["b" if ill == "1" else "a" for ill in ILL],
            [f"{3 * int(ill) + i % 30 / 10:.1f}" for i, ill in enumerate(ILL)],
            [f"{i % 30}" if ill == "1" else "" for i, ill in enumerate(ILL)],
        ],
        ids=["a category", "a number", "a value for the ill alone"],
    )
    def test_a_column_that_predicts_the_label_alone(self, column: list[str]) -> None:
        kind = {"type": "category", "values": ["a", "b"]} if column[0] == "b" else {**NUMBER, "missing": "fill"}
        (said,) = seen(table(stage=column, age=noise(1), ill=ILL), {"stage": kind, "age": NUMBER})
        assert said.startswith(
            "stage: by itself tells the classes of the label apart in nearly all rows. If it is known "
        )

    def test_a_number_in_the_order_of_the_label(self) -> None:
        label = {"column": "cost", "center": 0, "scale": 1, "tolerance": 1}
        costs = [f"{i * 37 % 60}.5" for i in range(60)]
        euros = [f"{float(cost) * 100:.0f}.1" for cost in costs]
        said = seen(table(cents=euros, age=noise(1), cost=costs), {"cents": NUMBER, "age": NUMBER}, label)
        assert [line.partition(".")[0] for line in said] == ["cents: in nearly the same order of rows as the label"]

    def test_a_good_predictor_is_no_leak(self) -> None:
        values = [f"{1.5 * int(ill) + i % 29 / 10:.1f}" for i, ill in enumerate(ILL)]
        assert seen(table(biomarker=values, ill=ILL), {"biomarker": NUMBER}) == []
