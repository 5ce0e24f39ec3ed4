"""A trial of a task on one batch of each site, before a run: rows, labels, forward, loss, backward, metrics.

The findings stay on this machine, since class counts and distances reveal something about a site's rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from securefda.bootstrap import task_at
from securefda.errors import ConfigError, DataError, ExitCode, PolicyRefusal, SecureFdaError, TrainingError
from securefda.rules import Rule, TargetLabels
from securefda.rules.analytic import rare_values
from securefda.site.config import (
    AggregatorConfig,
    FederationConfig,
    SourceConfig,
    site_policy,
    training_settings,
)
from securefda.site.kit import Kit
from securefda.site.policy import SourcePolicy, load_signed_policy
from securefda.site.policy.verdict import refusals_of_moments
from securefda.source.source_site import require_room_for
from securefda.task_metric import ACCURACY
from securefda.tasks import (
    Inputs,
    Rows,
    Samples,
    Task,
    TaskSettings,
    Unlabelled,
    load_task,
    rows_of,
    task_code,
    unlabelled_target,
    with_further_rows,
)
from securefda.tasks.column_cautions import look_at
from securefda.tasks.inputs import in_memory, map_tensors, named_tensors, row_count, shapes, take
from securefda.tasks.rows import held_out_rows
from securefda.tasks.table_files import Table
from securefda.tasks.tabular import Tabular
from securefda.text import counted, names, said_of
from securefda.training import TrainingSettings, build_model, derive_seed, layer_table
from securefda.training.batch_norm import settings_for_model
from securefda.training.head import head_rows
from securefda.training.local import FEWEST_TARGET_STEPS, checked_metrics, require_steps
from securefda.training.parameter_vectors import layer_sizes, model_to_vector
from securefda.training.pseudo import predict_labels
from securefda.training.seeds import new_generator, seeded_torch
from securefda.training.site_model import SiteModel
from securefda.training.target_adaptation import require_adaptable

_FAR = 20.0
"""A scaled number this far from 0 is probably in another unit."""

_MOST_CLASSES = 12


class TaskCheckError(SecureFdaError):
    """A site's rows or the task's code are unfit; the message names the site, unless only the task is at fault.

    The exit code is that of a wrong configuration, or of a policy's refusal where the site's policy refuses its rows.
    """

    exit_code = ExitCode.CONFIG

    def __init__(self, error: SecureFdaError, site: str = "") -> None:
        super().__init__(said_of(site, str(error)) if site else str(error), hint=error.hint)
        if isinstance(error, PolicyRefusal):
            self.exit_code = error.exit_code


@dataclass(frozen=True, slots=True)
class SplitFound:
    """The rows of one split of a site: how many, the shape of one, and how often each label occurs."""

    split: str
    rows: int
    features: tuple[int, ...] | dict[str, tuple[int, ...]]
    labels: str


@dataclass(slots=True)
class SiteFound:
    """The findings at one site: how a table was read, its rows, and in ``error`` the first problem there."""

    site: str
    read_from: str = ""
    splits: list[SplitFound] = field(default_factory=list)
    batch: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    error: TaskCheckError | None = None


@dataclass(frozen=True, slots=True)
class TaskFound:
    """The findings about a task: its model, whether noise was tried, each site, and what to look at in its columns."""

    factory: str
    parameters: int
    layers: int
    with_noise: bool
    sites: tuple[SiteFound, ...]
    look_at: tuple[str, ...] = ()

    @property
    def error(self) -> TaskCheckError | None:
        """The first error of any site."""
        return next((site.error for site in self.sites if site.error is not None), None)

    def as_json(self) -> dict[str, Any]:
        """Return the findings for the JSON envelope."""
        return {
            "factory": self.factory,
            "parameters": self.parameters,
            "layers": self.layers,
            "per_sample_gradients": self.with_noise,
            "sites": [
                {
                    "site": found.site,
                    "read_from": found.read_from,
                    "splits": [asdict(split) for split in found.splits],
                    "batch": found.batch,
                    "notes": found.notes,
                    "error": None if found.error is None else str(found.error),
                }
                for found in self.sites
            ],
            "look_at": list(self.look_at),
        }


def check_federation(config: FederationConfig, sites: Sequence[str], seed: int) -> TaskFound:
    """Try the task of a federation on the rows of ``sites``, all of them if none is named.

    Raises:
        ConfigError: there is no such site, or the task or its options are unfit.
        DataError, TaskCheckError: the task cannot build a model that can be trained.
    """
    federation = config.federation
    known = (federation.target, *federation.sources)
    for site in sites:
        if site not in known:
            raise ConfigError(f"--site {site}", "is no site of this federation", hint=f"sites: {', '.join(known)}")
    settings = TaskSettings(
        target=federation.target,
        sources=federation.sources,
        seed=seed,
        data_dir=config.task.data_dir,
        options=config.task.options,
        labelled_target=config.training.target.labels == "given",
        metric=config.task.metric,
    )
    task = load_task(config.task.factory, settings)
    sides = {site: config.training.target if site == federation.target else config.training.source for site in known}
    trained = {site: training_settings(side) for site, side in sides.items() if not sites or site in sites}
    labels = TargetLabels(config.training.target.labels)
    policies = {site: site_policy(config, site) for site in federation.sources}
    rule, adapts = Rule(config.strategy.rule), config.training.target.adapt != "none"
    return _check(task, config.task.factory, trained, seed, policies=policies, labels=labels, adapts=adapts, rule=rule)


def check_kit(kit: Kit, config: AggregatorConfig | SourceConfig) -> TaskFound:
    """Try the task on the rows of the site whose kit this is. Raises what :func:`check_federation` does."""
    process = config.aggregator if isinstance(config, AggregatorConfig) else config.source
    task = task_at(config, kit.roster)
    policies, labels, adapts = dict[str, SourcePolicy](), TargetLabels.GIVEN, False
    if isinstance(config, AggregatorConfig):
        labels, adapts = TargetLabels(config.training.labels), config.training.adapt != "none"
    else:
        with suppress(ConfigError):  # what is wrong with a policy is no matter of the task
            policies[kit.site_id] = load_signed_policy(kit)
    trained = {kit.site_id: training_settings(config.training)}
    return _check(task, config.task.factory, trained, process.seed, policies=policies, labels=labels, adapts=adapts)


def _check(
    task: Task,
    factory: str,
    trained: dict[str, TrainingSettings],
    seed: int,
    *,
    policies: Mapping[str, SourcePolicy],
    labels: TargetLabels,
    adapts: bool,
    rule: Rule | None = None,
) -> TaskFound:
    """Try the task at the sites of ``trained``; ``rule`` is the run's, which a kit of a source does not know."""
    try:
        model = build_model(task, derive_seed(seed, "model"))
        _require_same_model(task, model, build_model(task, derive_seed(seed, "model")))
    except TrainingError as error:
        raise TaskCheckError(error) from error
    sites = tuple(
        _check_unlabelled(task, site, settings, seed, labels=labels, adapts=adapts)
        if site == task.settings.target and labels is not TargetLabels.GIVEN
        else _check_site(task, site, settings, seed, policy=policies.get(site), rule=rule, adapts=adapts)
        for site, settings in trained.items()
    )
    with_noise = any(settings.dp is not None for settings in trained.values())
    table = layer_table(model)
    look = look_at(_tables(task, trained), task.options) if isinstance(task, Tabular) else ()
    return TaskFound(factory, sum(layer_sizes(table)), len(table), with_noise, sites, tuple(look))


def _tables(task: Tabular, sites: Iterable[str]) -> dict[str, Table]:
    """Return the tables of the sites whose files can be read; what is wrong with others is an error there."""
    tables: dict[str, Table] = {}
    for site in sites:
        with suppress(SecureFdaError):
            tables[site] = task.table(site)
    return tables


def _require_same_model(task: Task, model: nn.Module, again: nn.Module) -> None:
    """Check that two first models of one seed are alike: else each site would begin with another one."""
    if layer_table(model) == layer_table(again) and np.array_equal(
        model_to_vector(model), model_to_vector(again), equal_nan=True
    ):
        return
    hint = "draw its weights with torch alone, and take its sizes from the task's options: each site builds it"
    raise TrainingError(f"task {type(task).__name__}: model() gives another model when it is called again", hint=hint)


def _check_site(
    task: Task,
    site: str,
    settings: TrainingSettings,
    seed: int,
    *,
    policy: SourcePolicy | None,
    rule: Rule | None,
    adapts: bool,
) -> SiteFound:
    """Try the task on a site's rows; ``policy`` is the source's, and ``rule`` the run's, if known."""
    checked = SiteFound(site)
    is_target = site == task.settings.target
    try:
        train = rows_of(task, site, "train")
        checked.read_from = task.source_of(site) if isinstance(task, Tabular) else ""
        _add_split(task, checked, "train", train)
        if policy is not None:
            require_room_for(len(train), policy)
        if is_target:
            _add_split(task, checked, "test", test := rows_of(task, site, "test"))
            checked.notes += _lacking(task, "test", test)
        else:
            _add_unread_rows(task, checked)
        model = build_model(task, derive_seed(seed, "model"))
        settings = settings_for_model(settings, model)
        require_steps(site, len(train), settings, FEWEST_TARGET_STEPS if is_target else 1)
        checked.batch = _try_batch(task, model, site, train, settings)
        if settings.vary:
            _varied(task, in_memory(take(train.features, _places(len(train), settings.batch_size))))
        if is_target and adapts:
            every = with_further_rows(task, train)
            require_adaptable(SiteModel(task, site, every, settings, seed))
            checked.notes.append(
                f"{counted(len(every) - len(train), 'further row')} without labels, for training.adapt"
            )
        if settings.dp is not None:
            task.require_own_sides(site)
            from securefda.privacy.private_training import cost_of, fitting, loss_lines  # with Opacus

            checked.notes += loss_lines(task, model, train)
            checked.notes += cost_of(task, model, train, fitting(task, model, train, settings)).words()
        elif policy is not None and Rule.ANALYTIC in policy.allowed_rules and rule in (None, Rule.ANALYTIC):
            _compare_moments(SiteModel(task, site, train, settings, seed), policy, checked, planned=rule is not None)
    except SecureFdaError as error:
        checked.error = TaskCheckError(error, site)
        return checked
    checked.notes += _lacking(task, "training", train)
    checked.notes += _far_features(task, train)
    checked.notes += filter(None, [task.scaling_caution(train)])
    if isinstance(task, Tabular) and (unread := task.unread_columns(site)):
        checked.notes.append(f"columns that the task does not read: {', '.join(unread)}")
    return checked


def _add_unread_rows(task: Task, found: SiteFound) -> None:
    """Add the rows that a source holds out. No run reads them: what is wrong with them is a note."""
    try:
        rows = held_out_rows(task, found.site)
    except SecureFdaError as error:
        found.notes.append(f"no run reads the test rows of a source, and these are unfit: {error}")
        return
    if rows is not None:
        _add_split(task, found, "test", rows)


def _compare_moments(site: SiteModel, policy: SourcePolicy, found: SiteFound, *, planned: bool) -> None:
    """Compare a source's rows with ``[moments]`` of its policy; unless the rule is ``planned``, refusals are notes.

    Raises:
        PolicyRefusal: the first key that refuses the rows; others are notes.
        SecureFdaError: what ``head_rows`` raises.
    """
    try:
        features, targets = head_rows(site, site.initial_model())
    except SecureFdaError:
        if planned:
            raise
        return
    refusals = list(refusals_of_moments(policy, features, targets, sums_only=site.task.sums_only))
    when = "also: " if planned else f"if the rule is {Rule.ANALYTIC}: "
    found.notes += [f"{when}{refusal}; {refusal.hint}" for refusal in refusals[planned:]]
    least = policy.moments.min_rows_per_category
    rare = np.count_nonzero(rare_values(features, least)[0].any(axis=0))
    if rare:
        found.notes.append(
            f"{when}in {rare:,} of {counted(features.shape[1], 'feature')} fewer than {least} rows have another value "
            "than the usual one, and count with the usual one (moments.min-rows-per-category)"
        )
    if refusals and planned:
        raise refusals[0]


def _check_unlabelled(
    task: Task, site: str, settings: TrainingSettings, seed: int, *, labels: TargetLabels, adapts: bool
) -> SiteFound:
    """Try the task as :func:`_check_site` does, for a target whose labels are not used.

    Only with pseudo-labels is there a backward pass: the target does not train without.
    """
    found = SiteFound(site)
    try:
        given, test = unlabelled_target(task)
        train = Unlabelled(given.features)
        found.read_from = task.source_of(site) if isinstance(task, Tabular) else ""
        _add_split(task, found, "train", train)
        if test is not None:
            _add_split(task, found, "test", test)
        model = build_model(task, derive_seed(seed, "model"))
        settings = settings_for_model(settings, model)
        tried = in_memory(take(train.features, _places(len(train), settings.batch_size)))
        _evaluated(task, model, tried)
        found.batch = {"rows": float(row_count(tried))}
        if adapts:
            require_adaptable(SiteModel(task, site, train, settings, seed))
        if labels is TargetLabels.PSEUDO:
            require_steps(site, len(train), settings, FEWEST_TARGET_STEPS)
            found.batch["gradient_norm"] = _try_guesses(task, model, site, tried, settings)
        if test is not None:
            batch = _some_of(test, settings.batch_size)
            outputs = _evaluated(task, model, batch.features)
            _require_known_labels(f"{site}, test", test, outputs)
            with task_code(type(task), "loss and metrics"):
                loss, metrics = float(task.loss(outputs, batch.labels)), task.metrics(outputs, batch.labels)
            found.batch |= {"loss": loss, **_shown(task, metrics)}
    except SecureFdaError as error:
        found.error = TaskCheckError(error, site)
        return found
    if isinstance(given, Samples):
        found.notes.append("the labels of its training rows are not used")
    if test is None:
        found.notes.append("no test row has a label: no model is measured, and there will be no accuracy")
    found.notes += _far_features(task, train)
    found.notes += filter(None, [task.scaling_caution(train)])
    return found


def _shown(task: Task, metrics: dict[str, float]) -> dict[str, float]:
    """Return the accuracy and the chosen metric of a batch, as far as its rows define them."""
    names = dict.fromkeys((ACCURACY.name, task.chosen_metric.name))
    return {name: value for name, value in checked_metrics(metrics, task).items() if name in names}


def _evaluated(task: Task, model: nn.Module, features: Inputs) -> Inputs:
    with seeded_torch(0, torch.device("cpu")), torch.no_grad():
        return _outputs_of(task, model.eval(), features)


def _try_guesses(task: Task, model: nn.Module, site: str, features: Inputs, settings: TrainingSettings) -> float:
    """Try a backward pass on labels that the model guesses; returns the norm of the gradient.

    Raises:
        ConfigError: the task says of no label how sure the model is of it.
        DataError, TrainingError: the task's own code fails, or what it returns cannot be trained on.
    """
    outputs = _evaluated(task, model, features)
    labels, _ = predict_labels(task, outputs)
    with task_code(type(task), "row_losses"):
        losses = task.row_losses(outputs, labels)
    if losses.shape != (len(labels),):
        name, shape = type(task).__name__, tuple(losses.shape)
        raise TrainingError(f"task {name}: its row_losses for {len(labels)} rows have the shape {shape}")
    return _try_batch(task, model, site, Samples(_varied(task, features), labels), settings)["gradient_norm"]


def _varied(task: Task, features: Inputs) -> Inputs:
    with task_code(type(task), "varied"):
        varied: Inputs = task.varied(features, new_generator(0))
    if _batch_form(varied) != _batch_form(features):
        name, shape = type(task).__name__, _batch_form(features)
        raise TrainingError(f"task {name}: varied does not keep the shape {shape} of a batch")
    return varied


def _batch_form(inputs: Inputs) -> object:
    """Return the shape of a batch, by name if it has several tensors; None for what is no tensor."""
    named = named_tensors(inputs, "").items()
    forms = {name: tuple(tensor.shape) if isinstance(tensor, Tensor) else None for name, tensor in named}
    return forms[""] if forms.keys() == {""} else forms


def _add_split(task: Task, found: SiteFound, split: str, rows: Rows) -> None:
    labels = _labels_in_words(task, rows) if isinstance(rows, Samples) else "none"
    found.splits.append(SplitFound(split, len(rows), shapes(rows.features), labels))


def _labels_in_words(task: Task, rows: Samples) -> str:
    """Describe how often each label occurs; for many different labels, their range."""
    labels = rows.labels.reshape(len(rows), -1)
    if labels.shape[1] != 1:
        return f"{labels.shape[1]} numbers each"
    values = labels[:, 0].tolist()
    counts = Counter(values)
    if labels.is_floating_point() and not all(float(value).is_integer() for value in counts):
        return f"{min(values):.3g} to {max(values):.3g}"
    names = task.class_names()
    words = {
        value: f"{names[int(value)] if 0 <= value < len(names) else f'{value:g}'}: {counts[value]}"
        for value in sorted(counts)
    }
    if len(words) > _MOST_CLASSES:
        return f"{len(words)} different ones, fewest of {words[min(words, key=lambda value: counts[value])]}"
    return ", ".join(words.values())


def _lacking(task: Task, which: str, rows: Samples) -> list[str]:
    """Say which classes no row has, or that all rows have one label: at a hospital to which only the ill come, or where
    the label is read wrongly. A run goes on.
    """
    classes = task.class_names() if rows.labels.ndim == 1 else ()
    present = set(rows.labels.tolist()) if classes else set()
    lacking = [name for number, name in enumerate(classes) if number not in present]
    if lacking:
        said = f"no {which} row is of class {names(lacking)}"
    elif len(torch.unique(rows.labels.reshape(len(rows), -1), dim=0)) == 1:
        said = f"all {len(rows)} {which} rows have one label"
    else:
        return []
    if which != "test":
        return [said]
    how = "of a table or images, task.options.stratify = true holds out some of each class, or another split-seed may"
    return [f"{said}, and no figure of a run will say how others fare; {how}"]


def _try_batch(task: Task, model: nn.Module, site: str, rows: Samples, settings: TrainingSettings) -> dict[str, float]:
    """Try a forward and a backward pass on the CPU; returns loss, metrics and the norm of the gradient.

    Raises:
        DataError: the task's own code fails.
        TrainingError: what it returns cannot be trained on.
    """
    batch = _some_of(rows, settings.batch_size)
    features, labels = batch.features, batch.labels
    name = type(task).__name__
    with seeded_torch(0, torch.device("cpu")):
        outputs = _outputs_of(task, model.train(), features)
        _require_known_labels(f"{site}, train", rows, outputs)
        with task_code(type(task), "loss"):
            loss: object = task.loss(outputs, labels)
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            hint = "loss returns the batch's mean loss, one number that depends on the outputs"
            raise TrainingError(f"task {name}: its loss cannot be differentiated", hint=hint)
        if not math.isfinite(loss.item()):
            hint = "look for a logarithm or root of 0 in loss(), or features that are far from 0"
            raise TrainingError(f"task {name}: its loss over {len(labels)} rows is {loss.item()}", hint=hint)
        with task_code(type(task), "the backward pass"):
            loss.backward()  # type: ignore[no-untyped-call]
        with task_code(type(task), "metrics"):
            metrics = task.metrics(map_tensors(Tensor.detach, outputs), labels)
    figures = _shown(task, metrics)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    length = float(torch.linalg.vector_norm(torch.cat([gradient.flatten() for gradient in gradients])))
    if not math.isfinite(length):
        raise TrainingError(f"task {name}: its gradient over {len(labels)} rows is not finite")
    return {"rows": float(len(labels)), "loss": loss.item(), **figures, "gradient_norm": length}


def _outputs_of(task: Task, model: nn.Module, features: Inputs) -> Inputs:
    """Return the outputs of a model, as it stands, for some rows.

    Raises:
        DataError: the model's own code fails.
        TrainingError: they are not one for each row.
    """
    rows = row_count(features)
    with task_code(type(task), f"the model, on {rows} rows of shape {shapes(features)},"):
        outputs: Inputs = model(features)
    named = named_tensors(outputs, "").values()
    if named and all(isinstance(tensor, Tensor) and tensor.ndim and len(tensor) == rows for tensor in named):
        return outputs
    is_plain = isinstance(outputs, (Tensor, dict, tuple)) and all(isinstance(tensor, Tensor) for tensor in named)
    given = f"{_batch_form(outputs)}" if is_plain else f"a {type(outputs).__name__}"
    raise TrainingError(f"task {type(task).__name__}: its model returned {given} for {rows} rows")


def _some_of(rows: Samples, count: int) -> Samples:
    """Return this many rows, evenly spread over all, since files are often sorted by label."""
    places = _places(len(rows), count)
    return Samples(in_memory(take(rows.features, places)), rows.labels[places])


def _places(rows: int, count: int) -> Tensor:
    """Return the numbers of ``count`` rows, evenly spread over all."""
    count = min(count, rows)
    return torch.arange(count) * rows // count


def _require_known_labels(where: str, rows: Samples, outputs: Inputs) -> None:
    """Check that each class number is that of an output."""
    labels = rows.labels
    if labels.is_floating_point() or labels.ndim != 1 or not isinstance(outputs, Tensor) or outputs.ndim != 2:
        return
    unknown = (labels < 0) | (labels >= outputs.shape[1])
    if unknown.any():
        why = f"{int(unknown.sum())} of {len(rows)} labels are not among the model's {outputs.shape[1]} classes"
        raise DataError(where, why, hint="class numbers begin at 0")


def _far_features(task: Task, rows: Rows) -> list[str]:
    """Report feature columns with rows far from the range of a scaled number."""
    if not isinstance(rows.features, Tensor) or rows.features.ndim != 2:
        return []
    names = task.feature_names() or tuple(f"feature {place}" for place in range(1, rows.features.shape[1] + 1))
    far = (rows.features.abs() > _FAR).sum(dim=0).tolist()
    return [
        f"{name}: {count} of {len(rows)} training rows lie more than {_FAR:g} from 0 after scaling: another unit?"
        for name, count in zip(names, far, strict=True)
        if count
    ]
