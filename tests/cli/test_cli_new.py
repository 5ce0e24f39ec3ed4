"""``securefda new``: folders that run as they are, on tables as hospitals export them, on images, and on none."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest
import torch
from PIL import Image
from plain_user import plain_user

from securefda.cli import main
from securefda.settings import parse_options
from securefda.site.config import load_federation
from securefda.tasks.features import FACTORY, MULTI_LABEL_FACTORY
from securefda.tasks.features_file import FeatureFile
from securefda.tasks.guess import guess, guess_format
from securefda.tasks.guess_mapping import match_names
from securefda.tasks.mapping import read_mapping, read_table
from securefda.tasks.tabular import TabularOptions

HEADER = ["Fall-Nr", "Alter", "Größe", "Geschlecht", "Diagnose", "Aufnahme", "Bemerkung", "krank"]


def patients(count: int, seed: int = 1) -> list[list[str]]:
    """Rows as a German hospital exports them: decimal commas, dates, umlauts, a rare diagnosis, a gap."""
    chance = random.Random(seed)
    rows = []
    for number in range(count):
        age, size = chance.gauss(60, 12), chance.gauss(1.7, 0.1)
        ill = "ja" if age > 60 else "nein"
        diagnosis = "Fabry" if number == 3 else chance.choice(["Müdigkeit", "Fieber"])
        note = f"Frau Nr. {number} klagt"
        sex = "" if number == 5 else chance.choice("mw")
        size_text = f"{size:.2f}".replace(".", ",")
        rows.append([str(7000 + number), str(round(age)), size_text, sex, diagnosis, "12.03.2024", note, ill])
    return rows


def write(path: Path, rows: Sequence[Sequence[str]], encoding: str = "cp1252", header: Sequence[str] = HEADER) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    with path.open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=";").writerows([header, *rows])
    return path


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def own_tests_of(folder: str) -> None:
    """Run pytest in a folder as its reader would: without this repository on the path of the current folder."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly", "."],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "SECUREFDA_"))}
        | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_without_data_a_small_task_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "my-heart"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("made my-heart: federation.toml, my_heart_task.py, policy.toml, test_my_heart.py\n")
    assert "  cd my-heart\n  securefda task check federation.toml" in out
    own_tests_of("my-heart")


def test_one_table_becomes_four_made_up_sites(capsys: pytest.CaptureFixture[str]) -> None:
    write(Path("Export Mai.csv"), patients(140))
    assert main(["new", "heart", "--tabular", "Export Mai.csv", "--group", "Fall-Nr"]) == 0
    out = capsys.readouterr().out
    assert "separator ';' and decimal mark ','" in out
    assert "the four sites are made up" in out
    config = load_federation(Path("heart/federation.toml"))
    options = parse_options(TabularOptions, config.task.options)
    types = {name: column.type for name, column in options.columns.items()}
    assert types == {
        "Fall-Nr": "ignored",
        "Alter": "number",
        "Größe": "number",
        "Geschlecht": "category",
        "Diagnose": "category",
        "Aufnahme": "ignored",
        "Bemerkung": "ignored",
    }
    assert (options.group, options.label.column, options.label.classes) == ("Fall-Nr", "krank", ("ja", "nein"))
    assert options.columns["Geschlecht"].missing == "fill"
    own_tests_of("heart")


def test_what_few_rows_have_is_not_in_the_federations_file() -> None:
    write(Path("export.csv"), patients(140))
    assert main(["new", "heart", "--tabular", "export.csv"]) == 0
    text = Path("heart/federation.toml").read_text()
    for private in ("Fabry", "Frau Nr", "7003", "12.03.2024"):
        assert private not in text
    options = parse_options(TabularOptions, load_federation(Path("heart/federation.toml")).task.options)
    assert options.columns["Diagnose"].values == ("Fieber", "Müdigkeit")
    assert options.columns["Diagnose"].unknown == "fill"
    size = options.columns["Größe"]
    assert (size.center, size.scale) == (1.7, 0.1)  # round numbers, and not the mean


def test_made_up_sites_have_all_rows_and_nobody_else_reads_them() -> None:
    rows = patients(140)
    write(Path("export.csv"), rows)
    assert main(["new", "heart", "--tabular", "export.csv"]) == 0
    files = sorted(Path("heart/data").iterdir())
    assert [file.stem for file in files] == ["clinic", "hospital-a", "hospital-b", "hospital-c"]
    found = [row for file in files for row in list(csv.reader(file.open(encoding="utf-8"), delimiter=";"))[1:]]
    assert sorted(found) == sorted(rows)
    assert {file.stat().st_mode & 0o077 for file in [Path("heart/data"), *files]} == {0}
    assert "data/" in Path("heart/.gitignore").read_text().splitlines()


def export_sites(folder: Path) -> None:
    for number, site in enumerate(["clinic", "nord", "sued", "west"]):
        write(folder / f"{site}.csv", patients(80 + number, number))


def test_files_beside_the_example_are_the_sites(capsys: pytest.CaptureFixture[str]) -> None:
    export_sites(Path("exports"))
    write(Path("exports/other.csv"), [["1"]], header=["something"])
    assert main(["new", "heart", "--tabular", "exports/clinic.csv"]) == 0
    config = load_federation(Path("heart/federation.toml"))
    assert (config.federation.target, config.federation.sources) == ("clinic", ("nord", "sued", "west"))
    assert config.task.data_dir == Path("exports")
    assert (config.training.target.labels, config.strategy.rule) == ("given", "fedda_auto")
    assert not Path("heart/data").exists()
    capsys.readouterr()
    assert main(["task", "check", "heart/federation.toml"]) == 0
    Path("moved").mkdir()  # both folders together
    for name in ("heart", "exports"):
        Path(name).rename(Path("moved") / name)
    assert load_federation(Path("moved/heart/federation.toml")).task.data_dir == Path("moved/exports")
    assert main(["task", "check", "moved/heart/federation.toml"]) == 0


def export_dialects() -> None:
    """Four sites, each with a dialect of its own."""
    (clinic, nord, sued, west) = (patients(80 + number, number) for number in range(4))
    write(Path("exports/clinic.csv"), clinic)
    tabs = "\n".join("\t".join(row) for row in [HEADER, *nord])
    Path("exports/nord.csv").write_text(tabs, encoding="utf-16")
    header = ["Fall", "Alter_months", "Groesse (cm)", "GESCHLECHT", "Diagnose", "Aufnahme", "Bemerkung", "ill"]
    for row in sued:
        row[1:4] = [str(12 * int(row[1])), f"{100 * float(row[2].replace(',', '.')):.0f}", row[3].upper()]
    with Path("exports/sued.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *sued])
    book = openpyxl.Workbook()
    book.active.append(["Stand", "Mai"])
    book.active.append([1, 2])
    sheet = book.create_sheet("Export")
    sheet.append(HEADER)
    for row in west:
        sheet.append([row[0], int(row[1]), float(row[2].replace(",", ".")), *row[3:]])
    book.save("exports/west.xlsx")


def test_files_in_other_dialects_get_mappings_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    export_dialects()
    assert main(["new", "heart", "--tabular", "exports/clinic.csv"]) == 0
    out = capsys.readouterr().out
    for line in (
        "  clinic: clinic.csv (separator ';', decimal mark ',', cp1252)",
        "  nord: nord.csv (separator '\\t', decimal mark ',', utf-16), guessed in nord.mapping.toml: look at it",
        "  sued: sued.csv (separator ',', decimal mark '.'), guessed in sued.mapping.toml: look at it; fill in krank",
        "  west: west.xlsx (sheet Export), guessed in west.mapping.toml: look at it",
    ):
        assert line in out.splitlines()
    config = load_federation(Path("heart/federation.toml"))
    assert (config.federation.target, config.federation.sources) == ("clinic", ("nord", "sued", "west"))
    mapping = Path("exports/sued.mapping.toml").read_text()
    for line in (
        'Alter = { from = "Alter_months", unit = "months", to = "years" }  # guessed from the name and the medians',
        '"Größe" = { from = "Groesse (cm)", unit = "cm", to = "m" }  # guessed',
        'Geschlecht = { from = "GESCHLECHT", levels = { M = "m", W = "w" } }  # guessed from the name; levels guessed',
        'krank = { from = "" }  # fill in; not matched yet: Fall, ill',
    ):
        assert line in mapping
    assert not Path("exports/clinic.mapping.toml").exists()

    assert main(["task", "check", "heart/federation.toml"]) == 4
    assert "error: sued: column.krank.from: is to be filled in" in capsys.readouterr().err
    Path("exports/sued.mapping.toml").write_text(mapping.replace('from = ""', 'from = "ill"'))
    assert main(["simulate", "heart/federation.toml", "--set", "strategy.rounds=4", "--out", "run"]) == 0
    assert main(["predict", "run", "--data", "exports/sued.csv", "--out", "predicted.csv"]) == 0
    assert len(Path("predicted.csv").read_text().splitlines()) == 83
    for kept in Path("run").rglob("*"):  # the dialect stays with the rows
        assert not kept.is_file() or b"Alter_months" not in kept.read_bytes()


def test_what_names_and_spellings_do_not_show_is_left_to_fill_in() -> None:
    export_sites(Path("exports"))
    hostile = ["Fall-Nr", "Alter", "Länge", "Geschlecht", "Diagnose", 'x"\n[sql]\x7f', "Bemerkung", "krank"]
    rows = [[*row[:-1], str(int(row[-1] == "ja"))] for row in patients(80, 9)]
    write(Path("exports/sued.csv"), rows, header=hostile)
    near = [name.replace("Diagnose", "Diagnose 2") for name in HEADER]
    write(Path("exports/west.csv"), patients(80, 8), header=[*near[:4], "Diagnos", *near[5:]])
    assert main(["new", "heart", "--tabular", "exports/clinic.csv"]) == 0
    text = Path("exports/sued.mapping.toml").read_text()
    assert "krank = {}  # fill in levels: 0, 1; the task has ja, nein" in text
    Path("exports/sued.mapping.toml").write_text(text.replace('from = ""', 'from = "Länge"'))
    assert read_mapping(Path("exports/sued.mapping.toml")).sql is None
    assert 'Diagnose = { from = "Diagnos" }' in Path("exports/west.mapping.toml").read_text()


@pytest.mark.parametrize(
    ("wanted", "header", "found"),
    [
        (["blood pressure"], ["Blood_Pressure"], {"blood pressure": "Blood_Pressure"}),
        (["Größe"], ["Groesse"], {"Größe": "Groesse"}),
        (["age"], ["age (months)", "stage"], {"age": "age (months)"}),
        (["pressure"], ["systolic pressure", "diastolic pressure"], {}),
        (["feature 1"], ["feature 10"], {}),
        (["年齢"], ["性別"], {}),
        (["Cholesterin"], ["Cholesterine"], {"Cholesterin": "Cholesterine"}),
        (["a", "A"], ["A"], {"A": "A"}),
    ],
)
def test_names_are_matched_where_only_one_fits(wanted: list[str], header: list[str], found: dict[str, str]) -> None:
    assert match_names(wanted, header) == found


def test_a_mapping_that_is_there_is_taken_and_never_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    export_dialects()
    mine = 'separator = ","\ndecimal = "."\nencoding = "utf-8"\n[column]\nkrank = { from = "ill" }\n'
    Path("exports/sued.mapping.toml").write_text(mine)
    assert main(["new", "heart", "--tabular", "exports/clinic.csv"]) == 0
    assert "Not taken for sites: sued.mapping.toml (has no column " in capsys.readouterr().out
    mine += 'Alter.from = "Alter_months"\n"Größe".from = "Groesse (cm)"\nGeschlecht.from = "GESCHLECHT"\n'
    Path("exports/sued.mapping.toml").write_text(mine)
    assert main(["new", "liver", "--tabular", "exports/clinic.csv"]) == 0
    assert Path("exports/sued.mapping.toml").read_text() == mine
    assert load_federation(Path("liver/federation.toml")).federation.sources == ("nord", "sued", "west")


def test_a_folder_in_which_no_mapping_can_be_written_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    export_dialects()
    before = sorted(Path("exports").iterdir())
    Path("exports").chmod(0o555)
    Path("new").mkdir()
    Path("new").chmod(0o777)
    with plain_user():
        assert main(["new", "new/heart", "--tabular", "exports/clinic.csv"]) == 4
    Path("exports").chmod(0o755)
    assert "exports/nord.mapping.toml: cannot be written: Permission denied" in capsys.readouterr().err
    assert (sorted(Path("exports").iterdir()), list(Path("new").iterdir())) == (before, [])


def test_the_example_may_be_an_excel_file(capsys: pytest.CaptureFixture[str]) -> None:
    export_dialects()
    Path("exports/west.mapping.toml").write_text('sheet = "Export"\n')
    assert main(["new", "heart", "--tabular", "exports/west.xlsx"]) == 0
    assert "  reads west.xlsx (sheet Export), as west.mapping.toml says" in capsys.readouterr().out.splitlines()
    assert load_federation(Path("heart/federation.toml")).federation.target == "west"
    assert 'separator = ";"' in Path("exports/clinic.mapping.toml").read_text()
    assert main(["task", "check", "heart/federation.toml", "--site", "west", "--site", "clinic"]) == 0


def test_a_time_to_an_event_can_be_the_label(capsys: pytest.CaptureFixture[str]) -> None:
    chance = random.Random(1)
    times = [chance.expovariate(1 / 800) for _ in range(400)]
    rows = [[str(40 + n % 30), f"{min(time, 1500):.0f}", str(int(time < 1500))] for n, time in enumerate(times)]
    write(Path("export.csv"), rows, header=["age", "days", "died"])
    assert main(["new", "heart", "--tabular", "export.csv", "--label", "days", "--event", "died"]) == 0
    label = parse_options(TabularOptions, load_federation(Path("heart/federation.toml")).task.options).label
    assert (label.column, label.event, label.horizon, label.survival) == ("days", "died", 1000, 0.3)  # e^(-1000/800)
    assert main(["task", "check", "heart/federation.toml"]) == 0
    capsys.readouterr()

    assert main(["new", "liver", "--tabular", "export.csv", "--event", "died"]) == 4
    assert "--event: needs the column of the times" in capsys.readouterr().err
    assert main(["new", "liver", "--tabular", "export.csv", "--label", "days", "--event", "age"]) == 4
    assert "column age: holds other numbers" in capsys.readouterr().err


def test_a_target_whose_table_has_no_labels_is_a_target_without_labels(capsys: pytest.CaptureFixture[str]) -> None:
    export_sites(Path("exports"))
    write(Path("exports/clinic.csv"), [row[:-1] for row in patients(90, 9)], header=HEADER[:-1])
    assert main(["new", "heart", "--tabular", "exports/nord.csv", "--target", "clinic"]) == 0
    config = load_federation(Path("heart/federation.toml"))
    assert (config.federation.target, config.federation.sources) == ("clinic", ("nord", "sued", "west"))
    assert (config.training.target.labels, config.strategy.rule) == ("none", "source_only")
    out = capsys.readouterr().out
    assert "the rows of clinic have no labels" in out
    assert "Not taken for sites" not in out
    own_tests_of("heart")


def test_a_file_beside_the_example_that_is_no_site_is_named_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    export_sites(Path("exports"))
    write(Path("exports/Nord 2.csv"), patients(80, 9))
    write(Path("exports/other.csv"), [["1"]], header=["something"])
    write(Path("exports/unlabelled.csv"), [row[:-1] for row in patients(80, 9)], header=HEADER[:-1])
    assert main(["new", "heart", "--tabular", "exports/clinic.csv"]) == 0
    said = capsys.readouterr().out
    assert "Not taken for sites: Nord 2.csv (its name is no site id" in said
    assert "other.csv (has no column " in said
    assert "unlabelled.csv (has no column krank)" in said
    Path("exports/unlabelled.csv").unlink()

    Path("exports/west.csv").chmod(0)  # too few are left, and the rows of the example are dealt out
    with plain_user():
        assert main(["new", "liver", "--tabular", "exports/clinic.csv"]) == 0
    said = capsys.readouterr().out
    assert "the four sites are made up" in said
    assert "west.csv (cannot be read: Permission denied)" in said


def test_rows_that_lie_elsewhere_keep_their_absolute_path(tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("exports")
    export_sites(elsewhere)
    assert main(["new", "heart", "--tabular", str(elsewhere / "clinic.csv")]) == 0
    assert f'data-dir = "{elsewhere}"' in Path("heart/federation.toml").read_text()


def test_a_column_can_name_the_site() -> None:
    names = ["Köln (Süd)", "Bonn", "Trier", "Mainz"]
    rows = [[names[number % 7 % 4], *row] for number, row in enumerate(patients(210))]
    write(Path("export.csv"), rows, header=["Haus", *HEADER])
    assert main(["new", "heart", "--tabular", "export.csv", "--site-column", "Haus"]) == 0
    config = load_federation(Path("heart/federation.toml"))
    assert (config.federation.target, config.federation.sources) == ("mainz", ("bonn", "koeln-sued", "trier"))
    assert "Haus" not in config.task.options["columns"]
    assert main(["new", "other", "--tabular", "export.csv", "--site-column", "Haus", "--target", "bonn"]) == 0
    assert load_federation(Path("other/federation.toml")).federation.target == "bonn"


def test_other_sites_files_are_looked_at_too(capsys: pytest.CaptureFixture[str]) -> None:
    """What only they hold is described or named; the scaling stays that of the example."""
    for number, site in enumerate(["clinic", "nord", "sued", "west"]):
        rows = patients(80, number)
        for row in rows:
            row[4] = "Fieber" if row[4] == "Fabry" else row[4]
        if site == "nord":
            for row in rows:
                row[2] = f"{float(row[2].replace(',', '.')) * 100:.0f}"
        if site == "sued":
            for row in rows[:6]:
                row[1], row[3], row[4], row[7] = "-999", "d", "Gicht", "offen"
        if site == "west":
            rows[9][1] = "NA"
        write(Path("exports") / f"{site}.csv", rows)
    assert main(["new", "heart", "--tabular", "exports/clinic.csv"]) == 0
    look = capsys.readouterr().out.partition("look at this:\n")[2].partition("\n\n")[0]
    assert "\n  Alter: no value in some rows of west: filled in\n" in look
    assert (
        '\n  Alter: "-999" in 6 of 80 rows, far from all others at sued. If it stands for a missing value, write '
        in look
    )
    assert "\n  Größe: numbers at nord are about 100 times those at clinic, as m and cm are apart. " in look
    options = parse_options(TabularOptions, load_federation(Path("heart/federation.toml")).task.options)
    assert (options.columns["Alter"].missing, options.columns["Alter"].center) == ("fill", 60)
    assert options.columns["Geschlecht"].values == ("d", "m", "w")
    assert options.columns["Diagnose"].values == ("Fieber", "Gicht", "Müdigkeit")
    assert options.label.classes == ("ja", "nein", "offen")
    assert options.stratify
    assert main(["task", "check", "heart/federation.toml"]) == 0
    assert '"-999" in 6 of 80 rows, far from all others at sued' in capsys.readouterr().out


def test_a_label_without_a_value_is_left_out_and_does_not_move_the_scaling() -> None:
    rows = patients(140)
    for row in rows[:9]:
        row[1] = "999"
    write(Path("export.csv"), rows)
    assert main(["new", "heart", "--tabular", "export.csv", "--label", "Alter"]) == 0
    label = parse_options(TabularOptions, load_federation(Path("heart/federation.toml")).task.options).label
    assert (label.center, label.scale, label.missing_values, label.missing) == (60, 10, ("999",), "drop-row")
    assert main(["task", "check", "heart/federation.toml"]) == 0


def test_a_number_can_be_the_label() -> None:
    write(Path("export.csv"), patients(140))
    assert main(["new", "heart", "--tabular", "export.csv", "--label", "Alter"]) == 0
    label = parse_options(TabularOptions, load_federation(Path("heart/federation.toml")).task.options).label
    assert (label.column, label.classes, label.center, label.scale, label.tolerance) == ("Alter", (), 60, 10, 5)
    assert main(["task", "check", "heart/federation.toml"]) == 0


def fill(folder: Path, mode: str = "L", count: int = 20) -> None:
    chance = np.random.default_rng(1)
    for name, brightness in (("gesund", 60), ("krank", 190)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = chance.integers(brightness - 60, brightness + 60, (30, 22), dtype=np.uint8)
            Image.fromarray(pixels).convert(mode).save(folder / name / f"{number}.png")


def test_images_of_sites_stay_where_they_are() -> None:
    for site, count in (("clinic", 15), ("a", 25), ("b", 25), ("c", 25)):
        fill(Path("images") / site, count=count)
    assert main(["new", "scans", "--images", "images"]) == 0
    config = load_federation(Path("scans/federation.toml"))
    assert (config.federation.target, config.federation.sources) == ("clinic", ("a", "b", "c"))
    expected = {"classes": ["gesund", "krank"], "size": 24, "colour": "grey", "test-share": 0.4}
    assert {key: config.task.options[key] for key in expected} == expected
    assert (config.training.target.labels, config.strategy.rule) == ("given", "fedda_auto")
    assert not Path("scans/data").exists()
    own_tests_of("scans")


def save_features(
    site: str,
    *,
    labelled: bool = True,
    encoder: str = "ab" * 32,
    width: int = 4,
    classes: tuple[str, ...] = ("kot", "pies"),
    several: bool = False,
) -> None:
    labels = torch.arange(30) % 2
    features = torch.randn(30, width, generator=torch.Generator().manual_seed(len(site))) + 3 * labels[:, None]
    labels = torch.stack([labels, torch.arange(30) // 2 % 2], dim=1) if several else labels
    file = FeatureFile(features, labels if labelled else None, encoder, classes if labelled else ())
    Path("features").mkdir(exist_ok=True)
    Path(f"features/{site}.safetensors").write_bytes(file.to_bytes())


@pytest.mark.parametrize(("labelled", "several"), [(True, False), (False, False), (True, True)])
def test_features_are_fitted_in_one_round(labelled: bool, several: bool, capsys: pytest.CaptureFixture[str]) -> None:
    for site in ("a", "bb", "ccc"):
        save_features(site, several=several)
    save_features("dddd", labelled=labelled, several=several)
    assert main(["new", "study", "--features", "features", *(["--target", "dddd"] if labelled else [])]) == 0
    assert labelled or "dddd lacks labels and is the target" in capsys.readouterr().out
    config = load_federation(Path("study/federation.toml"))
    assert (config.federation.target, config.federation.sources) == ("dddd", ("a", "bb", "ccc"))
    assert (config.strategy.rule, config.strategy.rounds) == ("analytic", 1)
    assert config.task.factory == (MULTI_LABEL_FACTORY if several else FACTORY)
    assert config.training.target.labels == ("given" if labelled else "none")
    expected = {"classes": ["kot", "pies"], "width": 4, "encoder": "ab" * 32}
    assert {key: config.task.options[key] for key in expected} == expected
    assert main(["policy", "check", "study/policy.toml", "study/federation.toml"]) == 0
    assert main(["simulate", "study/federation.toml", "--out", "run"]) == 0
    assert json.loads(Path("run/summary.json").read_text())["rounds"] == 1


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"encoder": "cd" * 32}, f"the files differ in their encoder: {'ab' * 8} (a, b, c); {'cd' * 8} (d)"),
        ({"encoder": ""}, f"the files differ in their encoder: {'ab' * 8} (a, b, c); none (d)"),
        ({"width": 5}, "the files differ in their width: 4 (a, b, c); 5 (d)"),
        ({"classes": ()}, "the files differ in their labels: names (a, b, c); numbers (d)"),
        ({"several": True}, "the files differ in their labels: names (a, b, c); names, 2 of a row (d)"),
        (None, "has 3 sites, and a federation with sums needs a target and three sources"),
    ],
)
def test_features_of_different_kinds_make_no_federation(
    other: dict[str, Any] | None, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for site in ("a", "b", "c"):
        save_features(site)
    if other is not None:
        save_features("d", **other)
    assert main(["new", "study", "--features", "features", "--target", "a"]) == 4
    assert why in capsys.readouterr().err
    assert not Path("study").exists()


@pytest.mark.parametrize("made", ["abcd", "dcba"])
def test_of_sites_with_as_many_images_the_first_by_name_is_the_target(
    made: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for site in made:  # file systems list folders in the order in which they were made, or another way round
        fill(Path("images") / site)
    assert main(["new", "scans", "--images", "images"]) == 0
    assert load_federation(Path("scans/federation.toml")).federation.target == "a"
    assert "a has the fewest images and is the target, unless --target names another" in capsys.readouterr().out


def test_images_without_labels_are_no_class() -> None:
    for site in ("clinic", "a", "b", "c"):
        fill(Path("images") / site)
    (Path("images") / "clinic" / "krank").rename(Path("images") / "clinic" / "unlabelled")
    assert main(["new", "scans", "--images", "images", "--target", "clinic"]) == 0
    config = load_federation(Path("scans/federation.toml"))
    assert config.task.options["classes"] == ["gesund", "krank"]
    assert (config.training.target.labels, config.strategy.rule) == ("none", "source_only")
    own_tests_of("scans")


def test_images_without_sites_are_linked_to() -> None:
    fill(Path("images"), "RGB", count=40)
    assert main(["new", "scans", "--images", "images"]) == 0
    links = [path for path in Path("scans/data").rglob("*.png") if path.is_symlink()]
    assert len({link.resolve() for link in links}) == len(links) == 80
    assert load_federation(Path("scans/federation.toml")).task.options["colour"] == "rgb"
    assert main(["task", "check", "scans/federation.toml"]) == 0


def test_a_name_with_a_blank_is_quoted_in_what_comes_next_and_json_has_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["new", "my heart"]) == 0
    assert "\n  cd 'my heart'\n" in capsys.readouterr().out
    assert main(["new", "heart", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["files"] == ["federation.toml", "heart_task.py", "policy.toml", "test_heart.py"]
    assert data["target"] == "clinic"


@pytest.mark.parametrize("what", ["a folder", "a file", "a link"])
def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str], what: str) -> None:
    place = Path("heart")
    if what == "a folder":
        place.mkdir()
        (place / "mine.txt").write_text("mine")
    elif what == "a file":
        place.write_text("mine")
    else:
        place.symlink_to("nowhere")
    assert main(["new", "heart"]) == 4
    assert "heart is there already, and nothing is overwritten" in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == ["heart"]
    if what == "a folder":
        assert [path.name for path in place.iterdir()] == ["mine.txt"]


BAD: dict[str, tuple[list[str], str, str]] = {
    "no file": (["--tabular", "none.csv"], "none.csv: cannot be read: No such file", ""),
    "a folder": (["--tabular", "."], "cannot be read: Is a directory", ""),
    "too few rows": (["--tabular", "few.csv"], "has 20 rows, and four made-up sites need 70", ""),
    "no such label": (["--tabular", "good.csv", "--label", "kranck"], "--label kranck: ", "did you mean krank?"),
    "no label in the example": (
        ["--tabular", "good.csv", "--label", "outcome"],
        "--label outcome: ",
        "where the target alone has no labels, name a source's table, and --target",
    ),
    "free text as label": (
        ["--tabular", "good.csv", "--label", "Bemerkung"],
        "column Bemerkung cannot be predicted",
        "--label",
    ),
    "no such site column": (["--tabular", "good.csv", "--site-column", "Ort"], "has no such column", "columns: "),
    "too few sites": (["--tabular", "good.csv", "--site-column", "krank", "--label", "Alter"], "has 2 sites", ""),
    "a target without sites": (["--tabular", "good.csv", "--target", "bonn"], "there are no sites yet", ""),
    "another separator": (["--tabular", "good.csv", "--separator", "|"], "good.csv: ", ""),
    "two separators": (["--tabular", "good.csv", "--separator", ";;"], "is not one character", ""),
    "another decimal mark": (["--tabular", "good.csv", "--decimal", ";"], "no decimal mark", ""),
    "another encoding": (["--tabular", "good.csv", "--encoding", "utf-8"], "is not utf-8 text", "cp1252"),
    "no encoding": (["--tabular", "good.csv", "--encoding", "ansi"], "is not ansi text", ""),
    "both": (["--tabular", "good.csv", "--images", "."], "does not go with --tabular", ""),
    "no features": (["--features", "."], ".: holds no files of features", "features lie in DIR/SITE.safetensors"),
    "all": (["--images", ".", "--features", "."], "--features: does not go with --images", ""),
    "an option of tables": (["--label", "x"], "--label: is of a table", "--tabular"),
    "no images": (["--images", "nowhere"], "nowhere: cannot be read", ""),
    "no classes": (["--images", "."], "holds no folders of two classes", "DIR/SITE/CLASS"),
}


@pytest.mark.parametrize(("arguments", "message", "hint"), BAD.values(), ids=BAD.keys())
def test_wrong_input_is_one_line_and_makes_nothing(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str, hint: str
) -> None:
    write(Path("good.csv"), patients(140))
    write(Path("few.csv"), patients(20))
    before = sorted(Path().iterdir())
    assert main(["new", "heart", *arguments]) == 4
    err = capsys.readouterr().err
    assert message in err
    assert hint in err
    assert err.count("\n") <= 2
    assert sorted(Path().iterdir()) == before


@pytest.mark.parametrize("name", ["...", "--"])
def test_a_name_without_letters_is_refused(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert main(["new", "--", name]) == 4
    assert "no name that a federation can have" in capsys.readouterr().err


def as_utf8_bom(text: str) -> bytes:
    return b"\xef\xbb\xbf" + text.encode()


WRITINGS: dict[str, tuple[Callable[[str], bytes], str, tuple[str, str, str]]] = {
    "comma": (str.encode, "a,b,c\n1.5,x,0\n2.5,y,1\n", (",", ".", "utf-8")),
    "semicolon and comma": (str.encode, "a;b;c\n1,5;x;0\n2,5;y;1\n", (";", ",", "utf-8")),
    "tab": (str.encode, "a\tb\tc\n1,5\tx\t0\n2,5\ty\t1\n", ("\t", ",", "utf-8")),
    "semicolon and point": (str.encode, "a;b;c\n1.5;x, y;0\n2.5;y;1\n", (";", ".", "utf-8")),
    "byte order mark": (as_utf8_bom, "ä;b\n1,5;0\n", (";", ",", "utf-8")),
    "utf-16": (lambda text: text.encode("utf-16"), "ä;b\n1,5;0\n", (";", ",", "utf-16")),
    "windows": (lambda text: text.encode("cp1252"), "ä;b\n1,5;0\n", (";", ",", "cp1252")),
    "sep=": (str.encode, "sep=;\na;b\n1,5;0\n", (";", ",", "utf-8")),
    "quotes": (str.encode, 'a;b\n"1;5";0\n"2;5";1\n', (";", ".", "utf-8")),
}


@pytest.mark.parametrize(("encode", "text", "expected"), WRITINGS.values(), ids=WRITINGS.keys())
def test_how_a_file_is_written_is_seen(encode: Callable[[str], bytes], text: str, expected: tuple[str, ...]) -> None:
    path = Path("a.csv")
    path.write_bytes(encode(text))
    writing = guess_format(path)
    assert (writing.separator, writing.decimal, writing.encoding) == expected


COLUMNS: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "numbers": ([f"{120 + i % 40}" for i in range(100)], {"type": "number", "center": 140, "scale": 10}, ""),
    "yes or no": (["0", "1"] * 50, {"type": "number", "center": 0.5, "scale": 0.5}, ""),
    "a gap": (["0", "1", "?", "1"] * 25, {"type": "number", "center": 0.5, "scale": 0.5, "missing": "fill"}, ""),
    "an identifier": ([str(i) for i in range(100)], {"type": "ignored"}, "as an identifier has; not read"),
    "an identifier, unsorted, some twice": (
        [str(61634 + 190_001 * (i * 37 % 92)) for i in range(100)],
        {"type": "ignored"},
        "has 92 different whole numbers in 100 rows, as an identifier has; not read",
    ),
    "days in digits": ([f"2024{1 + i % 12:02}{1 + i % 28:02}" for i in range(100)], {"type": "ignored"}, "holds dates"),
    "999 and -999": (
        [("-999", "999", *(f"{45 + i % 31}" for _ in range(8)))[i % 10] for i in range(100)],
        {"type": "number", "center": 60, "scale": 10, "missing": "fill", "missing_values": ("-999", "999")},
        '"-999" in 10 of 100 rows, "999" in 10 of 100 rows: read as a missing value (missing-values)',
    ),
    "one wrong number": (
        ["100000", *(f"{45 + i % 31}" for i in range(99))],
        {"type": "number", "center": 60, "scale": 10},
        "",
    ),
    "words for no number": (
        [("k.A.", *(f"{i},5" for _ in range(9)))[i % 10] for i in range(100)],
        {"type": "number", "center": 60, "scale": 20, "missing": "fill", "missing_values": ("k.A.",)},
        '"k.A." in 10 of 100 rows',
    ),
    "codes": (
        ["3", "6", "7", "9", "7"] * 20,
        {"type": "category", "values": ("3", "6", "7", "9")},
        "few small whole numbers, read as categories",
    ),
    "mostly one number": (["0"] * 92 + [str(i) for i in range(2, 10)], {"type": "number", "center": 0, "scale": 5}, ""),
    "one number but for a row": (
        ["0"] * 99 + ["5000"],
        {"type": "ignored"},
        "has one number in all but 1 row; not read",
    ),
    "one value": (["x"] * 100, {"type": "ignored"}, "one value in all rows"),
    "nothing": ([""] * 100, {"type": "ignored"}, "has no value"),
    "dates": ([f"{1 + i % 28}.05.2024" for i in range(100)], {"type": "ignored"}, "holds dates"),
    "moments": ([f"2024-05-{1 + i % 28} 10:30" for i in range(100)], {"type": "ignored"}, "holds dates"),
    "names": ([f"Anna {i}" for i in range(100)], {"type": "ignored"}, "free text; not read"),
    "words": (["m", "w"] * 50, {"type": "category", "values": ("m", "w")}, ""),
    "rare words": (
        ["m", "w"] * 48 + ["d"] * 4,
        {"type": "category", "values": ("m", "w"), "unknown": "fill"},
        "fewer than 5",
    ),
}


@pytest.mark.parametrize(("cells", "expected", "remark"), COLUMNS.values(), ids=COLUMNS.keys())
def test_what_a_column_holds_is_seen(cells: list[str], expected: dict[str, Any], remark: str) -> None:
    rows = [[cell, str(number % 3), str(number % 2)] for number, cell in enumerate(cells)]
    path = write(Path("a.csv"), rows, header=["column", "other", "label"])
    writing = guess_format(path)
    found = guess(read_table(path, separator=writing.separator), writing)
    assert found.columns["column"].model_dump(exclude_defaults=True) == expected
    assert remark in found.remarks.get("column", "")
