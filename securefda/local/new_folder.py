"""A starting point for users: a federation on their own rows, with a policy, and a test that passes.

The federation's file goes to every site; its heading says what it contains of an example's rows.
"""

from __future__ import annotations

import csv
import io
import os
import random
import re
import shutil
import textwrap
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from PIL import Image

from securefda.disk import read_whole, writing_errors
from securefda.errors import ConfigError, DataError
from securefda.site.config import load_federation, site_policy
from securefda.site.config.sections import SITE_ID_PATTERN
from securefda.site.policy import default_policy_text
from securefda.tasks import image_folder, table_files, tabular
from securefda.tasks.column_cautions import gathered, look_at
from securefda.tasks.features import FACTORY as FEATURES
from securefda.tasks.features import MULTI_LABEL_FACTORY as MULTI_LABEL_FEATURES
from securefda.tasks.features_file import NO_LABEL, SUFFIXES, read_features
from securefda.tasks.guess import FEWEST_OF_A_CATEGORY, Guess, guess, guess_format, widened
from securefda.tasks.guess_mapping import Draft, draft_mapping
from securefda.tasks.mapping import MAPPING_SUFFIX, file_of_site, read_table, toml_key, toml_value
from securefda.tasks.table_files import UMLAUTS, CsvFormat, Table, plain
from securefda.tasks.tabular import TabularOptions
from securefda.text import names, printable

FEDERATION_FILE, POLICY_FILE, DATA_FOLDER = "federation.toml", "policy.toml", "data"
FEWEST_SITES = 4
_MADE_UP_SITES = ("clinic", "hospital-a", "hospital-b", "hospital-c")
_MADE_UP_SHARES = (1, 2, 2, 2)
_FEWEST_ROWS = 70
_MOST_SITES = 200
_FEW_TARGET_ROWS = 200
_MOST_CLASSES = 20
_NAMED_FILES = 3
_TEST_SHARE, _LARGE_TEST_SHARE = 0.2, 0.4
"""The larger share is for targets with few rows, a fifth of which would say little about a model."""
_Thing = TypeVar("_Thing")
_GIT_IGNORE = "# Rows of patients do not belong into a repository, nor do private keys.\ndata/\nkits/\nruns/\n"


@dataclass(frozen=True, slots=True)
class NewFolder:
    """The new folder, notes for the user, and what to look at in the columns of a table."""

    folder: Path
    files: tuple[str, ...]
    target: str
    sources: tuple[str, ...]
    notes: tuple[str, ...]
    look_at: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Sites:
    """The sites, where their rows lie, and what of that is made up.

    ``target_labels`` has the label of each row of the target, if they have labels.
    ``tables`` are those of sites that may differ from each other, the target's first; ``mapped`` are the sites that get
    a mapping, in which their names and spellings are brought to the task's.
    ``write`` puts rows into a folder of their own, where they do not lie in one already, or mappings beside them.
    ``labelled`` says whether the target's rows have labels.
    ``read_from`` has a line for each site about how its file was read, where they differ.
    """

    target: str
    sources: tuple[str, ...]
    data_dir: str
    largest: int
    target_labels: Sequence[str]
    note: str
    write: Callable[[Path], None] | None = None
    labelled: bool = True
    read_from: tuple[str, ...] = ()
    tables: Mapping[str, Table] = field(default_factory=dict)
    mapped: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Choices:
    """The user's choices for a tabular folder; empty ones follow from the example."""

    label: str = ""
    event: str = ""
    group: str = ""
    site_column: str = ""
    target: str = ""
    separator: str = ""
    decimal: str = ""
    encoding: str = ""


def new_plain(folder: Path) -> NewFolder:
    """Make a folder with a small task in Python, whose rows are made up until its reader fills in their own.

    Raises:
        ConfigError: the folder is there already, or its name is none for a federation.
    """
    name = _name_of(folder)
    module = f"{name.replace('-', '_')}_task"
    class_name = "".join(part.capitalize() for part in name.split("-"))
    class_name = class_name if class_name[0].isalpha() else f"Task{class_name}"
    sites = _Sites(_MADE_UP_SITES[0], _MADE_UP_SITES[1:], "", 400, (), "the rows are made up by the task")
    text = _render("task.py.j2", class_name=class_name)
    heading = f"The task is {module}.py, in this folder. Start every command here, or put it on PYTHONPATH."
    return _make(folder, sites, f"{module}:{class_name}", "", heading, files={f"{module}.py": text})


def new_tabular(folder: Path, file: Path, choices: Choices) -> NewFolder:
    """Make a folder whose federation trains on tables, described by one example.

    The sites are the files beside the example that have its columns, if there are three or more; or the values of a
    column; or made up, each with some of the example's rows. A file that is written otherwise than the example, or has
    other names, gets a mapping beside it, unless it has one.

    Raises:
        ConfigError: the folder is there already, or an argument names what there is not.
        DataError: the example cannot be read, or is too small.
    """
    name = _name_of(folder)
    is_csv = file.suffix.lower() not in (*table_files.SUFFIXES[1:], ".toml")
    csv_format = CsvFormat()
    if is_csv:
        separator, decimal, encoding = choices.separator, choices.decimal, choices.encoding
        csv_format = guess_format(file, separator=separator, decimal=decimal, encoding=encoding)
    table = _read_as(file, csv_format)
    csv_format = replace(csv_format, decimal=table.decimal)
    found = guess(_without(table, choices.site_column), csv_format, choices.label, choices.group, choices.event)
    read = TabularOptions(label=found.label, columns=found.columns, group=choices.group)
    sites = _sites_of_table(file, table, read, csv_format, choices)
    if sites.data_dir == DATA_FOLDER:
        csv_format = CsvFormat(csv_format.separator, csv_format.decimal, "utf-8")  # as the new files are written
    found = widened(found, {site: table for site, table in sites.tables.items() if site not in sites.mapped})
    described = TabularOptions(label=found.label, columns=found.columns)
    notes = (
        f"predicts {found.label.column}" + ("" if choices.label else ", the last column; --label names another"),
        f"reads it with separator {csv_format.separator!r} and decimal mark {csv_format.decimal!r}"
        if is_csv
        else f"reads {table.source}",
    )
    look = [*gathered(found.remarks.items()), *look_at(sites.tables or {file.stem: table}, described)]
    beside = ", and missing values, categories and classes also from the other sites' files" if sites.tables else ""
    heading = (
        f"Columns, categories and scaling were guessed from {file.name}{beside}. Every site reads them here, and no "
        "noise covers them: they show round numbers near median and spread, and the categories that at least "
        f"{FEWEST_OF_A_CATEGORY} rows have. What must not be shown, replace by public numbers: those of a textbook."
    )
    options = _options_text(found, csv_format, choices.group, sites)
    holds = f"SITE.csv, .xlsx or .parquet, or SITE{MAPPING_SUFFIX}"
    made = _make(folder, sites, tabular.FACTORY, options, heading, holds=holds, name=name)
    return replace(made, notes=(*notes, *made.notes, *sites.read_from), look_at=tuple(look))


def _read_as(path: Path, csv_format: CsvFormat) -> Table:
    return read_table(path, separator=csv_format.separator, decimal=csv_format.decimal, encoding=csv_format.encoding)


def new_images(folder: Path, images: Path, target: str = "") -> NewFolder:
    """Make a folder whose federation trains on images in ``images/SITE/CLASS`` or ``images/CLASS``.

    In the second case the sites are made up, each with links to some of the images.

    Raises:
        ConfigError: the folder is there already, or there is no site ``target``.
        DataError: the images do not lie so, or are too few.
    """
    _name_of(folder)
    try:
        inner = {
            entry: [one for one in entry.iterdir() if one.is_dir()]
            for entry in sorted(images.iterdir())
            if entry.is_dir()
        }
    except OSError as error:
        raise DataError(str(images), f"cannot be read: {error.strerror}", hint="check the path") from error
    by_site = {entry.name: sorted(one.name for one in classes) for entry, classes in inner.items() if classes}
    named = {name for names in by_site.values() for name in names} or {entry.name for entry in inner}
    classes = sorted(named - {image_folder.UNLABELLED})
    how = "images lie in DIR/SITE/CLASS/*.png, or in DIR/CLASS/*.png"
    if len(classes) < 2:
        raise DataError(str(images), "holds no folders of two classes or more", hint=how)
    if by_site:
        counts = {site: len(_images(images / site, classes)) for site in by_site}
        if not any(counts.values()):
            endings = ", ".join(image_folder.SUFFIXES)
            raise DataError(str(images), f"holds no images ({endings}) in its folders of folders", hint=how)
        note = f"the sites are the folders in {images}"
        if not target:  # of several with the fewest images, the first by name
            target = min(counts, key=lambda site: counts[site])
            note += f"; {target} has the fewest images and is the target, unless --target names another"
        _require_sites(sorted(counts), target, str(images), how)
        sources = tuple(site for site in sorted(counts) if site != target)
        largest = max(counts[site] for site in sources)
        rows = _labels_of(_images(images / target, classes))
        labelled = image_folder.UNLABELLED not in by_site[target]
        sites = _Sites(target, sources, str(images.absolute()), largest, rows, note, labelled=labelled)
    else:
        sites = _made_up_images(images, classes)
    sample = _images(images / sites.target if by_site else images, [*classes, image_folder.UNLABELLED])
    size, colour = _size_and_colour(sample[:20])
    options = "\n".join(
        [
            "[task.options]",
            f"classes = {toml_value(classes)}",
            f"size = {size}                 # side of the square that every image becomes, in pixels",
            f"colour = {toml_value(colour)}           # grey or rgb",
            *_split_lines(sites.target_labels),
        ]
    )
    heading = "The names of the classes and the size are common to all sites. Images stay where they are."
    return _make(folder, sites, image_folder.FACTORY, options, heading, holds="SITE/CLASS/*.png or *.jpg", rate=0.003)


def new_features(folder: Path, features: Path, target: str = "") -> NewFolder:
    """Make a folder whose federation fits a head to the features in ``features/SITE.safetensors`` or ``SITE.npz``.

    Raises:
        ConfigError: the folder is there already, or there is no site ``target``.
        DataError: a file cannot be read, is of another encoder than the others, or they are too few.
    """
    _name_of(folder)
    how = "features lie in DIR/SITE.safetensors or DIR/SITE.npz; `securefda features` writes such files"
    paths = sorted(path for suffix in SUFFIXES for path in features.glob(f"*{suffix}"))
    files = {path.stem: read_features(path) for path in paths}
    if not files:
        raise DataError(str(features), "holds no files of features", hint=how)
    rows = {site: len(file.features) for site, file in files.items()}
    lacking = {site for site, file in files.items() if file.labels is None or int(file.labels.min()) == NO_LABEL}
    note = f"the sites are the files in {features}"
    if not target:
        target = min(files, key=lambda site: (site not in lacking, rows[site]))
        has = "lacks labels" if target in lacking else "has the fewest rows"
        note += f"; {target} {has} and is the target, unless --target names another"
    _require_sites(sorted(files), target, str(features), how)
    labels_of = {site: file.labels for site, file in files.items() if file.labels is not None}
    _require_alike(features, "encoder", {site: file.encoder[:16] or "none" for site, file in files.items()})
    _require_alike(features, "width", {site: f"{file.features.shape[1]}" for site, file in files.items()})
    several = {site: 0 if labels.ndim == 1 else labels.shape[1] for site, labels in labels_of.items()}
    kinds = {
        site: ("names" if files[site].classes else "numbers") + (f", {count} of a row" if count else "")
        for site, count in several.items()
    }
    _require_alike(features, "labels", kinds)
    classes = sorted({name for file in files.values() for name in file.classes})
    count = max((several[site] or int(labels.max()) + 1 for site, labels in labels_of.items()), default=1)
    width = files[target].features.shape[1]
    options = [
        "[task.options]",
        f"classes = {toml_value(classes) if classes else count}",
        f"width = {width}                # features of a row",
        f"encoder = {toml_value(files[target].encoder)}"
        "  # its SHA-256, which every site's file must name; empty if that is not checked",
    ]
    labelled = target not in lacking
    if labelled:
        options.append("target-fraction = 0.8      # of the target's rows; on the others, the model is measured")
    sources = tuple(site for site in sorted(files) if site != target)
    largest = max(rows[site] for site in sources)
    sites = _Sites(target, sources, str(features.absolute()), largest, (), note, labelled=labelled)
    heading = "The encoder, and the names of the classes, are common to all sites. Features stay where they are."
    holds = " or ".join(f"SITE{suffix}" for suffix in SUFFIXES)
    factory = MULTI_LABEL_FEATURES if any(several.values()) else FEATURES
    return _make(folder, sites, factory, "\n".join(options), heading, holds=holds, one_round=True)


def _require_alike(features: Path, what: str, found: Mapping[str, str]) -> None:
    """Check that all sites' files have the same of something."""
    sites = {value: [site for site in found if found[site] == value] for value in found.values()}
    if len(sites) > 1:
        said = "; ".join(f"{printable(value)} ({names(those)})" for value, those in sites.items())
        hint = "make them all with the same encoder, and size, mean and deviation, or columns, of `securefda features`"
        raise DataError(str(features), f"the files differ in their {what}: {said}", hint=hint)


def _name_of(folder: Path) -> str:
    """Return the federation's name: that of the folder, which must not exist yet."""
    name = _site_id(folder.name)
    if not name:
        hint = "choose a name with letters or digits"
        raise ConfigError("NAME", f"{folder} has no name that a federation can have", hint=hint)
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigError("NAME", f"{folder} is there already, and nothing is overwritten", hint="choose another name")
    return name


def _site_id(text: str) -> str:
    """Return text as a site id: lowercase letters, digits and hyphens; empty if nothing is left."""
    small = text.lower().translate(UMLAUTS)
    ascii_only = unicodedata.normalize("NFKD", small).encode("ascii", "ignore").decode("ascii")
    return re.sub(r"[^a-z0-9]+", "-", ascii_only).strip("-")[:63].rstrip("-")


def _site_of(path: Path) -> str:
    """Return the site whose rows a file holds, or whose mapping it is, by its name."""
    return path.name.removesuffix(MAPPING_SUFFIX) if path.name.endswith(MAPPING_SUFFIX) else path.stem


def _without(table: Table, name: str) -> Table:
    """Return the table without the column that names the site, which no model may read."""
    name = plain(name)
    if name and name not in table.cells:
        hint = f"columns: {', '.join(table.cells)}"
        raise ConfigError(f"--site-column {name}", f"{table.path} has no such column", hint=hint)
    return replace(table, cells={each: cells for each, cells in table.cells.items() if each != name})


def _sites_of_table(file: Path, table: Table, read: TabularOptions, csv_format: CsvFormat, choices: Choices) -> _Sites:
    if choices.site_column:
        return _sites_of_column(table, read, csv_format, plain(choices.site_column), choices.target)
    site = _site_of(file)
    found, left_out = _beside(file, table, read, csv_format, choices.target)
    beside = {**found, site: Draft(table, "", ())}
    named = [*left_out[:_NAMED_FILES], *([f"{len(left_out) - _NAMED_FILES} more"] if left_out[_NAMED_FILES:] else [])]
    others = f". Not taken for sites: {', '.join(named)}" if named else ""
    target = choices.target or site
    if re.fullmatch(SITE_ID_PATTERN, site) and len(beside) >= FEWEST_SITES:
        _require_sites(sorted(beside), target, str(file.parent), "a site's file is SITE.csv, .xlsx or .parquet")
        sources = tuple(one for one in sorted(beside) if one != target)
        note = f"the sites are the files in {file.parent.absolute()} with the columns of {file.name}{others}"
        largest = max(len(beside[one].table) for one in sources)
        data_dir = str(file.parent.absolute())
        labelled = read.label.column in {*beside[target].table.cells, *beside[target].open}
        is_whole = labelled and not beside[target].open
        rows = beside[target].table.cells[read.label.column] if is_whole else ()
        mappings = {file.with_name(f"{one}{MAPPING_SUFFIX}"): draft.text for one, draft in beside.items() if draft.text}

        def write_mappings(_: Path) -> None:
            for path, text in mappings.items():
                with writing_errors(path), path.open("x", encoding="utf-8") as new:
                    new.write(text)

        write = write_mappings if mappings else None
        read_from = tuple(f"{one}: {_read_from(beside[one], one)}" for one in sorted(beside)) if mappings else ()
        tables = {one: beside[one].table for one in (target, *sources)}
        mapped = frozenset(one for one, draft in beside.items() if draft.text)
        return _Sites(target, sources, data_dir, largest, rows, note, write, labelled, read_from, tables, mapped)
    if choices.target:
        hint = f"--target needs --site-column, or three other files with these columns in {file.parent.absolute()}"
        raise ConfigError(f"--target {choices.target}", "there are no sites yet to choose from", hint=hint)
    if len(table) < _FEWEST_ROWS:
        raise DataError(str(file), f"has {len(table)} rows, and four made-up sites need {_FEWEST_ROWS} at least")
    order = random.Random(0).sample(range(len(table)), len(table))  # noqa: S311 - deals out rows, and hides none
    rows_of = {site: sorted(mine) for site, mine in _made_up(order).items()}
    note = (
        f"the four sites are made up: {DATA_FOLDER}/ holds a copy of the rows of {file.name}, dealt out by chance, so "
        f"no site differs from another. --site-column names a column that says where a row is from{others}"
    )
    return _dealt(table, read, csv_format, rows_of, target=_MADE_UP_SITES[0], note=note)


def _made_up(things: Sequence[_Thing]) -> dict[str, Sequence[_Thing]]:
    """Deal out shuffled things to the made-up sites."""
    ends = [sum(_MADE_UP_SHARES[:place]) * len(things) // sum(_MADE_UP_SHARES) for place in range(FEWEST_SITES + 1)]
    return {site: things[ends[place] : ends[place + 1]] for place, site in enumerate(_MADE_UP_SITES)}


def _sites_of_column(table: Table, read: TabularOptions, csv_format: CsvFormat, name: str, target: str) -> _Sites:
    rows_of: dict[str, list[int]] = {}
    for row, cell in enumerate(table.cells[name]):
        rows_of.setdefault(_site_id(cell), []).append(row)
    if "" in rows_of or len(rows_of) > _MOST_SITES:
        count = len(rows_of.get("", ()))
        why = f"{count} rows do not name their site" if count else f"has more than {_MOST_SITES} values"
        raise DataError(f"{table.path}, column {name}", why, hint="name a column with the site of each row")
    target = target or min(rows_of, key=lambda site: len(rows_of[site]))
    _require_sites(sorted(rows_of), target, f"column {name}", "each value is a site")
    note = f"the sites are the values of {name}: {DATA_FOLDER}/ holds a copy of the rows of {table.path.name}"
    dealt = _dealt(table, read, csv_format, rows_of, target=target, note=note)
    return replace(dealt, tables={site: table.part(rows_of[site]) for site in (target, *dealt.sources)})


def _require_sites(sites: Sequence[str], target: str, where: str, how: str) -> None:
    if target not in sites:
        raise ConfigError(f"--target {target}", "is no site here", hint=f"sites: {', '.join(sites)}")
    unfit = [site for site in sites if not re.fullmatch(SITE_ID_PATTERN, site)]
    if unfit:
        hint = "site ids have lowercase letters, digits and hyphens; rename it"
        raise DataError(where, f"{unfit[0]} cannot be a site id", hint=hint)
    if len(sites) < FEWEST_SITES:
        why = f"has {len(sites)} sites, and a federation with sums needs a target and three sources"
        raise DataError(where, why, hint=how)


def _beside(
    file: Path, example: Table, read: TabularOptions, csv_format: CsvFormat, target: str
) -> tuple[dict[str, Draft], list[str]]:
    """Return site id -> each table in the same folder with the columns of the task, and why others are left out.

    A target's table need not have the label.
    """
    found: dict[str, Draft] = {}
    left_out: list[str] = []
    endings = (*table_files.SUFFIXES, MAPPING_SUFFIX)
    others = sorted(path for path in file.parent.iterdir() if path.name.lower().endswith(endings))
    for site in dict.fromkeys(map(_site_of, others)):
        if site == _site_of(file):
            continue
        path = next(path for path in others if _site_of(path) == site)
        if not re.fullmatch(SITE_ID_PATTERN, site):
            left_out.append(f"{path.name} (its name is no site id: lowercase letters, digits and hyphens)")
            continue
        try:
            path = file_of_site(file.parent, site)
            if path.name.endswith(MAPPING_SUFFIX):
                draft = Draft(_read_as(path, csv_format), "", ())
            else:
                draft = draft_mapping(path, site, example, read, csv_format, may_lack_label=site == target)
        except ConfigError as error:
            left_out.append(f"{path.name} ({error.why})")
            continue
        wanted = {*read.read, *filter(None, [read.group]), *(() if site == target else read.label.columns)}
        if missing := sorted(wanted - draft.table.cells.keys() - {*draft.open}):
            left_out.append(f"{path.name} (has no column {missing[0]})")
        else:
            found[site] = draft
    return found, left_out


def _read_from(draft: Draft, site: str) -> str:
    """Describe how a site's file was read, and what of its new mapping is to be filled in."""
    if not draft.text:
        return draft.table.source
    still = f"; fill in {names(draft.open)}" if draft.open else ""
    return f"{draft.table.source}, guessed in {site}{MAPPING_SUFFIX}: look at it{still}"


def _dealt(
    table: Table,
    read: TabularOptions,
    csv_format: CsvFormat,
    rows_of: Mapping[str, Sequence[int]],
    *,
    target: str,
    note: str,
) -> _Sites:
    """Deal out the rows to sites, whose files only this user can read."""

    def write(folder: Path) -> None:
        data = folder / DATA_FOLDER
        data.mkdir(mode=0o700)
        for site, rows in rows_of.items():
            part = table.part(rows)
            descriptor = os.open(data / f"{site}.csv", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                lines = csv.writer(file, delimiter=csv_format.separator, lineterminator="\n")
                lines.writerow(part.cells)
                lines.writerows(zip(*part.cells.values(), strict=True))

    sources = tuple(site for site in sorted(rows_of) if site != target)
    largest = max(len(rows_of[site]) for site in sources)
    labels = [table.cells[read.label.column][row] for row in rows_of[target]]
    return _Sites(target, sources, DATA_FOLDER, largest, labels, note, write)


def _images(folder: Path, classes: Sequence[str]) -> list[Path]:
    paths = [path for name in classes if (folder / name).is_dir() for path in sorted((folder / name).iterdir())]
    return [path for path in paths if path.suffix.lower() in image_folder.SUFFIXES]


def _made_up_images(images: Path, classes: Sequence[str]) -> _Sites:
    paths = _images(images, classes)
    if len(paths) < _FEWEST_ROWS:
        why = f"has {len(paths)} images, and four made-up sites need {_FEWEST_ROWS} at least"
        raise DataError(str(images), why, hint="add images, or sort them by site: DIR/SITE/CLASS/*.png")
    random.Random(0).shuffle(paths)  # noqa: S311 - deals out images, and hides none
    dealt = _made_up(paths)

    def write(folder: Path) -> None:
        for site, mine in dealt.items():
            for path in mine:
                link = folder / DATA_FOLDER / site / path.parent.name / path.name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(path.absolute())

    note = f"the four sites are made up: {DATA_FOLDER}/ holds links to the images, dealt out by chance"
    target, *sources = _MADE_UP_SITES
    largest, rows = max(map(len, dealt.values())), _labels_of(dealt[target])
    return _Sites(target, tuple(sources), DATA_FOLDER, largest, rows, note, write)


def _labels_of(paths: Sequence[Path]) -> list[str]:
    return [path.parent.name for path in paths]


def _size_and_colour(paths: Sequence[Path]) -> tuple[int, str]:
    """Return a size to which no image must be enlarged, at most 64, and grey unless an image has colours."""
    sides, colours = [], False
    for path in paths:
        try:
            with Image.open(io.BytesIO(read_whole(path)), formats=("PNG", "JPEG")) as image:
                sides.append(max(image.size))
                colours = colours or (image.mode not in ("L", "LA", "1") and not image.mode.startswith("I"))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # as Pillow raises them
            raise DataError(str(path), "cannot be read as PNG or JPEG", hint="remove it, or save it again") from error
    smallest = min(sides, default=64)
    return min(64, max(8, smallest // 8 * 8)), "rgb" if colours else "grey"


def _make(
    folder: Path,
    sites: _Sites,
    factory: str,
    options: str,
    heading: str,
    *,
    holds: str = "",
    rate: float = 0.01,
    files: Mapping[str, str] | None = None,
    name: str = "",
    one_round: bool = False,
) -> NewFolder:
    """Write everything beside the folder's place, check it as far as possible without torch, then move it there."""
    name = name or _name_of(folder)
    federation = _render(
        "federation.toml.j2",
        heading=[line for text in (heading, f"Sites: {sites.note}.") for line in textwrap.wrap(text, 116)],
        name=name,
        target=sites.target,
        sources=list(sites.sources),
        factory=factory,
        data_dir=_seen_from(folder, sites.data_dir),
        holds=holds,
        options=options,
        learning_rate=rate,
        labelled=sites.labelled,
        one_round=one_round,
        target_batch=max(1, min(16, len(sites.target_labels) // 8)) if sites.target_labels else 16,
        max_samples=max(1000, 1000 * -(-sites.largest // 1000)),
    )
    test = f"test_{name.replace('-', '_')}.py"
    tests = _render("test_task.py.j2", labelled=sites.labelled, one_round=one_round)
    texts = {FEDERATION_FILE: federation, **(files or {}), test: tests, ".gitignore": _GIT_IGNORE}
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = folder.with_name(f".{folder.name}.{os.getpid()}")
        made.mkdir()
        try:
            for file, text in texts.items():
                (made / file).write_text(text, encoding="utf-8")
            config = load_federation(made / FEDERATION_FILE)
            policy = default_policy_text("each source", site_policy(config, sites.sources[0]))
            (made / POLICY_FILE).write_text(_POLICY_HEADING + policy, encoding="utf-8")
            if sites.write is not None:
                sites.write(made)
            made.rename(folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        hint = "go to a folder that you can write to, or free disk space"
        raise ConfigError("NAME", f"{folder} cannot be made: {error.strerror}", hint=hint) from error
    written = tuple(sorted({*texts, POLICY_FILE} - {".gitignore"}))
    notes = (sites.note,) if sites.labelled else (sites.note, _UNLABELLED.format(sites.target))
    return NewFolder(folder, written, sites.target, sites.sources, notes)


def _seen_from(folder: Path, data_dir: str) -> str:
    """Return the rows' folder as seen from the new one: a relative path if both lie in one folder, which may be
    moved.
    """
    together, rows = folder.parent.resolve(), Path(data_dir).resolve()
    if not Path(data_dir).is_absolute() or not rows.is_relative_to(together):
        return data_dir
    return (Path("..") / rows.relative_to(together)).as_posix()


_UNLABELLED = (
    "the rows of {} have no labels: the sources alone train (strategy.rule), and no accuracy is measured unless it has "
    "labelled test rows"
)
_POLICY_HEADING = """\
# What a source of this federation permits to begin with. The kits of `securefda federation init` hold the same, and
# each site changes its own. In words: securefda policy explain policy.toml federation.toml

"""


def _options_text(found: Guess, csv_format: CsvFormat, group: str, sites: _Sites) -> str:
    """Return the options of a tabular task, a line for each column, with the reason if it is not read."""
    label = found.label.model_dump(by_alias=True, exclude_defaults=True)
    separator = toml_value(csv_format.separator)
    lines = ["[task.options]", f"separator = {separator}         # this and the next two: how files are written"]
    lines.append(f"decimal = {toml_value(csv_format.decimal)}           # where no SITE{MAPPING_SUFFIX} says otherwise")
    lines.append(f"encoding = {toml_value(csv_format.encoding)}")
    if group:
        lines.append(f"group = {toml_value(plain(group))}  # its rows stay on one side of the split")
    lines += [*_split_lines(sites.target_labels), "", "[task.options.label]"]
    lines += [f"{key} = {toml_value(value)}" for key, value in label.items()]
    lines += ["", "[task.options.columns]   # type: number, category or ignored; missing: refuse, fill or drop-row"]
    for name, column in found.columns.items():
        remark = f"  # {found.remarks[name]}" if name in found.remarks else ""
        given = column.model_dump(by_alias=True, exclude_defaults=True)
        lines.append(f"{toml_key(name)} = {toml_value(given)}{remark}")
    return "\n".join(lines)


def _split_lines(labels: Sequence[str]) -> list[str]:
    """Return the lines that set the held-out share and, of classes, that each has it."""
    share = _LARGE_TEST_SHARE if len(labels) < _FEW_TARGET_ROWS else _TEST_SHARE
    lines = [f"test-share = {share}          # of the target's rows"]
    if 1 < len(set(labels)) <= _MOST_CLASSES:
        lines.append("stratify = true           # the same share of each class; noise at the target needs false")
    return lines


def _render(template: str, **values: object) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(  # noqa: S701 - TOML and Python, and no page
        loader=PackageLoader("securefda.local"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["toml"] = toml_value
    return environment.get_template(template).render(**values)
