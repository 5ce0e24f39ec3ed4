"""``securefda new``: a folder to start from, on one's own rows."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from securefda.cli.options import OutputFormat
from securefda.cli.output import Format, print_result
from securefda.errors import ConfigError
from securefda.text import quoted

if TYPE_CHECKING:
    from securefda.local.new_folder import NewFolder


def new(
    name: Annotated[Path, typer.Argument(metavar="NAME", help="Folder to make; also the federation's name.")],
    tabular: Annotated[
        Path | None,
        typer.Option("--tabular", metavar="FILE", help="Learn from tables like this one: .csv, .xlsx, .parquet."),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option("--images", metavar="DIR", help="Learn from the images in DIR/SITE/CLASS or DIR/CLASS."),
    ] = None,
    features: Annotated[
        Path | None,
        typer.Option("--features", metavar="DIR", help="Fit a head to the features in DIR/SITE.safetensors or *.npz."),
    ] = None,
    label: Annotated[str, typer.Option("--label", help="Column to predict; default: the last one.")] = "",
    event: Annotated[
        str,
        typer.Option("--event", help="Where --label is a time: column that is 1 if the event happened then, else 0."),
    ] = "",
    group: Annotated[
        str, typer.Option("--group", help="Column that names what rows belong together, such as the patient.")
    ] = "",
    site_column: Annotated[str, typer.Option("--site-column", help="Column that says where each row is from.")] = "",
    target: Annotated[str, typer.Option("--target", help="The site that the model is for.")] = "",
    separator: Annotated[str, typer.Option("--separator", help="Between cells; default: as the file shows.")] = "",
    decimal: Annotated[str, typer.Option("--decimal", help="Decimal mark; default: as the file shows.")] = "",
    encoding: Annotated[str, typer.Option("--encoding", help="Of the file; default: as the file shows.")] = "",
    output: OutputFormat = Format.TXT,
) -> None:
    """Make a folder with a federation on your own rows.

    It has a policy, too, and a test that passes. With --tabular, --images or --features the task is built in, and there
    is no code to write. Without, it is a small Python class to fill in. Nothing is ever overwritten.
    """
    of_tables = {
        "--label": label,
        "--event": event,
        "--group": group,
        "--site-column": site_column,
        "--separator": separator,
        "--decimal": decimal,
        "--encoding": encoding,
    }
    ways = {"--tabular": tabular, "--images": images, "--features": features}
    given = [option for option, path in ways.items() if path is not None]
    if len(given) > 1:
        raise ConfigError(given[1], f"does not go with {given[0]}", hint="make two folders")
    for option, value in (*of_tables.items(), ("--target", target)):
        if value and tabular is None and (not given or option in of_tables):
            raise ConfigError(option, "is of a table", hint="add --tabular FILE")
    if event and not label:
        raise ConfigError("--event", "needs the column of the times", hint="name it by --label")
    if decimal not in ("", ".", ","):
        raise ConfigError("--decimal", f"{decimal!r} is no decimal mark", hint="name . or ,")
    separator = "\t" if separator == "\\t" else separator
    if separator and (len(separator) != 1 or separator in '"\r\n'):
        raise ConfigError("--separator", f"{separator!r} is not one character", hint="name , or ; or \\t")
    from securefda.local.new_folder import Choices, new_features, new_images, new_plain, new_tabular

    if tabular is not None:
        made = new_tabular(
            name, tabular, Choices(label, event, group, site_column, target, separator, decimal, encoding)
        )
    elif images is not None:
        made = new_images(name, images, target)
    elif features is not None:
        made = new_features(name, features, target)
    else:
        made = new_plain(name)
    print_result(output, asdict(made), _text(made))


def _text(made: NewFolder) -> str:
    notes = [f"  {note}" for note in made.notes]
    return "\n".join(
        [
            f"made {made.folder}: {', '.join(made.files)}",
            f"target {made.target}, sources {', '.join(made.sources)}",
            *notes,
            *(["", "look at this:", *(f"  {line}" for line in made.look_at)] if made.look_at else []),
            "",
            "next:",
            f"  cd {quoted(made.folder)}",
            "  securefda task check federation.toml        # one batch of every site",
            "  securefda run federation.toml               # train here, one process per site",
            "  securefda policy explain policy.toml federation.toml",
            "  pytest",
        ]
    )
