"""Tables of one's own: what a file becomes, which rows are held out, and one clear line for each unfit file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from securefda.errors import ConfigError, DataError
from securefda.privacy.private_training import require_separate_rows
from securefda.settings import parse_options
from securefda.tasks import TaskSettings, load_task
from securefda.tasks.tabular import FACTORY, Tabular, TabularOptions
from securefda.training import NoiseSettings, TrainingSettings, build_model, model_to_vector

LABEL = {"column": "krank", "classes": ["nein", "ja"]}
COLUMNS: dict[str, Any] = {
    "Alter": {"type": "number", "center": 50, "scale": 10},
    "Größe": {"type": "number", "center": 1.7, "scale": 0.1},
    "Geschlecht": {"type": "category", "values": ["m", "w"]},
}
GERMAN: dict[str, Any] = {"separator": ";", "decimal": ",", "label": LABEL, "columns": COLUMNS}
HEADER = "Fall;Alter;Größe;Geschlecht;krank"


def german_rows(count: int) -> list[str]:
    return [f"A{i};{40 + i % 30};1,{60 + i % 30};{'mw'[i % 2]};{('nein', 'ja')[i % 3 == 0]}" for i in range(count)]


def write(folder: Path, site: str, lines: list[str], encoding: str = "utf-8") -> Path:
    path = folder / f"{site}.csv"
    path.write_bytes("\r\n".join([*lines, ""]).encode(encoding))
    return path


def tabular(folder: Path | None, options: Mapping[str, object] = GERMAN) -> Tabular:
    task = load_task(FACTORY, TaskSettings("clinic", ("north",), data_dir=folder, options=options))
    assert isinstance(task, Tabular)
    return task


def changed(**options: Any) -> dict[str, Any]:
    return {**GERMAN, **options}


def with_column(name: str, **keys: Any) -> dict[str, Any]:
    return changed(columns={**COLUMNS, name: {**COLUMNS[name], **keys}})


class TestWhatAFileBecomes:
    def test_numbers_are_scaled_and_categories_marked(self, tmp_path: Path) -> None:
        path = write(tmp_path, "new", ["Fall;Alter;Größe;Geschlecht", "A1;60;1,75;w", "A2;45;1,7;m"])
        task = tabular(tmp_path)
        assert task.feature_names() == ("Alter", "Geschlecht = m", "Geschlecht = w", "Größe")
        rows = task.inputs_from(path)
        torch.testing.assert_close(rows, torch.tensor([[1.0, 0, 1, 0.5], [-0.5, 1, 0, 0.0]]))

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16"])
    def test_encodings_of_exports_are_read(self, tmp_path: Path, encoding: str) -> None:
        path = write(tmp_path, "new", [HEADER, *german_rows(5)], encoding)
        given = "utf-8" if encoding == "utf-8-sig" else encoding
        assert tabular(tmp_path, changed(encoding=given)).inputs_from(path).shape == (5, 4)

    def test_umlauts_of_both_forms_are_one_name(self, tmp_path: Path) -> None:
        lines = [HEADER.replace("ö", "o\u0308"), *german_rows(3)]
        assert tabular(tmp_path).inputs_from(write(tmp_path, "new", lines)).shape == (3, 4)

    @pytest.mark.parametrize("extra", [["sep=;"], ["", ";;;;"]], ids=["sep=", "empty lines"])
    def test_what_spreadsheets_add_is_skipped(self, tmp_path: Path, extra: list[str]) -> None:
        path = write(tmp_path, "new", [*extra, HEADER, *german_rows(2), ";;;;"])
        assert len(tabular(tmp_path).inputs_from(path)) == 2

    def test_the_order_of_columns_does_not_matter(self, tmp_path: Path) -> None:
        ordered = write(tmp_path, "one", ["Alter;Größe;Geschlecht", "60;1,75;w"])
        turned_round = write(tmp_path, "other", ["Geschlecht;Alter;Größe", "w;60;1,75"])
        task, turned = tabular(tmp_path), changed(columns=dict(reversed(COLUMNS.items())))
        assert torch.equal(task.inputs_from(ordered), task.inputs_from(turned_round))
        assert torch.equal(task.inputs_from(ordered), tabular(tmp_path, turned).inputs_from(ordered))

    def test_a_whole_number_with_a_point_is_the_category(self, tmp_path: Path) -> None:
        columns = {"cp": {"type": "category", "values": ["1", "2.0"]}, "code": {"type": "category", "values": ["01"]}}
        options = {"label": LABEL, "columns": columns}
        path = write(tmp_path, "new", ["cp,code", "1.0,01", "2,01"])
        assert tabular(tmp_path, options).inputs_from(path).tolist() == [[1, 1, 0], [1, 0, 1]]

    def test_a_missing_value_is_filled_and_marked(self, tmp_path: Path) -> None:
        path = write(tmp_path, "new", ["Alter;Größe;Geschlecht", "?;1,7;m", "50;1,7;"])
        columns = {name: {**column, "missing": "fill"} for name, column in COLUMNS.items()}
        task = tabular(tmp_path, changed(columns=columns))
        assert task.feature_names()[:2] == ("Alter", "Alter missing")
        torch.testing.assert_close(task.inputs_from(path)[:, :4], torch.tensor([[0.0, 1, 1, 0], [0, 0, 0, 0]]))

    def test_a_code_can_be_a_missing_value_in_one_column_alone(self, tmp_path: Path) -> None:
        path = write(tmp_path, "new", ["Alter;Größe;Geschlecht", "999,0;999;m", "50;1,7;m"])
        task = tabular(tmp_path, with_column("Alter", missing="fill", **{"missing-values": ["999"]}))
        torch.testing.assert_close(task.inputs_from(path)[:, :2], torch.tensor([[0.0, 1], [0, 0]]))
        assert float(task.inputs_from(path)[0, -1]) == pytest.approx(9973)

    def test_a_code_can_be_a_missing_label(self, tmp_path: Path) -> None:
        write(tmp_path, "north", [HEADER, *german_rows(50), "A;50;1,7;m;offen"])
        label = {**LABEL, "missing": "drop-row", "missing-values": ["offen"]}
        task = tabular(tmp_path, changed(label=label, **{"source-test-share": 0}))
        assert len(task.train_data("north")) == 50
        assert task.test_data("north") is None

    def test_an_unknown_category_is_filled_where_it_may_be(self, tmp_path: Path) -> None:
        path = write(tmp_path, "new", ["Alter;Größe;Geschlecht", "50;1,7;x"])
        assert tabular(tmp_path, with_column("Geschlecht", unknown="fill")).inputs_from(path)[0, 1:3].tolist() == [0, 0]

    def test_rows_without_a_value_or_a_label_are_left_out(self, tmp_path: Path) -> None:
        write(tmp_path, "north", [HEADER, *german_rows(200), *["A;;1,7;m;ja"] * 3, "A;50;1,7;m;"])
        options = with_column("Alter", missing="drop-row") | {"label": {**LABEL, "missing": "drop-row"}}
        task = tabular(tmp_path, options)
        assert len(task.train_data("north")) + len(task.test_data("north")) == 200

    def test_labels_are_class_numbers_in_the_order_given(self, tmp_path: Path) -> None:
        write(tmp_path, "north", [HEADER, *["A;50;1,7;m;ja", "A;60;1,8;w;nein"] * 100])
        train = tabular(tmp_path, changed(**{"source-test-share": 0.01})).train_data("north")
        assert train.labels.dtype == torch.int64
        assert train.labels[:2].tolist() == [1, 0]

    def test_a_number_is_predicted_in_its_unit(self, tmp_path: Path) -> None:
        label = {"column": "tage", "center": 7, "scale": 5, "tolerance": 2}
        write(tmp_path, "north", ["Alter;Größe;Geschlecht;tage", *[f"{i};1,7;m;12" for i in range(99)]])
        task = tabular(tmp_path, changed(label=label))
        train = task.train_data("north")
        assert train.labels.shape == (len(train), 1)
        assert float(train.labels[0]) == 1.0
        assert task.predictions(torch.tensor([[1.0], [-1.0]])) == [{"tage": 12.0}, {"tage": 2.0}]
        outputs = torch.tensor([[1.0], [1.4], [1.5]])
        metrics = {"rmse": (41 / 12) ** 0.5, "mae": 1.5, "accuracy": 2 / 3}  # R² of labels that do not vary is none
        assert task.metrics(outputs, torch.ones(3, 1)) == pytest.approx(metrics | {"r2": np.nan}, nan_ok=True)
        assert task.chosen_metric.name == "rmse"
        assert float(task.loss(outputs, torch.ones(3, 1))) == pytest.approx((0.16 + 0.25) / 3)

    def test_classes_are_predicted_by_name(self, tmp_path: Path) -> None:
        (predicted,) = tabular(tmp_path).predictions(torch.tensor([[0.0, 2.0]]))
        assert predicted["krank"] == "ja"
        assert predicted["probability nein"] == pytest.approx(1 - float(predicted["probability ja"]))

    def test_balanced_accuracy_and_auroc_do_not_count_the_frequent_class_alone(self, tmp_path: Path) -> None:
        outputs, labels = torch.tensor([[1.0, 0.0]] * 10), torch.tensor([0] * 9 + [1])
        task = tabular(tmp_path)
        found = task.metrics(outputs, labels)
        assert [found[name] for name in ("accuracy", "balanced_accuracy", "auroc")] == [0.9, 0.5, 0.5]
        assert (found["sensitivity"], found["specificity"], found["f1"]) == (0, 1, 0)
        assert np.isnan(task.metrics(outputs[:9], labels[:9])["auroc"])  # of one class there is none


TIMES: dict[str, Any] = changed(
    label={"column": "tage", "event": "tot", "horizon": 100, "survival": 0.5},
    columns={"Alter": COLUMNS["Alter"]},
    **{"hidden-units": 0, "source-test-share": 0.01},
)
LOG_2 = 0.6931471805599453


class TestTimesToAnEvent:
    def samples(self, folder: Path, *rows: str) -> Any:
        write(folder, "north", ["Alter;tage;tot", *rows])
        return tabular(folder, TIMES).train_data("north")

    def test_labels_are_times_in_horizons_and_events(self, tmp_path: Path) -> None:
        assert self.samples(tmp_path, "50;50;1", "51;250;0").labels.tolist() == [[0.5, 1.0], [2.5, 0.0]]

    def test_the_analytic_rule_fits_events_minus_expected_ones_up_to_the_horizon(self, tmp_path: Path) -> None:
        """With half of the rows expected to reach the horizon the hazard is ln 2 for each horizon."""
        labels = self.samples(tmp_path, "50;50;1", "51;50;0", "52;250;1", "53;100;1").labels
        fitted = tabular(tmp_path, TIMES).head_targets(labels, 1)
        torch.testing.assert_close(fitted, torch.tensor([[1 - LOG_2 / 2], [-LOG_2 / 2], [-LOG_2], [1 - LOG_2]]))

    def test_the_loss_is_least_at_events_divided_by_expected_ones(self, tmp_path: Path) -> None:
        labels = self.samples(tmp_path, *["50;50;1"] * 3, *["51;100;0"] * 2).labels
        rate = torch.full((5, 1), float(np.log(3 / (3.5 * LOG_2))), requires_grad=True)
        tabular(tmp_path, TIMES).loss(rate, labels).backward()  # type: ignore[no-untyped-call]
        assert rate.grad is not None
        assert float(rate.grad.sum()) == pytest.approx(0, abs=1e-6)

    def test_the_concordance_stands_in_for_an_accuracy(self, tmp_path: Path) -> None:
        labels = torch.tensor([[1.0, 1.0], [2.0, 0.0]])
        task = tabular(tmp_path, TIMES)
        assert task.metrics(torch.tensor([[2.0], [1.0]]), labels) == {"concordance": 1.0}
        assert task.metrics(torch.tensor([[1.0], [2.0]]), labels) == {"concordance": 0.0}
        assert task.chosen_metric.name == "concordance"

    def test_predictions_are_relative_hazards(self, tmp_path: Path) -> None:
        assert tabular(tmp_path, TIMES).predictions(torch.tensor([[0.0], [LOG_2]])) == [
            {"relative hazard of tot": 1.0},
            {"relative hazard of tot": pytest.approx(2)},
        ]

    def test_several_labels_are_refused_with_what_takes_them(self) -> None:
        with pytest.raises(ConfigError, match=r"one column: for several labels .* run once for each") as refused:
            tabular(None, changed(label={**LABEL, "column": ["krank", "tot"]}))
        assert refused.value.key == "task.options.label.column"

    @pytest.mark.parametrize(
        ("row", "why"),
        [
            ("50;50;2", "column tot: 1 of 2 rows hold neither 0 nor 1"),
            ("50;-1;1", "column tage: 1 of 2 rows hold a negative time"),
            ("50;50;", "column tot: 1 of 2 rows hold no event"),
            ("50;;1", "column tage: 1 of 2 rows hold no label"),
        ],
    )
    def test_an_unfit_label_is_named(self, tmp_path: Path, row: str, why: str) -> None:
        with pytest.raises(DataError, match=why):
            self.samples(tmp_path, "49;70;0", row)

    def test_a_row_without_an_event_can_be_left_out(self, tmp_path: Path) -> None:
        write(tmp_path, "north", ["Alter;tage;tot", "49;70;0", "50;50;"])
        options = {**TIMES, "label": {**TIMES["label"], "missing": "drop-row"}}
        assert len(tabular(tmp_path, options).train_data("north")) == 1


ONE_SHARE = changed(**{"source-test-share": 0.2})


class TestHeldOut:
    def test_the_two_parts_are_all_rows_and_about_a_fifth(self, tmp_path: Path) -> None:
        lines = [f"A;{i % 90};1,{i:04};{'mw'[i % 2]};ja" for i in range(1000)]
        write(tmp_path, "north", [HEADER, *lines])
        task = tabular(tmp_path, ONE_SHARE)
        train, test = task.train_data("north"), task.test_data("north")
        assert len(train) + len(test) == 1000
        assert 140 < len(test) < 260  # 200 expected, deviation 13

    def test_one_row_more_is_one_row_more(self, tmp_path: Path) -> None:
        """What DP-SGD's guarantee rests on: neighbouring files give neighbouring training rows."""
        rows = german_rows(300)
        write(tmp_path, "north", [HEADER, *rows])
        write(tmp_path, "clinic", [HEADER, *rows[:100], "B;91;1,99;w;ja", *rows[100:]])
        task = tabular(tmp_path, ONE_SHARE)
        before = torch.cat([task.train_data("north").features, task.test_data("north").features])
        parts = [task.train_data("clinic").features, task.test_data("clinic").features]
        new = [row for part in parts for row in part if row[0] == pytest.approx(4.1)]
        assert len(new) == 1
        assert [len(part[part[:, 0] < 4]) for part in parts] == [
            len(task.train_data("north")),
            len(task.test_data("north")),
        ]
        assert sum(map(len, parts)) == len(before) + 1

    def test_order_and_other_columns_do_not_move_a_row(self, tmp_path: Path) -> None:
        rows = german_rows(100)
        write(tmp_path, "north", [HEADER, *rows])
        write(tmp_path, "clinic", [HEADER, *(row.replace("A", "B", 1) for row in reversed(rows))])
        task = tabular(tmp_path, ONE_SHARE)
        assert torch.equal(task.test_data("north").features, task.test_data("clinic").features.flip(0))

    def test_rows_of_one_group_stay_together(self, tmp_path: Path) -> None:
        write(tmp_path, "north", [HEADER, *(f"A{i % 20};{i % 90};1,7;m;ja" for i in range(400))])
        task = tabular(tmp_path, changed(group="Fall", columns={"Alter": COLUMNS["Alter"]}))
        train, test = task.train_data("north"), task.test_data("north")
        assert len(test) % 20 == 0
        assert 0 < len(test) < 400
        assert len(train) + len(test) == 400

    def test_another_seed_holds_out_other_rows(self, tmp_path: Path) -> None:
        write(tmp_path, "north", [HEADER, *german_rows(200)])
        split, other = tabular(tmp_path), tabular(tmp_path, changed(**{"split-seed": 1}))
        assert not torch.equal(split.test_data("north").features, other.test_data("north").features)

    def test_a_source_holds_out_a_smaller_share(self, tmp_path: Path) -> None:
        lines = [f"A;{i % 90};1,{i:04};{'mw'[i % 2]};ja" for i in range(1000)]
        for site in ("clinic", "north"):
            write(tmp_path, site, [HEADER, *lines])
        task = tabular(tmp_path)
        at_target, at_source = task.test_data("clinic"), task.test_data("north")
        assert 60 < len(at_source) < 140  # 100 expected, deviation 9
        assert 140 < len(at_target) < 260
        held_out = {tuple(row) for row in at_target.features.tolist()}
        assert {tuple(row) for row in at_source.features.tolist()} <= held_out

    def test_the_seed_of_the_run_does_not_move_a_row(self, tmp_path: Path) -> None:
        write(tmp_path, "north", [HEADER, *german_rows(200)])
        settings = [TaskSettings("clinic", ("north",), seed=seed, data_dir=tmp_path, options=GERMAN) for seed in (0, 1)]
        north, other = (Tabular(each).test_data("north").features for each in settings)
        assert torch.equal(north, other)


BAD_ROWS = [
    (
        "A;;1,7;m;ja",
        GERMAN,
        "column Alter: 3 of",
        "rows hold no value",
        '"fill" or "drop-row" in [task.options.columns.Alter]',
    ),
    ("A;alt;1,7;m;ja", GERMAN, "column Alter: 3 of", "rows hold no number", "missing-values"),
    ("A;12.03.1970;1,7;m;ja", GERMAN, "column Alter: 3 of", "rows hold no number", "dates are not read"),
    ("A;1970-03-12;1,7;m;ja", GERMAN, "column Alter: 3 of", "rows hold no number", "dates are not read"),
    ("A;50;1.7;m;ja", GERMAN, "column Größe: 3 of", "rows hold no number", 'task.options.decimal = "."'),
    ("A;50;1.700,5;m;ja", GERMAN, "column Größe: 3 of", "rows hold no number", ""),
    ("A;inf;1,7;m;ja", GERMAN, "column Alter: 3 of", "rows hold no number", ""),
    ("A;1_0;1,7;m;ja", GERMAN, "column Alter: 3 of", "rows hold no number", ""),
    ("A;1e99;1,7;m;ja", GERMAN, "column Alter: 3 of", "number that is too large", ""),
    ("A;50;1,7;d;ja", GERMAN, "column Geschlecht: 3 of", "category that is not listed", 'unknown = "fill"'),
    ("A;50;1,7;m;Ja", GERMAN, "column krank: 3 of", "class that is not listed", "task.options.label.classes"),
    ("A;50;1,7;m;", GERMAN, "column krank: 3 of", "hold no label", "drop-row"),
]


@pytest.mark.parametrize(("row", "options", "where", "what", "hint"), BAD_ROWS, ids=[case[0] for case in BAD_ROWS])
def test_unfit_rows_are_counted_and_no_cell_is_quoted(
    tmp_path: Path, row: str, options: Mapping[str, Any], where: str, what: str, hint: str
) -> None:
    write(tmp_path, "north", [HEADER, *german_rows(100), *[row] * 3])
    task = tabular(tmp_path, options)
    with pytest.raises(DataError) as caught:
        task.train_data("north"), task.test_data("north")
    message = str(caught.value)
    assert message.startswith(("north, train, ", "north, test, "))
    assert where in message
    assert what in message
    assert hint in caught.value.hint
    assert "line 102 is the first" in caught.value.hint
    cells = [cell for cell in row.split(";") if len(cell) > 2 and cell != "1,7"]
    assert not any(cell in message for cell in cells)


BAD_FILES = {
    "no file": (None, "cannot be read: No such file", "set task.data-dir to the folder that holds north.csv"),
    "no rows": ([HEADER], "has no rows", "the first line names the columns"),
    "nothing": ([], "has no rows", ""),
    "another separator": ([line.replace(";", "\t") for line in [HEADER, *german_rows(3)]], "has no column", '"\\t"'),
    "no header": (german_rows(3), "has no column Alter, Geschlecht, Größe, krank", "first line must name"),
    "a name spelt otherwise": ([HEADER.replace("Größe", "Groesse"), *german_rows(3)], "no column Größe", "Groesse"),
    "a comma too many": ([HEADER, "A;50;1;7;m;ja"], "1 of 1 rows have more or fewer cells", "line 2"),
    "a name twice": (["Alter;Alter;Größe;krank", "1;2;3;ja"], "1 name above more than one column", ""),
    "an open quote": ([HEADER, 'A;"50;1,7;m;ja'], "not a table", "quotation mark"),
}


@pytest.mark.parametrize(("lines", "why", "hint"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_unfit_files_are_named_with_a_hint(tmp_path: Path, lines: list[str] | None, why: str, hint: str) -> None:
    if lines is not None:
        write(tmp_path, "north", lines)
    with pytest.raises(DataError, match=r"^north: .*north\.csv: ") as caught:
        tabular(tmp_path).train_data("north")
    assert why in str(caught.value)
    assert hint in caught.value.hint


def test_another_encoding_is_named_with_a_hint(tmp_path: Path) -> None:
    write(tmp_path, "north", [HEADER, *german_rows(3)], "cp1252")
    with pytest.raises(DataError, match="is not utf-8 text") as caught:
        tabular(tmp_path).train_data("north")
    assert "cp1252" in caught.value.hint


def test_a_part_without_rows_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "north", [HEADER, *["A;50;1,7;m;ja"] * 3])
    task = tabular(tmp_path)
    with pytest.raises(DataError, match=r"^north, test: has none of 3 rows$"):
        task.test_data("north")


def test_inputs_are_never_left_out(tmp_path: Path) -> None:
    path = write(tmp_path, "new", [HEADER, "A;50;1,7;m;ja", "A;;1,7;m;ja"])
    with pytest.raises(DataError, match="1 of 2 rows lack a value") as caught:
        tabular(tmp_path, with_column("Alter", missing="drop-row")).inputs_from(path)
    assert "line 3" in caught.value.hint


BAD_OPTIONS = {
    "no label": ({"columns": COLUMNS}, "task.options.label: missing"),
    "no columns": ({"label": LABEL}, "task.options.columns: missing"),
    "nothing to read": (changed(columns={"Fall": {"type": "ignored"}}), "names no column that the model reads"),
    "an unknown option": (changed(seperator=";"), "task.options.seperator: unknown key"),
    "an unknown type": (with_column("Alter", type="date"), "columns.Alter.type: must be 'number', 'category' or"),
    "no scale": (changed(columns={"Alter": {"type": "number"}}), "a number needs center and scale"),
    "a scale of 0": (with_column("Alter", scale=0), "columns.Alter.scale: must be above 0"),
    "no values": (changed(columns={"a": {"type": "category"}}), "a category needs values"),
    "a value twice": (with_column("Geschlecht", values=["1", "1.0"]), "must differ from each other"),
    "scale of a category": (with_column("Geschlecht", scale=1), "center and scale are of a number"),
    "one class": (changed(label={"column": "krank", "classes": ["ja"]}), "at least two classes"),
    "no classes": (changed(label={"column": "krank"}), "needs classes; or for a number"),
    "both": (changed(label={**LABEL, "center": 1}), "one of them"),
    "half of a time": (changed(label={"column": "krank", "event": "tot"}), "or for a time event, horizon"),
    "the event as a column": (
        changed(label=TIMES["label"], columns={**COLUMNS, "tot": COLUMNS["Alter"]}),
        "tot: is part of the label",
    ),
    "the label as a column": (changed(columns={**COLUMNS, "krank": COLUMNS["Alter"]}), "krank: is the label"),
    "two characters": (changed(separator=";;"), "task.options.separator: must be one character"),
    "one mark for both": (changed(separator=","), "is the decimal mark as well"),
    "no encoding": (changed(encoding="ansi-8"), "an encoding that Python knows"),
    "no share": (changed(**{"test-share": 1.0}), "task.options.test-share: 1 is outside"),
}


@pytest.mark.parametrize(("options", "why"), BAD_OPTIONS.values(), ids=BAD_OPTIONS.keys())
def test_unfit_options_are_named(options: Mapping[str, Any], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        tabular(None, options)
    assert why in str(caught.value)


def test_without_a_folder_the_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^task.data-dir: ") as caught:
        tabular(None).train_data("north")
    assert "north.csv" in caught.value.hint


class TestScaling:
    def test_a_site_like_the_public_numbers_is_told_nothing(self, tmp_path: Path) -> None:
        write(tmp_path, "clinic", [HEADER, *german_rows(60)])
        task = tabular(tmp_path)
        assert task.scaling_caution(task.train_data("clinic")) == ""

    @pytest.mark.parametrize(
        ("column", "keys", "said"),
        [
            ("Alter", {"center": 500}, "Alter (median -4"),
            ("Größe", {"scale": 10}, "Größe (median "),
            ("Größe", {"scale": 0.001}, "Größe (median "),
        ],
        ids=["another center", "a scale too large", "a scale too small"],
    )
    def test_a_column_far_from_them_is_named(
        self, tmp_path: Path, column: str, keys: dict[str, float], said: str
    ) -> None:
        keys = {"scale": 10, **keys} if column == "Alter" else keys
        write(tmp_path, "clinic", [HEADER, *german_rows(60)])
        task = tabular(tmp_path, with_column(column, **keys))
        caution = task.scaling_caution(task.train_data("clinic"))
        assert said in caution
        assert "check the unit, or agree with the other sites" in caution
        assert caution.count("(median") == 1

    def test_a_column_that_never_varies_has_no_spread_to_be_far_off(self, tmp_path: Path) -> None:
        rows = [f"A{i};50;1,7;{'mw'[i % 2]};{('nein', 'ja')[i % 3 == 0]}" for i in range(60)]
        write(tmp_path, "clinic", [HEADER, *rows])
        task = tabular(tmp_path)
        assert task.scaling_caution(task.train_data("clinic")) == ""


class TestFirstModel:
    def test_it_is_the_same_where_the_description_is(self) -> None:
        coded = {name: {**column, "missing-values": ["-1"]} for name, column in reversed(COLUMNS.items())}
        turned = changed(columns=coded, encoding="cp1252", **{"test-share": 0.5})
        vectors = [model_to_vector(build_model(tabular(None, options), 1)) for options in (GERMAN, turned)]
        assert (vectors[0] == vectors[1]).all()

    @pytest.mark.parametrize(
        "options",
        [
            with_column("Alter", scale=11),
            with_column("Geschlecht", values=["w", "m"]),
            changed(label={**LABEL, "classes": ["ja", "nein"]}),
        ],
        ids=["scale", "order of categories", "order of classes"],
    )
    def test_it_differs_where_the_description_does(self, options: Mapping[str, Any]) -> None:
        vectors = [model_to_vector(build_model(tabular(None, each), 1)) for each in (GERMAN, options)]
        assert (vectors[0] != vectors[1]).any()

    def test_it_follows_from_the_seed(self) -> None:
        first, again, other = (model_to_vector(build_model(tabular(None), seed)) for seed in (1, 1, 2))
        assert (first == again).all()
        assert (first != other).any()

    def test_hidden_units_can_be_left_out(self) -> None:
        assert model_to_vector(build_model(tabular(None, changed(**{"hidden-units": 0})), 1)).size == 2 * 4 + 2


def test_options_survive_being_written(tmp_path: Path) -> None:
    options = parse_options(TabularOptions, GERMAN)
    assert parse_options(TabularOptions, options.model_dump(by_alias=True, exclude_defaults=True)) == options


@pytest.mark.parametrize(
    "label", [LABEL, {"column": "Alter", "center": 50, "scale": 10, "tolerance": 5}], ids=["classes", "a number"]
)
def test_it_can_be_trained_with_noise(tmp_path: Path, label: Mapping[str, Any]) -> None:
    write(tmp_path, "north", [HEADER, *german_rows(100)])
    task = tabular(tmp_path, changed(label=label, columns={"Größe": COLUMNS["Größe"]}))
    settings = TrainingSettings(batch_size=8, dp=NoiseSettings(1.0))
    require_separate_rows(task, build_model(task, 1), task.train_data("north"), settings)
