"""Write the reference pages and a chart of the manual from the code, or with --check fail where one differs from it.

The text beside each setting, field and code is the docstring that stands there in the code: the string below the field,
or its entry under "Attributes:". A field without one is an error.

Run as ``python docs/generate.py``.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime
from enum import Enum
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import typer.main  # noqa: E402

import securefda  # noqa: E402
from securefda import cli  # noqa: E402
from securefda.audit.log_records import (  # noqa: E402
    EVENTS,
    Decision,
    Disclosure,
    DpSpent,
    Entry,
    Field,
    Record,
    fields_of,
)
from securefda.cli.app import GROUPS, app  # noqa: E402
from securefda.errors import ExitCode, SecureFdaError  # noqa: E402
from securefda.glossary import WORDS  # noqa: E402
from securefda.operations.logs import OperationalLog, Place  # noqa: E402
from securefda.operations.metrics import SourceMetrics, TargetMetrics  # noqa: E402
from securefda.operations.records import (  # noqa: E402
    Baseline,
    BestModel,
    ChosenMetric,
    Help,
    NormCap,
    PrivacySpent,
    RoundLine,
    SeenLine,
    SiteLine,
    Spread,
    Summary,
    TargetReleases,
)
from securefda.rules.strategy import Rule  # noqa: E402
from securefda.settings import Settings, known_keys  # noqa: E402
from securefda.site.config import LoggingSection  # noqa: E402
from securefda.site.config.key_help import (  # noqa: E402
    FILES,
    described,
    keys_of,
    markdown,
    summary_of,
    tables_of,
    toml,
)
from securefda.site.endpoints import Endpoints  # noqa: E402
from securefda.site.policy import NAMED_POLICIES, SourcePolicy  # noqa: E402

FOLDER = Path(__file__).resolve().parent / "reference"
NOTE = "<!-- `python docs/generate.py` writes this page from the code; edit the code. -->"


# Pages and tables


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") or " " for cell in line) + " |" for line in lines)


def page(title: str, *parts: str) -> str:
    """A whole page."""
    return "\n\n".join([NOTE, f"# {title}", *(part.strip("\n") for part in parts if part)]) + "\n"


def setting_rows(owner: type[Settings]) -> Iterator[tuple[str, str, str, str]]:
    """Key, values with their unit, default and text of every value in a table of settings, without the tables in it."""
    for key in keys_of(owner):
        yield f"`{key.name}`", key.takes, "required" if key.default is None else f"`{key.default}`", key.meaning


SETTING_HEAD = ("key", "values", "default", "what it means")


# Pages


def configuration() -> str:
    """Every key of the three configuration files, by table."""
    files = {file: model for file, model in FILES.items() if model is not SourcePolicy}
    sections: dict[type[Settings], dict[str, list[str]]] = {}
    for file, model in files.items():
        for name, owner in tables_of(model):
            sections.setdefault(owner, {}).setdefault(name, []).append(file)
    parts = []
    for owner, names in sections.items():
        where = "; ".join(f"`[{name}]` in {_listed(in_files)}" for name, in_files in names.items())
        parts += [f"## {_listed([f'[{name}]' for name in names])}", summary_of(owner), f"Where: {where}."]
        rows = list(setting_rows(owner))
        if base := next((one for one in owner.__mro__[1:] if one in sections), None):
            parts.append(f"It has all keys of `[{next(iter(sections[base]))}]`, and these:")
            shared = set(setting_rows(base))
            rows = [row for row in rows if row not in shared]
        parts.append(table(SETTING_HEAD, rows))
    endpoints = [
        ("`address`", "`host:port`", described(Endpoints, "aggregator")),
        ("`server-name`", "host name or IP address", described(Endpoints, "server_name")),
    ]
    return page(
        "Configuration",
        """\
Three files share these tables:

- a **federation's file** describes a whole federation. `securefda run`, `simulate` and `federation init` read it;
- the **aggregator's settings** are `KIT/local/settings.toml` at the target, which `securefda aggregator start` reads;
- a **source's settings** are `KIT/local/settings.toml` at a source, which `securefda source start` reads.

A flag goes before an environment variable, and that before the file. `--set strategy.rounds=3` and
`SECUREFDA_STRATEGY_ROUNDS=3` both set `rounds` in `[strategy]`. A relative path in a file is relative to the folder
of that file. An unknown key is an error that names the nearest known one.

What a source permits is in its signed policy: see [policy](policy.md).""",
        *parts,
        "## endpoints.toml of a kit",
        "The federation's authority writes `KIT/startup/endpoints.toml` and signs it. You do not edit it.",
        table(("key in `[aggregator]`", "values", "what it means"), endpoints),
    )


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def policy() -> str:
    """Every key of policy.toml, its values in the three templates, and their texts."""
    parts = [table(SETTING_HEAD, setting_rows(SourcePolicy))]
    for name, owner in tables_of(SourcePolicy):
        parts += [f"### [{name}]", summary_of(owner), table(SETTING_HEAD, setting_rows(owner))]
    rows = []
    for key in known_keys(SourcePolicy):
        chosen = [_at(named.policy, key) for named in NAMED_POLICIES.values()]
        rows.append(
            (
                f"`{key}`",
                *(
                    ", ".join(f"`{toml(one)}`" for one in value) or "`[]`"
                    if isinstance(value, tuple)
                    else f"`{toml(value)}`"
                    for value in chosen
                ),
            )
        )
    texts = []
    for name, named in NAMED_POLICIES.items():
        texts += [f"### {name}", f"```toml\n{named.text('SITE').rstrip()}\n```"]
    rules = ", ".join(f"`{rule}`" for rule in Rule)
    return page(
        "Policy",
        """\
`KIT/local/policy.toml` says what may leave a source. The source compares every header with it before it trains, and
refuses what it does not permit. `securefda policy explain KIT` says in words what yours permits, and
`securefda policy check KIT FEDERATION.toml` whether it permits a run. After each edit, sign it with
`securefda policy sign KIT`: no process starts with a policy that its site did not sign.""",
        "## Keys",
        *parts,
        f"The rules are {rules}.",
        "## The three templates",
        "`securefda policy template NAME` prints one of these, with the reason of each value.",
        table(("key", *(f"`{name}`" for name in NAMED_POLICIES)), rows),
        *texts,
    )


def _at(settings: object, key: str) -> object:
    for part in key.split("."):
        settings = getattr(settings, part.replace("-", "_"))
    return settings


def commands() -> str:
    """Every command with its arguments and options."""
    root = typer.main.get_command(app)
    parts = []
    for heading, names in GROUPS.items():
        parts.append(f"## {heading}")
        for path, command in (leaf for name in names for leaf in leaves(root.commands[name], (name,))):
            name = " ".join(("securefda", *path))
            arguments = [item for item in command.params if not item.opts[0].startswith("-")]
            usage = " ".join([name, *(item.metavar or item.name.upper() for item in arguments), "[OPTIONS]"])
            parts += [f"### {name}", markdown(" ".join((command.help or "").split())), f"```text\n{usage}\n```"]
            rows = [_parameter(item) for item in command.params if not getattr(item, "hidden", False)]
            if rows:
                parts.append(table(("argument or option", "values", "default", "what it means"), rows))
    return page(
        "Commands",
        """\
`securefda COMMAND --help`, or `-h`, prints the same. Every command also takes `-q` (`--quiet`: only errors and the
result) and `-v` (`--verbose`: every phase, and what caused an error). Results go to stdout, all else to stderr. On a
terminal the words that judge have colours, unless `NO_COLOR` is set. `securefda --install-completion` makes your shell
complete commands and options.

With `--format json` a command prints one envelope: `{schema_version, status, exit_code, data}`, or `error_code`,
`message` and `hint` in place of `data` where it fails; where several settings are wrong, `errors` has each.
[Exit codes](exit-codes.md) lists what `exit_code` and `error_code` can be.""",
        *parts,
    )


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with its words after ``securefda``."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, one in inner.items():
        if not one.hidden:
            yield from leaves(one, (*path, name))


def _parameter(item: Any) -> tuple[str, str, str, str]:
    kind = item.type_descriptor.annotation
    parts = [part for part in get_args(kind) if part is not NoneType] if get_origin(kind) is not None else [kind]
    base = parts[0]
    if getattr(item, "is_bool_flag", False):
        name, taken = ", ".join(f"`{one}`" for one in (*item.opts, *item.secondary_opts)), ""
    elif item.opts[0].startswith("-"):
        name = ", ".join(f"`{one}`" for one in item.opts)
        taken = f"`{item.metavar}`" if item.metavar else ""
    else:
        name, taken = f"`{item.metavar or item.name.upper()}`", ""
    if not taken and not getattr(item, "is_bool_flag", False):
        if issubclass(base, Enum):
            taken = ", ".join(f"`{choice.value}`" for choice in base)
        else:
            words = {int: "whole number", float: "number", str: "text", Path: "path"}
            taken = words[base]
            taken += f", at least {item.min}" if item.min is not None else ""
            taken += f", at most {item.max}" if item.max is not None else ""
    if getattr(item, "multiple", False):
        taken += "; more than once"
    default = item.default.value if isinstance(item.default, Enum) else item.default
    shown = "required" if item.required else "" if default in (None, [], (), False, "") else f"`{default}`"
    return name, taken, shown, markdown(item.help or "")


_LOOK_AT = {
    ExitCode.OK: "",
    ExitCode.FAILED: "the line; if it names your task, the task's code",
    ExitCode.CONNECTION: "`error_code`, as below; the address, the firewall, whether the other process runs",
    ExitCode.CONFIG: "the named key or file",
    ExitCode.POLICY: "the named key; `securefda policy check`",
    ExitCode.BUDGET: "[Train with noise](../how-to/train-with-noise.md#when-the-ledger-stops-training)",
    ExitCode.QUORUM: "the consoles of the sources that are missing",
    ExitCode.AUDIT: "[Respond to a finding](../how-to/respond-to-a-finding.md)",
    ExitCode.CERTIFICATE: "[Certificates](../how-to/certificates.md)",
    ExitCode.VERSION: "[Upgrade](../how-to/upgrade.md); the line names both builds",
    ExitCode.PEER: "the address and the roster; if both are right, treat it as an attack",
    ExitCode.PRIVACY: "[Audit the noise](../how-to/train-with-noise.md#audit-the-noise)",
    ExitCode.INTERRUPTED: "",
    ExitCode.TERMINATED: "",
}


def _restart(code: ExitCode) -> str:
    """Whether a supervisor should start a site's process again after this code."""
    if code in (ExitCode.CONNECTION, ExitCode.QUORUM, ExitCode.TERMINATED):
        return "yes"
    return "no" if code in (ExitCode.OK, ExitCode.INTERRUPTED) else "a person first"


def exit_codes() -> str:
    """Exit codes, and which errors end a command with each."""
    for module in pkgutil.walk_packages(securefda.__path__, "securefda."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    errors: dict[str, type[SecureFdaError]] = {}
    left: list[type[SecureFdaError]] = [SecureFdaError]
    while left:
        error = left.pop()
        if error.__module__.startswith("securefda."):
            errors[error.__name__] = error
        left += error.__subclasses__()
    codes = [
        (f"`{code.value}`", f"`{code.name}`", described(ExitCode, code.name), _LOOK_AT[code], _restart(code))
        for code in ExitCode
    ]
    rows = [(f"`{name}`", _code(error), summary_of(error)) for name, error in sorted(errors.items())]
    return page(
        "Exit codes and error codes",
        "Every command and every process ends with one of these codes. "
        "[When something fails](../how-to/when-something-fails.md) goes from a line on the console to what to do.",
        table(("code", "name", "meaning", "look at", "start the process again"), codes),
        """\
**Code 2 does not say whether the line is at fault, or a check failed.** Start the process with `--format json` to tell
them apart by the `error_code` of its last line. `ConnectionFailed`, `Unreachable` and `HungUp` are about the line. For
every code of a check that failed, alert a person, also if the process is started again. A source checks who the peer is
at each start, before anything of its rows leaves. If it is another, the source ends with 16: no supervisor should start
it again.""",
        "## Error codes",
        """\
With `--format json` the envelope of an error carries `error_code`. An error has one message and, where you can do
something, a hint. Errors of a peer name the check that failed; [the
specification](../../threat_model/sfda-sa-1.md#12-every-check) defines these checks.""",
        table(("error code", "exit code", "when"), rows),
        "*As found*: these errors stand for others, and end with the exit code of the first of them.",
    )


def _code(error: type[SecureFdaError]) -> str:
    return "as found" if "self.exit_code =" in inspect.getsource(error) else f"`{int(error.exit_code)}`"


def metrics() -> str:
    """Metrics for Prometheus, fields of the logs, and of the records of a run."""
    return page(
        "Metrics, logs and records of a run",
        "## Metrics for Prometheus",
        """\
Off unless `port` in `[metrics]` is set. Then they are served on 127.0.0.1, or on the address in `host`; anyone who can
reach that address can read them. Counters begin at zero with each process. No metric carries a β or a row count.
The task's metrics and the loss on the target's test rows, and the sources' share of the last step, are there only with
`results = true`.

The same port answers probes. `/healthz` is 200 while the process lives. `/readyz` is 200 while the aggregator listens,
or while the source is connected to an aggregator that it has joined; otherwise 503. Neither says more.""",
        table(("metric", "type", "labels", "served by", "what it counts"), _metric_rows()),
        "## Fields of the operational log",
        "The file `json-file` of `[logging]` holds one JSON object a line. `file` holds the same as plain text.",
        table(("field", "what it holds"), _log_rows()),
        "## metrics.jsonl of the target",
        summary_of(RoundLine) + " A field that does not apply to a round is left out.",
        table(("field", "type", "what it holds"), _field_rows(RoundLine)),
        "Each entry of `seen`:",
        table(("field", "type", "what it holds"), _field_rows(SeenLine)),
        "## metrics.jsonl of a source",
        summary_of(SiteLine),
        table(("field", "type", "what it holds"), _field_rows(SiteLine)),
        "## summary.json",
        summary_of(Summary),
        table(("field", "type", "what it holds"), _field_rows(Summary)),
        *(
            part
            for name, owner in (
                ("norm_cap", NormCap),
                ("target_releases", TargetReleases),
                ("target_privacy", PrivacySpent),
                ("target_cosine", Spread),
                ("metric", ChosenMetric),
                ("best", BestModel),
                ("target_only` and `warm_target", Baseline),
                ("help", Help),
            )
            for part in (f"`{name}`:", table(("field", "type", "what it holds"), _field_rows(owner)))
        ),
    )


def _metric_rows() -> Iterator[tuple[str, ...]]:
    """Metrics as a process serves them: both kinds, after one round that moves every one of them."""
    target, source = TargetMetrics(results=True), SourceMetrics()
    sites = {"source-1": 1}
    target.round_finished(
        RoundLine(
            round=1, status="finished", target_epsilon=1.0, attempts=1, seconds={"training": 1.0},
            refused={"source-1": "key"}, bytes_up=sites, bytes_down=sites, metrics={"auroc": 0.5},
        )
    )  # fmt: skip
    source.round_finished(SiteLine(round=1, epsilon=1.0))
    for each in (target, source):
        each.alarm("CHECK")
        each.abort("CHECK")
        each.refusal("key")
        each.certificate(datetime.fromtimestamp(0, UTC))
    kept: dict[str, tuple[str, str, str, list[str]]] = {}
    for owner, registry in (("target", target.registry), ("sources", source.registry)):
        for metric in registry.collect():
            name = f"{metric.name}_total" if metric.type == "counter" else metric.name
            labels = sorted({label for sample in metric.samples for label in sample.labels} - {"le"})
            shown = ", ".join(f"`{label}`" for label in labels)
            kept.setdefault(name, (metric.type, shown, metric.documentation, []))[3].append(owner)
    for name, (kind, labels, text, owners) in kept.items():
        yield f"`{name}`", kind, labels, _listed(owners), text


def _log_rows() -> Iterator[tuple[str, str]]:
    """Fields of a line that is written here and now."""
    texts = {
        "time": "When it was written: RFC 3339, UTC, milliseconds.",
        "level": "`debug`, `info`, `warning` or `error`.",
        "site": "Id of the site whose process wrote it.",
        "message": "One line of text, at most 2000 characters; what does not print is escaped.",
    }
    with TemporaryDirectory() as folder:
        log = OperationalLog(LoggingSection(json_file="site.jsonl"), Path(folder), "source-1", print)
        log.write("info", "a line", Place())
        log.close()
        line = json.loads((Path(folder) / "site.jsonl").read_text(encoding="utf-8"))
    for field in line:
        yield f"`{field}`", texts[field] if field in texts else described(Place, field)


def _field_rows(owner: type) -> Iterator[tuple[str, str, str]]:
    for name, annotation in get_type_hints(owner).items():
        yield f"`{name}`", json_type(annotation), described(owner, name)


def json_type(annotation: Any) -> str:
    """What an annotation is in JSON."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Required, NotRequired, Annotated):
        return json_type(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(json_type(part) for part in arguments)
    if origin is Literal:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in arguments)
    if origin is list:
        return f"array of {json_type(arguments[0])}s"
    if origin is not None or (isinstance(annotation, type) and hasattr(annotation, "__required_keys__")):
        return "object"
    return {str: "string", int: "integer", float: "number", NoneType: "null", bool: "boolean"}[annotation]


def audit_records() -> str:
    """Every field of an audit record, and every kind of event."""
    head = ("field", "values", "what it means")
    parts = [
        "A record is one line of JSON in ASCII, with sorted keys and no blanks. All keys are always present: a field "
        'that does not apply is `0`, `""` or `{}`. [What the logs prove](../explanation/audit-logs.md) says what '
        "records are for. The last key, `v`, is the version of the format: 1.",
        "## Fields",
        table(head, map(_record_field, (*fields_of(Record), *fields_of(Entry)))),
    ]
    for title, part in (("decision", Decision), ("disclosure", Disclosure), ("dp", DpSpent)):
        parts += [
            f"### `{title}`",
            summary_of(part).partition(" Raises ")[0],
            table(head, map(_record_field, fields_of(part))),
        ]
    parts += ["## Kinds of events", "Each kind has exactly these keys in `facts`."]
    for name, kind in EVENTS.items():
        charged = " It also has `dp`." if kind.charges else ""
        rows = [_record_field(fact) for fact in kind.facts]
        parts += [f"### `{name}`", kind.means + charged, table(("fact", *head[1:]), rows) if rows else ""]
    return page("Audit records", *parts)


def _record_field(one: Field) -> tuple[str, str, str]:
    return f"`{one.name}`", one.form.means + (", or empty" if one.optional else ""), one.means


def epsilon() -> str:
    """The spent epsilon over the rounds of the plan that the README shows, as the command draws it."""
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()):
        plot = Path(folder) / "epsilon.svg"
        plan = ["--epsilon", "4", "--delta", "1e-5", "--rounds", "12", "--samples", "239", "--batch", "32"]
        if cli.main(["budget", "plan", *plan, "--plot", str(plot)]) != 0:
            raise RuntimeError("budget plan has failed")
        return plot.read_text(encoding="utf-8")


def glossary() -> str:
    """Every word, what it means, and what others call it."""
    rows = (
        (f"[{name}](../{word.page})" if word.page else name, word.means, word.elsewhere)
        for name, word in sorted(WORDS.items(), key=lambda item: item[0].casefold())
    )
    return page(
        "Glossary",
        "The manual uses one word for each idea. A word with a link has a page that says more.",
        table(("word", "what it means", "elsewhere"), rows),
    )


PAGES: Mapping[str, Callable[[], str]] = {
    "configuration.md": configuration,
    "policy.md": policy,
    "commands.md": commands,
    "exit-codes.md": exit_codes,
    "metrics.md": metrics,
    "audit-records.md": audit_records,
    "../pictures/epsilon.svg": epsilon,
    "glossary.md": glossary,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a page is stale")
    check = parser.parse_args(arguments).check
    stale = []
    for name, make in PAGES.items():
        path, wanted = (FOLDER / name).resolve(), make()
        if not path.exists() or path.read_text(encoding="utf-8") != wanted:
            stale.append(path.relative_to(ROOT).as_posix())
            if not check:
                path.write_text(wanted, encoding="utf-8")
    if check and stale:
        print(f"stale: {', '.join(stale)}; run python docs/generate.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
