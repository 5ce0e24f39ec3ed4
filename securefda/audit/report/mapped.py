"""The facts of an audit under the questions of a text: each answer with the record or figure that supports it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, Literal

from securefda.audit.report import words
from securefda.audit.report.mappings import MAPPINGS, Question
from securefda.audit.report.overview import alike, all_flows
from securefda.audit.report.sources import LogState, Sources
from securefda.errors import ConfigError
from securefda.pages.parts import Cell, Line, Section, Table
from securefda.text import bound_text, counted, names

if TYPE_CHECKING:
    from securefda.site.policy import SourcePolicy

Status = Literal["answered", "in part", "not answered"]
_NOT_ANSWERED: Final = "not answered by this system"


@dataclass(frozen=True, slots=True)
class Fact:
    """An answer, and the record or figure that supports it."""

    answer: str
    support: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question: whether there is one, its facts, and what stays open; empty if nothing does."""

    question: Question
    status: Status
    facts: tuple[Fact, ...]
    open: str


def _bounds(sources: Sources) -> Iterator[Fact]:
    for _, text in sources.disclosure.lines():
        yield Fact(text, "the records that disclose, and those of the ledger, in each site's log")


def _epsilon(sources: Sources) -> Iterator[Fact]:
    for party in sources.tables:
        if party.epsilons:
            point = party.epsilons[-1]
            spent = f"epsilon {bound_text(point.epsilon)} at delta {float(point.spent.delta):g} is spent"
            row = f"row {point.spent.ledger_rows} of its ledger, SHA-256 {point.spent.ledger_digest[:16]}…"
            yield Fact(f"{party.party}: {spent}.", f"ledger-updated in round {point.round}: {row}")


def _mechanism(sources: Sources) -> Iterator[Fact]:
    for party in sources.tables:
        if party.epsilons:
            spent = party.epsilons[-1].spent
            noise = (
                f"noise multiplier {float(spent.noise_multiplier):g}, sampling rate {float(spent.sampling_rate):.4g}"
            )
            what = (
                f"{spent.mechanism}, {noise}, clip norm {float(spent.max_grad_norm):g}, accountant {spent.accountant}"
            )
            yield Fact(f"{party.party}: {what}.", f"ledger-updated in round {party.epsilons[-1].round}")


def _limit(sources: Sources) -> Iterator[Fact]:
    for log, policy in _policies(sources):
        noise = "must train with noise" if policy.dp.required else "may train without noise"
        most = f"epsilon {policy.dp.target_epsilon:g} at delta {policy.dp.target_delta:g}"
        yield Fact(f"{log.party}: it {noise}; rounds with noise cost at most {most}.", _policy(log))


def _unit(sources: Sources) -> Iterator[Fact]:
    for log, policy in _policies(sources):
        unit = {"sample": "one row, added or removed"}.get(policy.dp.unit, policy.dp.unit)
        yield Fact(f"{log.party}: {unit}.", _policy(log))


def _trust(sources: Sources) -> Iterator[Fact]:
    for log, policy in _policies(sources):
        others = f"at least {counted(policy.min_others, 'other site')} that it trusts in each sum"
        allowed = f"at most visibility {policy.max_visibility}, {others}, {policy.max_colluders} of them colluding"
        yield Fact(f"{log.party}: {allowed}. The target is treated as the adversary.", _policy(log))


def _stated(sources: Sources, key: str) -> Iterator[Fact]:
    for log, policy in _policies(sources):
        if said := getattr(policy.agreement, key):
            yield Fact(f"{log.party} states: {said}", _policy(log))


def _columns(sources: Sources) -> Iterator[Fact]:
    for log, policy in _policies(sources):
        if columns := policy.agreement.columns:
            yield Fact(f"{log.party}: no column of a table but {names([*columns])}.", _policy(log))


def _kept(sources: Sources) -> Iterator[Fact]:
    for log, policy in _policies(sources):
        agreed = policy.agreement
        for what, days in (("logs", agreed.keep_logs_days), ("models", agreed.keep_models_days)):
            if days:
                yield Fact(f"{log.party} states: {what} are kept for {counted(days, 'day')}.", _policy(log))


def _levels(sources: Sources) -> Iterator[Fact]:
    for flow in alike(all_flows(sources.tables)):
        if flow.what != "model":
            yield Fact(f"{words.alike_text(flow)}.", f"records of {names(flow.disclosers)}, with their visibility")


def _recipients(sources: Sources) -> Iterator[Fact]:
    received: dict[str, set[str]] = {}
    for flow in all_flows(sources.tables):
        received.setdefault(flow.receiver, set()).add(words.what_text(flow.what))
    for site, what in sorted(received.items()):
        yield Fact(f"{site} received {names(sorted(what))}.", "the records of those who sent it")


def _actors(sources: Sources) -> Iterator[Fact]:
    roster = sources.keys.roster
    for entry in roster.entries:
        who = f"{entry.site_id}: {entry.role}, {entry.legal_entity}"
        yield Fact(f"{who}.", f"roster of epoch {roster.epoch}, SHA-256 {sources.keys.digest[:16]}…")


def _integrity(sources: Sources) -> Iterator[Fact]:
    roots = (f"{log.party} {log.verification.root.hex()[:16]}…" for log in sources.logs if not log.is_copy)
    yield Fact(sources.verdict.text, f"roots of the newest checkpoints: {names([*roots])}")


def _period(sources: Sources) -> Iterator[Fact]:
    for party in sources.tables:
        if party.records:
            span = words.span_text(party.first, party.last)
            yield Fact(f"{party.party}: {counted(party.records, 'record')}, {span} UTC.", "the site's own log")


def _task(sources: Sources) -> Iterator[Fact]:
    began = [dict(mark.detail) for party in sources.tables for mark in party.milestones if mark.kind == "run-began"]
    for task in sorted({facts["task"] for facts in began}):
        yield Fact(f"The run trained for the task {task}.", "run-began, the first record of each log")


def _model(sources: Sources) -> Iterator[Fact]:
    for party in sources.tables:
        for mark in party.milestones:
            if mark.kind == "model-kept":
                digest = dict(mark.detail)["model"]
                yield Fact(f"{party.party} kept the final model.", f"model-kept: SHA-256 {digest[:16]}…")


def _incidents(sources: Sources) -> Iterator[Fact]:
    yield Fact(words.incidents_text(sources.tables), "the records of alarms, aborts and refusals in each log")


def _conduct(sources: Sources) -> Iterator[Fact]:
    history = sources.history
    runs, lost = len({run.run for run in history.runs}), sum(run.lost for run in history.runs)
    found = "; ".join(finding.what for finding in history.findings) or "nothing in them exceeds the limits of conduct"
    yield Fact(f"{counted(runs, 'run')}, rounds lost: {lost}; {found}.", "all logs of these sites that are here")


def _training(sources: Sources) -> Iterator[Fact]:
    good = ["No training diverged and no loss rose."] if sources.record is not None else []
    for fault in sources.training or good:
        yield Fact(fault, "signed refusals, and the target's run folder, which is not signed")


FACTS: Final[Mapping[str, Callable[[Sources], Iterator[Fact]]]] = {
    "bounds": _bounds,
    "epsilon": _epsilon,
    "mechanism": _mechanism,
    "limit": _limit,
    "unit": _unit,
    "trust": _trust,
    "purpose": partial(_stated, key="purpose"),
    "legal basis": partial(_stated, key="legal_basis"),
    "columns": _columns,
    "days that logs and models are kept": _kept,
    "levels": _levels,
    "recipients": _recipients,
    "actors": _actors,
    "integrity": _integrity,
    "period": _period,
    "task": _task,
    "model": _model,
    "incidents": _incidents,
    "conduct": _conduct,
    "training": _training,
}
"""What an audit can say, by the names that `securefda.audit.report.mappings` uses. One without an item is unknown."""


def require_mappings(asked: Sequence[str]) -> None:
    """Raise ConfigError if a mapping is none."""
    for name in asked:
        if name not in MAPPINGS:
            raise ConfigError(f"--map {name}", "is no text that is known", hint=f"one of {', '.join(MAPPINGS)}")


def answers(sources: Sources, name: str) -> list[Answer]:
    """Return the answers to the questions of a text."""
    return [_answer(sources, question) for question in MAPPINGS[name].questions]


def _answer(sources: Sources, question: Question) -> Answer:
    by_name = {name: tuple(FACTS[name](sources)) for name in question.facts}
    facts = tuple(fact for found in by_name.values() for fact in found)
    if question.system:
        facts += (Fact(question.system, question.see),)
    unknown = [f"no record here says: {name}" for name, found in by_name.items() if not found]
    still_open = "; ".join([*unknown, *([question.open] if question.open else [])])
    return Answer(question, "not answered" if not facts else "in part" if still_open else "answered", facts, still_open)


def mapping_json(sources: Sources, name: str) -> dict[str, Any]:
    """A text with its answers, for programs."""
    text = MAPPINGS[name]
    return {
        "name": name,
        **{key: getattr(text, key) for key in ("title", "dated", "source", "compared")},
        "questions": [
            {
                "under": answer.question.under,
                "asks": answer.question.asks,
                "status": answer.status,
                "answers": [{"answer": fact.answer, "support": fact.support} for fact in answer.facts],
                "not_answered": answer.open or None,
            }
            for answer in answers(sources, name)
        ],
    }


def mapping_line(sources: Sources, name: str) -> str:
    """How many questions of a text are answered, on one line."""
    found = [*map(attrgetter("status"), answers(sources, name))]
    parts = (f"{found.count(status)} {status}" for status in ("answered", "in part", "not answered"))
    return f"{counted(len(found), 'question')} of {MAPPINGS[name].name}: {', '.join(parts)}"


def mapping_section(sources: Sources, name: str) -> Section:
    """The section of the page with a text and its answers."""
    text = MAPPINGS[name]
    rows: list[Sequence[Cell]] = []
    for answer in answers(sources, name):
        left: list[Line] = [("unknown", f"{_NOT_ANSWERED}: {answer.open}")] if answer.open else []
        said: list[Line] = [*(("", fact.answer) for fact in answer.facts), *left]
        support: list[Line] = [("", one) for one in dict.fromkeys(fact.support for fact in answer.facts)]
        rows.append((answer.question.under, answer.question.asks, said, support or "–"))
    note = (
        f"{text.dated}, {text.source}. {text.compared}. The questions are in our words. An answer is what this "
        "system's records and figures say; it is no legal opinion, and says nothing about conformity."
    )
    table = Table(("under", "question", "answer", "supported by"), rows, broad={1, 2, 3})
    return Section(f"map-{name}", text.title, [table], note=note, short=text.name)


def _policies(sources: Sources) -> Iterator[tuple[LogState, SourcePolicy]]:
    for log in sources.logs:
        if log.policy.policy is not None and not log.is_copy:
            yield log, log.policy.policy


def _policy(log: LogState) -> str:
    return f"policy-loaded: policy.toml with SHA-256 {log.policy.loaded[-1][:16]}…"
