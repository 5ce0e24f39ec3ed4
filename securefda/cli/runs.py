"""``securefda runs``, ``predict`` and ``export``: finished runs, and the model at the end of one."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from securefda.cli.options import OutputFormat
from securefda.cli.output import Format, print_result
from securefda.errors import ConfigError

app = typer.Typer(help="List, show, compare and delete runs.")

_OF_A_SOURCE = "this is a source's own record of its rounds; accuracy and settings are in the target's run folder"


Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder of the target.")]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", help="Folder of the task's files; default: the one that the run used.")
]


Options = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="An option of the task, e.g. task.options.token=...")
]
OptionsFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Settings with the options of the task, secrets too.")
]


TaskClass = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="PACKAGE.MODULE:CLASS",
        help="The task's class, where it does not come with securefda: its code runs here. Default: as the run says.",
    ),
]


class WhichModel(StrEnum):
    """The models that a run keeps."""

    LAST = "last"
    BEST = "best"
    ADAPTED = "adapted"


_WHICH = (
    "The model after the last round, the best one on the target's validation rows, or the last one adapted to the "
    "target's rows."
)


class ModelFormat(StrEnum):
    """The formats in which a model can be exported."""

    ONNX = "onnx"
    TORCHSCRIPT = "torchscript"


@app.command("ls")
def ls(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to look, with its sub-folders.")] = Path(
        "runs"
    ),
    output: OutputFormat = Format.TXT,
) -> None:
    """List the runs in a folder, the latest last."""
    from securefda.operations.run_list import runs_below, runs_table

    runs = runs_below(folder)
    text = runs_table(runs) if runs else f"no runs in {folder}"
    print_result(output, {"runs": [run.as_json() for run in runs]}, text)


@app.command("show")
def show(run: Run, output: OutputFormat = Format.TXT) -> None:
    """Show what a run came to; of one that goes on, what there is so far. At a source, its own record."""
    from securefda.operations.run_folder import read_run, summary_of
    from securefda.operations.run_list import found_run, runs_table
    from securefda.operations.summary_text import run_text

    summary = read_run(run).summary
    if summary is None:
        one = found_run(run)
        is_source = one.role == "source"
        why = _OF_A_SOURCE if is_source else "no summary yet: the run goes on, or it was killed"
        print_result(output, one.as_json(), f"{runs_table([one])}\n\n{why}")
    else:
        print_result(output, dict(summary), run_text(summary_of(summary), run))


@app.command("compare")
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN...", help="Two or more run folders.")],
    output: OutputFormat = Format.TXT,
) -> None:
    """Show runs side by side: what each came to, and the settings in which they differ."""
    from securefda.operations.run_list import comparison, differences, found_run

    if len(runs) < 2:
        raise ConfigError("RUN", "one run alone has nothing to be compared with", hint="name two or more run folders")
    compared = [found_run(run) for run in runs]
    data = {"runs": [run.as_json() for run in compared], "differences": differences(compared)}
    print_result(output, data, comparison(compared))


@app.command("rm")
def rm(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders to delete.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    output: OutputFormat = Format.TXT,
) -> None:
    """Delete runs, with models, logs and kits. It asks first; a folder that holds anything else is left as it is."""
    from securefda.operations.run_list import delete_run, require_deletable

    for run in runs:
        require_deletable(run)
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(
                "--yes", "deleting needs confirmation, and there is no terminal to ask on", hint="add --yes to delete"
            )
        if not typer.confirm(f"delete {', '.join(map(str, runs))}?", err=True):
            print_result(output, {"deleted": []}, "nothing was deleted")
            return
    for run in runs:
        delete_run(run)
    print_result(output, {"deleted": [str(run) for run in runs]}, f"deleted {', '.join(map(str, runs))}")


def predict(
    run: Run,
    data: Annotated[
        Path, typer.Option("--data", metavar="PATH", help="Rows without labels, in the form that the task reads.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE.csv", help="Write a CSV file; default: print.")
    ] = None,
    which: Annotated[
        WhichModel | None,
        typer.Option("--model", help=f"{_WHICH} Default: the adapted one if the run kept it, else the last."),
    ] = None,
    head: Annotated[
        bool,
        typer.Option(
            "--with-head/--without-head", help="Whether a head of the target's own (`strategy.head`) has its say."
        ),
    ] = True,
    config: OptionsFile = None,
    options: Options = [],
    data_dir: DataDir = None,
    task_class: TaskClass = "",
    output: OutputFormat = Format.TXT,
) -> None:
    """Predict labels of your own rows with the model of a run.

    It prints CSV. Everything stays on this machine.
    """
    from securefda.disk import require_new
    from securefda.operations.run_folder import replace_file
    from securefda.operations.trained import Which, as_csv, predict, require_trained_layers, trained_model
    from securefda.site.config.load import task_options

    if out is not None:
        require_new("--out", out)
    require_trained_layers(run)
    given = task_options(config, options)
    chosen: Which | None = None if which is None else which.value
    task, model = trained_model(run, which=chosen, head=head, options=given, data_dir=data_dir, task=task_class)
    rows = predict(task, model, data)
    text = as_csv(rows)
    if out is not None:
        replace_file(out, text.encode())
        text = f"{len(rows)} predictions in {out}\n"
    print_result(output, {"rows": rows, "out": None if out is None else str(out)}, text.rstrip("\n"))


def export(
    run: Run,
    form: Annotated[ModelFormat, typer.Option("--format", help="Form of the file.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Default: model.onnx or model.pt in the run folder.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="PATH", help="A few rows to trace the model with; default: the target's own."),
    ] = None,
    which: Annotated[WhichModel, typer.Option("--model", help=_WHICH)] = WhichModel.LAST,
    config: OptionsFile = None,
    options: Options = [],
    data_dir: DataDir = None,
    task_class: TaskClass = "",
) -> None:
    """Write the model of a run for other software.

    It checks that the file gives the same outputs. A head of the target's own (`strategy.head`) is left out: it is rows
    of the target. Prefer ONNX: torch still reads TorchScript, but has deprecated it.
    """
    from securefda.disk import require_new
    from securefda.operations.model_card import write_card
    from securefda.operations.trained import export, require_releasable, require_trained_layers, trained_model
    from securefda.site.config.load import task_options

    if out is not None:
        require_new("--out", out)
    require_trained_layers(run)
    given = task_options(config, options)
    if which is WhichModel.ADAPTED:
        require_releasable(run)
    task, model = trained_model(run, which=which.value, head=False, options=given, data_dir=data_dir, task=task_class)
    file = out or run / ("model.onnx" if form is ModelFormat.ONNX else "model.pt")
    says = export(task, model, form.value, file, data)
    write_card(run, beside=file)
    print_result(Format.TXT, {}, f"{file} {says}")
