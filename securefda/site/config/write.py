"""The settings and policy of each site's process, derived from a federation's configuration.

``run`` gives its processes every setting. A startup kit contains only the important ones, each with a comment for the
person who edits it; all other keys have their defaults.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from securefda.rules.strategy import WARMS_UP, RoundPlan, Rule, possible_plans
from securefda.settings import Settings, kebab_case
from securefda.site.config.key_help import keys_of, toml, toml_key
from securefda.site.config.load import AggregatorConfig, FederationConfig, SourceConfig
from securefda.site.config.sections import (
    MAX_PORT,
    MetricsSection,
    ProcessSection,
    TransportSection,
    budget_of,
    strategy_of,
)
from securefda.site.policy import Agreement, MomentBounds, SourcePolicy, WorkLimits, default_policy
from securefda.site.policy.schema import SELECTION
from securefda.site.policy.template import SLACK
from securefda.task_digest import columns_read, task_digest

PLANNED = "the planned run"
"""The template of a policy that was made for one federation's file."""


def site_policy(config: FederationConfig, site: str) -> SourcePolicy:
    """Return the policy that a source of ``config`` starts with: it permits the planned run, and little more.

    Rules, rounds, task, columns, deadlines and what sources keep are those of the plan. Clips, row counts and learning
    rates may differ from it by :data:`SLACK`, since they are tuned on the way and none of them shows more of a row.
    Rounds and limits of work are nowhere wider than a policy's defaults: beyond, a site's owner has to permit the plan.
    Where sources are to train with noise, their policies require it: to train without any is then no slip of a setting.
    """
    privacy, session, dp, task = config.privacy, config.session, config.training.source.dp, config.task
    strategy = strategy_of(config.strategy)
    policy = default_policy(
        privacy.permitted(site),
        privacy.min_others,
        privacy.max_colluders,
        session.attempts,
        clip=session.clip,
        max_samples=session.max_samples,
        kappa=privacy.norm_cap_kappa,
        granularity=privacy.norm_cap_granularity,
        unfiltered_projection=not strategy.filter,
        norm_reports=privacy.norm_reports,
        budget=budget_of(privacy.budget),
        required=dp.noise_multiplier > 0,
        max_grad_norm=dp.max_grad_norm,
        key_agreement=session.key_agreement,
    )
    plans = possible_plans(strategy)
    rules = [plan.rule.value for plan in plans if plan.rule is not Rule.TARGET_ONLY]
    rules += [SELECTION for plan in plans if plan.select]
    digest = task_digest(task.factory, task.options)
    # The target lays sums out for twice as many inputs as there are sources.
    room = max(policy.quantisation.n_max, 2 * len(config.federation.sources))
    changes = {
        "allowed_rules": tuple(dict.fromkeys(rules)),
        "allowed_tasks": (f"{task.factory}@{digest}" if digest else task.factory,),
        "agreement": Agreement(template=PLANNED, columns=columns_read(task.options)),
        "quantisation": policy.quantisation.model_copy(update={"n_max": room}),
        "model": policy.model.model_copy(update={"keep": config.model.sources_keep}),
        "release": policy.release.model_copy(update={"max_rounds": min(strategy.rounds, policy.release.max_rounds)}),
        "limits": _planned_limits(config, strategy.attention_bound, plans),
        "moments": MomentBounds(
            min_rows=privacy.moments_min_rows,
            min_rows_per_class=privacy.moments_min_rows_per_class,
            min_rows_per_category=privacy.moments_min_rows_per_category,
        ),
    }
    return policy.model_copy(update=changes)


def _planned_limits(config: FederationConfig, attention_bound: float, plans: Sequence[RoundPlan]) -> WorkLimits:
    usual, rate, transport = WorkLimits(), config.training.target.learning_rate, config.transport
    factors = [1.0, *(plan.learning_rate_factor for plan in plans)]
    lowest = max(rate * min(factors) / SLACK, usual.learning_rate_min)
    highest = min(rate * max(factors) * SLACK, usual.learning_rate_max)
    rates = {"learning_rate_min": lowest, "learning_rate_max": highest} if lowest <= highest else {}
    # Headers have deadlines in whole milliseconds.
    training_s, phase_s = (
        math.ceil(1000 * one) / 1000 for one in (transport.training_deadline_s, transport.phase_deadline_s)
    )
    bounds = {
        "attention_bound_max": min(attention_bound, usual.attention_bound_max),
        "training_deadline_s_max": min(training_s, usual.training_deadline_s_max),
        "phase_deadline_s_max": min(phase_s, usual.phase_deadline_s_max),
    }
    return usual.model_copy(update=bounds | rates)


def aggregator_toml(config: FederationConfig, kit: Path, out: Path, seed: int) -> str:
    """Return the text of aggregator.toml for the target of ``config``; paths become absolute, training repeats."""
    return as_toml(aggregator_config(config, _process_on_this_machine(kit, out, seed)))


def source_toml(config: FederationConfig, kit: Path, out: Path, seed: int, *, site: str = "") -> str:
    """Return the text of source.toml for one source of ``config``; paths become absolute, training repeats."""
    return as_toml(source_config(config, site, _process_on_this_machine(kit, out, seed)))


def _process_on_this_machine(kit: Path, out: Path, seed: int) -> ProcessSection:
    """Return the process settings of a site on this machine, where one person runs the whole federation."""
    return ProcessSection(kit=kit.absolute(), out=out.absolute(), seed=seed, repeatable_training=True)


def kit_settings_toml(config: FederationConfig, site: str, listen: str, reach: str = "") -> str:
    """Return the text of KIT/local/settings.toml, with which a site starts its process from its kit.

    Kit and run folder are relative to the file, so that the kit can be moved. So is the data folder, where the task
    needs one: ``data`` beside the file, for no other site has the founder's folders.

    Args:
        config: the federation.
        site: its target, or any other site id for a source.
        listen: ``host:port`` on which the aggregator listens.
        reach: ``host:port`` at which this source reaches it; empty for what the federation's file or the kit says.
    """
    task = config.task.model_copy(update={"data_dir": config.task.data_dir and Path("data")})
    is_target = site == config.federation.target
    addresses = {"listen": listen if is_target else TransportSection().listen} | ({"address": reach} if reach else {})
    transport = config.transport.model_copy(update=addresses)
    config = config.model_copy(update={"task": task, "transport": transport})
    process = ProcessSection(kit=Path(".."), out=Path("run"))
    settings = aggregator_config(config, process) if is_target else source_config(config, site, process)
    role, command = ("target", "aggregator") if is_target else ("source", "source")
    heading = (
        f"# Settings of {site}, a {role}: they belong to this site. Relative paths are relative to the folder of this\n"
        f"# file. To start: securefda {command} start --config KIT/local/settings.toml\n"
        "# Keys that are not here have their defaults: securefda config show KIT lists all keys, and\n"
        "# securefda config explain KEY says more of one.\n"
    )
    essential = _ESSENTIAL[role]
    if Rule(config.strategy.rule) not in WARMS_UP:  # the key would say that the run has rounds of warm-up
        essential -= {"strategy.warm-up-rounds"}
    if is_target and settings.training.with_noise:
        essential |= {"privacy.budget.target-epsilon", "privacy.budget.target-delta"}
    return heading + "".join(_commented(settings, essential, ""))


_WIDTH = 118
_ESSENTIAL: Mapping[str, frozenset[str]] = {
    "target": frozenset(
        {
            *(f"aggregator.{key}" for key in ("kit", "out", "seed", "data-set")),
            *(f"strategy.{key}" for key in ("rule", "rounds", "warm-up-rounds")),
            *(f"training.{key}" for key in ("learning-rate", "batch-size", "epochs", "dp.noise-multiplier")),
            *(f"privacy.{key}" for key in ("visibility", "min-others", "max-colluders")),
            "model.sources-keep",
            "task.factory",
            "transport.listen",
        }
    ),
    "source": frozenset(
        {
            *(f"source.{key}" for key in ("kit", "out", "seed", "data-set")),
            *(f"training.{key}" for key in ("learning-rate", "batch-size", "epochs", "dp.noise-multiplier")),
            "task.factory",
        }
    ),
}
"""Keys that a kit's settings hold even where they have their defaults."""


def _commented(settings: Settings, essential: frozenset[str], prefix: str) -> Iterator[str]:
    """Yield lines for the keys of ``settings`` that are essential or not default, each commented with its meaning."""
    fields, lines, inner = type(settings).model_fields, list[str](), list[str]()
    meanings = {key.name: key.meaning for key in keys_of(type(settings))}
    for name, field in fields.items():
        key, value = kebab_case(name), getattr(settings, name)
        if isinstance(value, Settings):
            inner += _commented(value, essential, f"{prefix}{key}.")
            continue
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if f"{prefix}{key}" in essential or value != default:
            comment = meanings[key].replace("`", "").partition(". ")[0].rstrip(".")
            comment_lines = textwrap.wrap(f"{comment}.", _WIDTH, initial_indent="# ", subsequent_indent="# ")
            if isinstance(value, Mapping) and _is_long(key, value):
                inner.append("\n" + "\n".join(comment_lines) + "".join(_table(f"{prefix}{key}", value)))
            else:
                lines.append("\n".join([*comment_lines, f"{key} = {toml(value)}"]))
    if lines:
        yield f"\n[{prefix.rstrip('.')}]\n" + "\n\n".join(lines) + "\n"
    yield from inner


def _table(name: str, values: Mapping[str, object]) -> Iterator[str]:
    """Yield a table with a line for each value; those that are tables of tables follow as tables of their own."""
    nested = {key: value for key, value in values.items() if isinstance(value, Mapping) and _is_long(key, value)}
    lines = [f"{toml_key(key)} = {toml(value)}" for key, value in values.items() if key not in nested]
    yield "\n".join([f"\n[{name}]", *lines, ""])
    for key, value in nested.items():
        yield from _table(f"{name}.{toml_key(key)}", value)


def _is_long(key: str, value: Mapping[str, object]) -> bool:
    """Whether a table is no line: it holds tables, or is too long for one."""
    return any(isinstance(one, Mapping) for one in value.values()) or len(f"{key} = {toml(value)}") > _WIDTH


def aggregator_config(config: FederationConfig, process: ProcessSection) -> AggregatorConfig:
    """Return the settings of the target's process in a federation."""
    return AggregatorConfig(
        aggregator=process,
        task=config.task,
        strategy=config.target_strategy,
        training=config.training.target,
        privacy=config.privacy,
        session=config.session,
        model=config.model,
        transport=config.transport,
        logging=config.logging,
        metrics=config.metrics,
    )


def metrics_port_of(config: FederationConfig, site: str) -> int:
    """Return a site's port for metrics and probes; 0 for none.

    Sites may share a machine: the target has the port of the file and each source the next one, in order. A source that
    the file does not name yet gets the port behind theirs.
    """
    if not config.metrics.port or site == config.federation.target:
        return config.metrics.port
    return min(config.metrics.port + 1 + (*config.federation.sources, site).index(site), MAX_PORT)


def source_config(config: FederationConfig, site: str, process: ProcessSection) -> SourceConfig:
    """Return the settings of a source's process in a federation."""
    metrics = MetricsSection(port=metrics_port_of(config, site))  # the rest is about the target's own figures
    return SourceConfig(
        source=process,
        task=config.task,
        training=config.training.source,
        transport=config.transport,
        logging=config.logging,
        metrics=metrics,
    )


def as_toml(settings: AggregatorConfig | SourceConfig | FederationConfig) -> str:
    """Return a settings file that says what ``settings`` say, whatever folder it is read in."""
    data_dir = settings.task.data_dir and settings.task.data_dir.absolute()
    task = settings.task.model_copy(update={"data_dir": data_dir})
    return tomli_w.dumps(_plain(settings.model_copy(update={"task": task}).model_dump(by_alias=True)))


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    """Make a dumped table fit for TOML: paths become text, absent ones the empty text."""
    plain: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            plain[key] = _plain(value)
        elif isinstance(value, Path):
            plain[key] = str(value)
        else:
            plain[key] = "" if value is None else value
    return plain
