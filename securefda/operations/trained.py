"""The model at the end of a run: loading it, predicting with it, and exporting it to other software.

task, model = trained_model("runs/study")
probabilities = task.predictions(model(task.inputs_from(Path("patients.csv"))))
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load
from torch import Tensor, nn

from securefda.disk import MAX_FILE_BYTES, read_whole
from securefda.errors import ConfigError, DataError
from securefda.operations.records import best_round, is_shipped
from securefda.operations.run_folder import (
    ADAPTED_FILE,
    BEST_FILE,
    HEAD_FILE,
    METRICS_FILE,
    MODEL_FILE,
    SUMMARY_FILE,
    RunRecord,
    read_run,
    replace_file,
)
from securefda.protocol.encoding import vector_to_wire
from securefda.rules import Rule
from securefda.rules.strategy import Head
from securefda.tasks import Inputs, Samples, Task, TaskSettings, load_task, task_class, task_code, unlabelled_target
from securefda.tasks.inputs import batched, in_memory, joined, map_tensors, named_tensors, row_count, take, with_tensors
from securefda.tasks.prepared_table import UNKNOWN, PreparedTable
from securefda.tasks.stand_in import StandIn
from securefda.tasks.tabular import Tabular
from securefda.text import counted, quoted
from securefda.training import build_model, derive_seed, layer_table, model_to_vector
from securefda.training.batch_norm import running_statistics
from securefda.training.neighbours import KnnModel, KnnSettings

_BATCH_ROWS = 512
_FORMULA = re.compile(r"[=@\t\r]|[+-](?![\d.,]*$)")
"""The beginning of a formula; a number with its sign is none."""
_FETCH = "fetch the run folder again"


Which = Literal["last", "best", "adapted"]
"""The model after the last finished round, the one that did best on the target's validation rows, or the last one as
adapted to the target's rows."""


def trained_model(
    run: Path | str,
    *,
    which: Which | None = None,
    head: bool = True,
    options: Mapping[str, Any] = MappingProxyType({}),
    data_dir: Path | None = None,
    task: str = "",
) -> tuple[Task, nn.Module]:
    """Return the task of a run and its common model, in evaluation mode on the CPU.

    The folder may be somebody else's. No code runs because of what it says: a class that does not come with securefda
    is imported only if ``task`` names it.

    Where the target's own rows have a say (`strategy.head = "knn"`, or the rule `knn_per`), it is a ``KnnModel``:
    its outputs are logarithms of the probabilities of both, and its ``model`` is the common one.

    Args:
        run: the target's run folder, with its summary.
        which: of its models; None for the adapted one where the run kept one, else the last.
        head: whether the target's rows have their say; False for the common model alone.
        options: of the task, over those in the summary, which leaves out options whose name marks a secret.
        data_dir: for the task, where its files are elsewhere now; None for the folder that the run used.
        task: its class, as ``package.module:Class``; empty for the one that the summary names.

    Raises:
        ConfigError: there is no finished round in ``run``, its model file and summary do not belong together,
            ``data_dir`` is no folder, or the summary names a class that does not come with securefda.
        DataError: the task cannot be built.
        OSError: a file is unreadable, no regular file, or larger than it can be.
    """
    run = Path(run)
    if data_dir is not None and not data_dir.is_dir():  # said here, for a task may read none of its files
        why = f"{data_dir} is {'no folder' if data_dir.exists() else 'missing'}"
        raise ConfigError("--data-dir", why, hint="name the folder of the task's files")
    record = read_run(run)
    summary = record.summary
    setting = (summary or {}).get("setting")
    if summary is None or setting is None:
        why = "has no summary that says how the task was set up"
        raise ConfigError(str(run), why, hint="name the target's run folder, of a run that has ended")
    file, digest, named = _file_of(which, record, summary)
    if not file.is_file() or not digest:
        raise ConfigError(str(file), "there is no model of a finished round", hint=_FETCH)
    for name in setting.get("secret_options", []):
        if not _has(options, name):
            why = "this task takes it, and the summary of the run leaves it out, as a secret"
            hint = f"name the settings file with --config FILE, or --set task.options.{name}=VALUE"
            raise ConfigError(f"task.options.{name}", why, hint=hint)
    place = data_dir or (Path(setting["data_dir"]) if setting["data_dir"] else None)
    factory = _class_of(summary["task"], task, run)
    built = load_task(
        factory,
        TaskSettings(
            target=setting["target"],
            sources=tuple(setting["sources"]),
            seed=setting["seed"],
            data_dir=place,
            options=_with(setting["task_options"], options),
            labelled_target=setting["training"].get("labels", "given") == "given",
        ),
    )
    model = build_model(built, derive_seed(setting["seed"], "model"))
    largest = sum(tensor.nbytes for tensor in model.state_dict().values()) + MAX_FILE_BYTES
    tensors = read_tensors(file, largest)
    expected = dict(layer_table(model)) | {
        name: tuple(statistic.shape) for name, statistic in running_statistics(model).items()
    }
    if {name: tuple(tensor.shape) for name, tensor in tensors.items()} != expected:
        raise ConfigError(str(file), f"has other layers than the model of {factory}", hint=_FETCH)
    model.load_state_dict(tensors, strict=False)  # what is not trained is as the task makes it
    if sha256(vector_to_wire(model_to_vector(model))).hexdigest() != digest:
        hint = f"{_FETCH}: model and summary must be of one moment"
        raise ConfigError(str(file), f"is not the model that {named} names", hint=hint)
    model.eval()
    strategy = summary["strategy"]
    if not head or (strategy.get("rule") != Rule.KNN_PER and strategy.get("head", Head.NONE) == Head.NONE):
        return built, model
    said = KnnSettings(*(strategy[f"knn-{one.name}"] for one in fields(KnnSettings) if f"knn-{one.name}" in strategy))
    with task_code(type(built), "the model"):
        return built, KnnModel(model, _rows_of(run / HEAD_FILE, summary["run_id"]), said).eval()


def require_trained_layers(run: Path) -> None:
    """Check that the model of a run can predict: under fedrep, the last layers stay at the sites.

    Raises:
        ConfigError: the run's rule is fedrep, so the file has these layers as they were before the first round.
    """
    if ((read_run(run).summary or {}).get("strategy") or {}).get("rule") == Rule.FEDREP:
        why = f"is of {Rule.FEDREP}: the last layers stayed at each site, and its model has them untrained"
        raise ConfigError(str(run), why, hint="in Python, securefda.Run.open(...).model has the layers before them")


def read_tensors(file: Path, largest: int = MAX_FILE_BYTES) -> dict[str, Tensor]:
    """Return the layers in a model file by name.

    Raises:
        ConfigError: it is no such file.
        OSError: it is unreadable, no regular file, or larger than ``largest`` bytes.
    """
    try:
        return load(read_whole(file, largest))
    except SafetensorError as error:
        raise ConfigError(str(file), f"is no model file: {error}", hint=_FETCH) from error


def _file_of(which: Which | None, record: RunRecord, summary: Mapping[str, Any]) -> tuple[Path, str | None, str]:
    """Return the file of a model, its digest, and what names that."""
    run, adapted = record.path, summary.get("adapted")
    if which == "best":
        best = best_round(record.rounds)
        if best is None and summary.get("best"):
            raise ConfigError(str(run / METRICS_FILE), "lacks the round of the best model", hint=_FETCH)
        if best is None:
            hint = "--model last takes the last one; strategy.validation-share has the next run keep the best"
            raise ConfigError("--model best", f"{run} chose no best model", hint=hint)
        return run / BEST_FILE, best.get("model_digest"), f"the line of round {best['round']}"
    if adapted and adapted["kept"] and which != "last":
        return run / ADAPTED_FILE, adapted["digest"], "the summary"
    if which == "adapted":
        why = f"{run} kept none: the last model has the higher score" if adapted else f"{run} adapted no model"
        hint = "" if adapted else '; training.adapt = "consistency" has the next run adapt it'
        raise ConfigError("--model adapted", why, hint=f"--model last takes the last one{hint}")
    return run / MODEL_FILE, summary["model_digest"], "the summary"


def require_releasable(run: Path) -> None:
    """Check that the target's settings let its adapted model be exported; do nothing where there is none.

    Raises:
        ConfigError: ``model.release-adapted`` is false.
    """
    adapted = (read_run(run).summary or {}).get("adapted")
    if adapted and adapted["kept"] and not adapted["release"]:
        why = "is false in this run: the adapted model depends on the target's rows, without noise"
        hint = "--model last exports the last one; or set it to true at the target and start the aggregator again"
        raise ConfigError("model.release-adapted", why, hint=hint)


def _class_of(named: str, given: str, run: Path) -> str:
    """Return the class of the task: the one that the user gives, else the one that the folder names.

    Raises:
        ConfigError: it is the folder's alone and does not come with securefda: the folder may be made for a module
            beside it, or for one that is installed. Or it imports a class that its options name.
    """
    if not given and not is_shipped(named):
        shown = ascii(named)[1:-1]  # not letters that look like those of another name
        why = f"names {shown}, a task that does not come with securefda"
        hint = f"its code would run here; if you trust it, add --task {quoted(shown)} (in Python, task={named!a})"
        raise ConfigError(str(run / SUMMARY_FILE), why, hint=hint)
    if issubclass(task_class(given or named), StandIn):
        raise ConfigError(str(run), "is of a trial on other rows, whose model is of no use", hint="name another run")
    return given or named


def _rows_of(file: Path, run_id: str) -> Samples:
    """Read the target's labelled rows that a run kept for predictions beside its model."""
    if not file.is_file():
        why = "there are no rows of the target, which have a say in what this run predicts"
        raise ConfigError(
            str(file), why, hint=f"{_FETCH}, or take the common model alone: --without-head, in Python head=False"
        )
    try:
        tensors = load(read_whole(file))
        with safe_open(file, "pt") as opened:
            named = (opened.metadata() or {}).get("run")
        if named != run_id:
            raise ConfigError(str(file), "is of another run than the summary", hint=_FETCH)
        return Samples(tensors["features"], tensors["labels"])
    except (SafetensorError, KeyError, DataError) as error:
        raise ConfigError(str(file), f"holds no labelled rows: {error}", hint=_FETCH) from error


def _has(options: Mapping[str, Any], dotted: str) -> bool:
    name, _, rest = dotted.partition(".")
    inner = options.get(name)
    return name in options and (not rest or (isinstance(inner, Mapping) and _has(inner, rest)))


def _with(known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Merge ``given`` over ``known``, tables recursively."""
    both = dict(known)
    for name, value in given.items():
        before = known.get(name)
        is_table = isinstance(value, Mapping) and isinstance(before, Mapping)
        both[name] = _with(before, value) if is_table else value  # type: ignore[arg-type]  # both are tables then
    return both


def predict(task: Task, model: nn.Module, data: Path) -> list[dict[str, str | float]]:
    """Predict every row of ``data``, a file or folder in the task's own form, in its order.

    Where the task names rows, as files of images, each is a ``name`` first.

    Raises:
        ConfigError: the task does not read rows without labels.
        DataError: a row is unfit, or the task's or the model's own code fails.
    """
    with task_code(type(task), "inputs_from"):
        inputs = task.inputs_from(data)
    with task_code(type(task), "input_names"):
        names = task.input_names(data)
    if names and len(names) != row_count(inputs):
        raise DataError(
            f"task {type(task).__name__}", f"names {counted(len(names), 'row')}, and reads {row_count(inputs)}"
        )
    outputs = outputs_of(task, model, inputs)
    with task_code(type(task), "predictions"):
        predictions = task.predictions(outputs)
    return [{"name": name, **row} for name, row in zip(names, predictions, strict=True)] if names else predictions


def outputs_of(task: Task, model: nn.Module, inputs: Inputs) -> Inputs:
    """Return what a model in evaluation mode gives for inputs (n, ...), on the CPU, a part of the rows at a time.

    Raises:
        DataError: the model's own code fails.
    """
    with torch.no_grad(), task_code(type(task), "the model"):
        return joined([model(in_memory(part)) for part in batched(inputs, _BATCH_ROWS)])


def as_csv(rows: Sequence[dict[str, str | float]]) -> str:
    """Return rows as CSV with a header; the first column counts them from 1.

    An apostrophe goes before text that a spreadsheet would take for a formula, such as a class called ``=A1``.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, ["row", *map(_cell, rows[0] if rows else ())], lineterminator="\n")
    writer.writeheader()
    writer.writerows(
        {"row": number} | {_cell(name): _cell(value) for name, value in row.items()}
        for number, row in enumerate(rows, start=1)
    )
    return text.getvalue()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def export(task: Task, model: nn.Module, form: str, out: Path, data: Path | None = None) -> str:
    """Export the model, check that the file gives the model's own outputs, and return what inputs it takes.

    ONNX of a `Tabular` task takes the raw columns by name, and holds their preparation.

    Args:
        task: of the run.
        model: in evaluation mode.
        form: `onnx` or `torchscript`.
        out: the file.
        data: rows without labels as for :func:`predict`; None for the target's own test rows, or training rows where
            it has no test rows.

    Raises:
        ConfigError: a package is missing, or the model cannot be exported; ``out`` is not written then.
        DataError: there are no rows to trace the model with.
    """
    if data:
        with task_code(type(task), "inputs_from"):
            rows = task.inputs_from(data)
    else:
        given, test = unlabelled_target(task)
        rows = (test or given).features
    example: Inputs = in_memory(take(rows, slice(2)))
    if row_count(example) == 1:
        example = take(example, [0, 0])  # a batch of one is taken for a constant
    with torch.no_grad():
        wanted = model(example)
    exported, categories = model, dict[str, dict[str, int]]()
    if isinstance(task, Tabular) and form == "onnx":
        exported = prepared = PreparedTable(model, task.options)
        example, categories = prepared.columns_of(example), prepared.places
    flat = _Flat(exported, example).eval()
    inputs, named_outputs = named_tensors(example, "features"), named_tensors(wanted, "outputs")
    with _quiet():
        if form == "onnx":
            told = {  # for programs: classes and features, in the order of their numbers
                "task": f"{type(task).__module__}:{type(task).__qualname__}",
                "classes": list(task.class_names()),
                "features": list(task.feature_names()),
            }
            content, found = _onnx(flat, inputs, list(named_outputs), categories, told)
        else:
            content, found = _torchscript(flat, inputs)
    for tensor, own in zip(found, named_outputs.values(), strict=True):
        if not np.allclose(tensor, own.numpy(), rtol=1e-4, atol=1e-5):
            raise ConfigError("--format", f"{form} does not give the outputs of the model, so nothing was written")
    replace_file(out, content)
    takes = [_described(name, tensor, is_text=name in categories) for name, tensor in inputs.items()]
    return f"takes {', '.join(takes)}; gives {', '.join(_described(*output) for output in named_outputs.items())}"


class _Flat(nn.Module):
    """A model as exporters take it: one tensor after the other in, a tuple of tensors out; a single one stays as it is.

    Args:
        model: takes and gives a tensor, or dicts or tuples of tensors.
        example: inputs in the model's form.
    """

    def __init__(self, model: nn.Module, example: Inputs) -> None:
        super().__init__()
        self.model, self._form = model, map_tensors(lambda _: None, example)

    def forward(self, *tensors: Tensor) -> Inputs:
        outputs = self.model(with_tensors(self._form, tensors))
        return outputs if isinstance(outputs, Tensor) else tuple(named_tensors(outputs, "").values())


def _described(name: str, tensor: Tensor, *, is_text: bool = False) -> str:
    kind = "text" if is_text else str(tensor.dtype).removeprefix("torch.")
    return f"`{name}` ({', '.join(map(str, ('rows', *tensor.shape[1:])))}) {kind}"


def _onnx(
    model: nn.Module,
    given: Mapping[str, Tensor],
    outputs: Sequence[str],
    categories: Mapping[str, Mapping[str, int]],
    told: Mapping[str, Any],
) -> tuple[bytes, list[Any]]:
    """Return the file, and what it gives for the inputs ``given``.

    ``categories`` has the columns that the file takes as text, and the places that stand for it in ``given``.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401 - the exporter of torch needs it, and says so in a page of text
        from onnx.reference import ReferenceEvaluator
    except ImportError as error:
        raise _missing("onnx", error) from error
    try:
        program = torch.onnx.export(
            model,
            tuple(given.values()),
            input_names=[f"input-{place}" for place in range(len(given))],
            output_names=list(outputs),
            dynamic_shapes=(tuple({0: torch.export.Dim("rows")} for _ in given),),
            dynamo=True,
            verbose=False,
        )
    except Exception as error:  # of whatever kind its many stages raise
        raise _cannot("onnx", error) from error
    if program is None:
        raise ConfigError("--format", "onnx: the exporter gave nothing")
    proto = program.model_proto
    _strip(proto)
    _name_inputs(proto, list(given), categories)
    proto.metadata_props.add(key="securefda", value=json.dumps(told, ensure_ascii=False))
    onnx.checker.check_model(proto)
    texts = {
        name: {place: text for text, place in reversed(list(places.items()))} for name, places in categories.items()
    }
    fed = {
        name: np.array([[texts[name][place]] for place in tensor[:, 0].tolist()], dtype=object)
        if name in categories
        else tensor.numpy()
        for name, tensor in given.items()
    }
    found: Any = ReferenceEvaluator(proto).run(None, fed)
    return proto.SerializeToString(), found


def _strip(message: Any) -> None:
    """Delete what the exporter adds for debugging, everywhere in a file: paths and lines of the user's source."""
    for field in list(message.DESCRIPTOR.fields_by_name):
        if field in ("doc_string", "metadata_props"):
            message.ClearField(field)
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for part in [value] if hasattr(value, "ListFields") else value:
                _strip(part)


def _name_inputs(proto: Any, names: Sequence[str], categories: Mapping[str, Mapping[str, int]]) -> None:
    """Give the inputs of a file their names; those of categories take text, which a node of its own makes places of."""
    from onnx import TensorProto, helper

    old = [value.name for value in proto.graph.input]
    renamed = dict(zip(old, names, strict=True))
    for value in proto.graph.input:
        value.name = renamed[value.name]
    encoders = []
    for name, places in categories.items():
        value = next(value for value in proto.graph.input if value.name == name)
        value.type.tensor_type.elem_type = TensorProto.STRING
        inside = next(before for before, after in renamed.items() if after == name)
        encoders.append(
            helper.make_node(
                "LabelEncoder",
                [name],
                [inside],
                domain="ai.onnx.ml",
                keys_strings=list(places),
                values_int64s=list(places.values()),
                default_int64=UNKNOWN,
            )
        )
    direct = {before: after for before, after in renamed.items() if after not in categories}
    for node in proto.graph.node:
        for place, name in enumerate(node.input):
            node.input[place] = direct.get(name, name)
    nodes = [*encoders, *proto.graph.node]
    proto.graph.ClearField("node")
    proto.graph.node.extend(nodes)
    if encoders:
        proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))


def _torchscript(model: nn.Module, given: Mapping[str, Tensor]) -> tuple[bytes, list[Any]]:
    """Return the file, without the paths and lines of the user's source, and what it gives for the inputs."""
    example = tuple(given.values())
    try:
        traced = torch.jit.trace(model, example)  # type: ignore[no-untyped-call]
        content, stripped = io.BytesIO(), io.BytesIO()
        torch.jit.save(traced, content)
        with zipfile.ZipFile(content) as whole, zipfile.ZipFile(stripped, "w") as kept:
            for entry in whole.infolist():
                if not entry.filename.endswith(".debug_pkl"):
                    kept.writestr(entry.filename, whole.read(entry))
        again = torch.jit.load(io.BytesIO(stripped.getvalue()))  # type: ignore[no-untyped-call]
        with torch.no_grad():
            outputs = again(*example)
        tensors = [outputs] if isinstance(outputs, Tensor) else outputs
        return stripped.getvalue(), [tensor.numpy() for tensor in tensors]
    except Exception as error:  # tracing runs the model's own code
        raise _cannot("torchscript", error) from error


def _missing(extra: str, error: ImportError) -> ConfigError:
    hint = f"pip install 'securefda[{extra}]'"
    return ConfigError("--format", f"{extra} needs the package {error.name}, which is not installed", hint=hint)


def _cannot(form: str, error: Exception) -> ConfigError:
    words = " ".join(str(error).split())[:200]
    return ConfigError("--format", f"this model cannot be written as {form}: {type(error).__name__}: {words}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence exporters, which print progress and deprecation warnings; failures still raise."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
