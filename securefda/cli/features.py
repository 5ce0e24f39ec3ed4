"""``securefda features``: what a frozen encoder makes of a site's images, or of the rows of its table."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from securefda.cli.options import OutputFormat, interruptible, numbers
from securefda.cli.output import Format, print_result, say
from securefda.errors import ConfigError
from securefda.text import counted, duration, printable

_PROGRESS_S = 5.0


class Device(StrEnum):
    """The values of ``--device``."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    MPS = "mps"


def features(
    data: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGES|TABLE",
            help="Folder of CLASS/*.png or *.jpg, or images without labels; or a table in *.csv, *.xlsx or *.parquet.",
        ),
    ],
    encoder: Annotated[
        str,
        typer.Option(
            "--encoder",
            metavar="PACKAGE.MODULE:FUNCTION|FILE.pt",
            help="Function that returns a torch.nn.Module, or a TorchScript file. Its code runs here: trust it.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE.safetensors", help="File to write.")],
    size: Annotated[int, typer.Option("--size", min=8, max=2048, help="Side of the square images, in pixels.")] = 224,
    mean: Annotated[
        str, typer.Option("--mean", metavar="M[,M,M]", help="Of pixels from 0 to 1; also for red, green, blue.")
    ] = "0.5",
    std: Annotated[str, typer.Option("--std", metavar="S[,S,S]", help="Pixels become (x - mean) / std.")] = "0.5",
    label: Annotated[
        str, typer.Option("--label", metavar="NAME", help="Of a table: column of the classes; default: no labels.")
    ] = "",
    column: Annotated[
        list[str] | None,
        typer.Option(
            "--column",
            metavar="NAME",
            help="Of a table: column that the encoder sees; repeatable. Default: all others.",
        ),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Images or rows encoded together.")] = 64,
    device: Annotated[Device, typer.Option("--device", help="Where to encode, as training.device.")] = Device.AUTO,
    output: OutputFormat = Format.TXT,
) -> None:
    """Encode a site's images, or its table, into a file of features.

    The task `features` reads it. Called again, it goes on where it was.
    """
    from securefda.disk import require_new

    if out.suffix != ".safetensors":
        raise ConfigError("--out", f"{out.name} is not named *.safetensors", hint="the task reads files by their names")
    if out.parent.is_dir():  # else the first batch makes it
        require_new("--out", out)
    means, stds = numbers("--mean", mean, float), numbers("--std", std, float)
    from securefda.operations.encode import Encoder, Images, Inputs, Scaling, TableRows, encode, is_table, load_encoder

    scaling, of_table = Scaling(size, means, stds), is_table(data)
    of_others: dict[str, object] = {"--size": size != 224, "--mean": mean != "0.5", "--std": std != "0.5"}
    if not of_table:
        of_others = {"--label": label, "--column": column}
    if unfit := [option for option, given in of_others.items() if given]:
        why = (
            f"is of {'images' if of_table else 'a table'}, and {data} is named as {'a table' if of_table else 'images'}"
        )
        raise ConfigError(unfit[0], why, hint="leave it out")
    with interruptible(f"what was encoded is kept in {out}.parts; the same command goes on"):
        inputs: Inputs = TableRows(data, label, column or ()) if of_table else Images(data, scaling)
        made = Encoder(load_encoder(encoder), inputs.description(), device.value)
        encoded = encode(inputs, made, out, batch=batch, progress=_Progress(inputs.kind))
    result = {
        "out": str(out),
        "encoder": made.digest,
        "rows": encoded.rows,
        "unlabelled": encoded.unlabelled,
        "width": encoded.width,
        "classes": list(encoded.classes),
        "encoded_before": encoded.before,
    }
    classes = f"{encoded.unlabelled} without a label; classes {printable(', '.join(encoded.classes)) or 'none'}"
    lines = [f"{out}: {counted(encoded.rows, 'row')} of {encoded.width} features, {classes}"]
    lines += [f"{encoded.before} of them had been encoded before"] if encoded.before else []
    lines += [
        "",
        "in [task.options], the same at every site:",
        f"width = {encoded.width}",
        f'encoder = "{made.digest}"',
    ]
    print_result(output, result, "\n".join(lines))


class _Progress:
    """Says now and then how far it is."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._began = self._said = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now - self._said >= _PROGRESS_S and done < total:
            self._said = now
            left = (now - self._began) / done * (total - done)
            say(f"[{done}/{total}] {self._kind} encoded, about {duration(left)} left")
