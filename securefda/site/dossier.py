"""Two printed pages for those who sign a policy: who gets what, who can learn what, what lasts, how to stop.

Everything on it follows from the site's own kit: policy, roster, task and ledgers. What attacks found comes from
:mod:`securefda.site.policy.measured`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from securefda.disk import read_file
from securefda.errors import SecureFdaError
from securefda.pages.parts import Cell, Facts, Line, Lines, Page, Part, Section, State, Table
from securefda.privacy.accountants import epsilon
from securefda.privacy.ledger import rows_of
from securefda.privacy.ledger_storage import charged, ledgers_of
from securefda.privacy.planning import Schedule, rounds_within
from securefda.protocol.build import Build
from securefda.protocol.messages import Visibility
from securefda.protocol.roster import RosterEntry
from securefda.rules.strategy import Rule
from securefda.site.budget import MOST_ROUNDS
from securefda.site.config import SourceConfig
from securefda.site.kit import LOCAL, POLICY_FILE, REQUEST_FILE, Kit, naming
from securefda.site.policy import SourcePolicy, parse_policy, require_satisfiable, rules_that_send_features
from securefda.site.policy.measured import members_in, rounds_to_imprint
from securefda.site.policy.schema import SELECTION
from securefda.site.policy.signed import SignedBy
from securefda.site.privacy_account import LEDGERS
from securefda.task_digest import columns_read, task_digest
from securefda.text import bound_text, counted, first_of

_NOT_STATED = "not stated"
_MOST_COLUMNS = 40
_CERTAIN = 100.0
"""An epsilon that limits nothing; its exponential is still a number."""


@dataclass(frozen=True, slots=True)
class Spent:
    """A ledger of the site.

    Attributes:
        data_set: its name.
        rows: of the data set.
        epsilon: spent since the last reset, at the policy's delta.
        pays_for: rounds that the whole budget pays for by the site's settings, at most `MOST_ROUNDS`; None where the
            settings do not say.
    """

    data_set: str
    rows: int
    epsilon: float
    pays_for: int | None = None


@dataclass(frozen=True, slots=True)
class Dossier:
    """What the two pages are made from.

    Attributes:
        kit: of a source.
        policy: as it stands in the kit, signed or not.
        digest: SHA-256 of its file, in hex.
        people: who signed this file by name.
        fault: why the signature is not right; empty where it is.
        task: class and options by the site's settings; None without settings.
        spent: one for each ledger.
        today: in UTC, as ``2027-06-30``.
    """

    kit: Kit
    policy: SourcePolicy
    digest: str
    people: tuple[SignedBy, ...]
    fault: str
    task: tuple[str, Mapping[str, object]] | None
    spent: tuple[Spent, ...]
    today: str

    @property
    def site(self) -> str:
        """The site's id."""
        return self.kit.site_id

    @property
    def target(self) -> str:
        """The target's organisation."""
        return self.kit.roster.target.legal_entity

    @property
    def in_clear(self) -> bool:
        """Whether the target may see single updates."""
        return self.policy.visibility is Visibility.INDIVIDUAL


def read_dossier(kit: Kit, config: SourceConfig | None, now: datetime) -> Dossier:
    """Read what a source's dossier says.

    Args:
        kit: of a source.
        config: its settings, if it has any.
        now: current time, with a time zone.

    Raises:
        ConfigError: policy or settings cannot be used.
        LedgerError: a ledger cannot be read.
    """
    file = kit.local / POLICY_FILE
    data = read_file(file).data
    with naming(kit.site_id):
        policy = parse_policy(data, file)
        require_satisfiable(policy, kit.site_id, [entry.site_id for entry in kit.roster.sources])
    people: tuple[SignedBy, ...] = ()
    fault = ""
    try:
        people = kit.signers()
        kit.signed_policy()
        policy.session_limits(kit.roster)
    except SecureFdaError as error:
        fault = str(error)
    task = None if config is None else (config.task.factory, config.task.options)
    spent = spent_of(kit.root, policy, config)
    digest, today = hashlib.sha256(data).hexdigest(), now.astimezone(UTC).date().isoformat()
    return Dossier(kit, policy, digest, people, fault, task, spent, today)


def spent_of(root: Path, policy: SourcePolicy, config: SourceConfig | None = None) -> tuple[Spent, ...]:
    """Return what each ledger in a kit's folder has spent. Raises LedgerError: one cannot be read."""
    return tuple(_spent(ledger, policy, config) for ledger in ledgers_of(root / LOCAL / LEDGERS))


def of_several(rows: int, epsilon: float, delta: float) -> tuple[float, float]:
    """Return epsilon and delta of so many rows together, where these are of one row.

    Vadhan, "The Complexity of Differential Privacy", 2017, lemma 2.2.
    """
    if rows * epsilon > _CERTAIN:
        return rows * epsilon, 1.0
    return rows * epsilon, min(1.0, delta * sum(math.exp(one * epsilon) for one in range(rows)))


def guessed_right(epsilon: float) -> float:
    """Return in how many of 100 cases a guess at even odds can be right, for who knows all other rows; delta apart."""
    return math.ceil(10_000 / (1 + math.exp(-epsilon))) / 100  # an upper bound is rounded up


def found_at_most(epsilon: float, delta: float) -> int:
    """Return how many of 100 used rows anybody can find who takes one in a hundred unused ones for used.

    Kairouz, Oh and Viswanath, "The composition theorem for differential privacy", ICML 2015, equation 3.
    """
    alarms = 0.01
    first = math.exp(min(epsilon, _CERTAIN)) * alarms + delta
    return math.ceil(100 * min(1.0, first, 1 - math.exp(-epsilon) * (1 - alarms - delta)))


def _spent(ledger: Path, policy: SourcePolicy, config: SourceConfig | None) -> Spent:
    entries, dp = rows_of(ledger), policy.dp
    rows = entries[0].fields["samples"]
    spent = Spent(ledger.stem, rows, epsilon(charged(entries), dp.target_delta, dp.accountant))
    if config is None or not _trains(policy) or not config.training.with_noise or config.training.batch_size > rows:
        return spent
    training = config.training
    schedule = Schedule(rows, training.batch_size, training.epochs, MOST_ROUNDS)
    return replace(spent, pays_for=rounds_within(schedule, training.dp.noise_multiplier, dp.budget))


def _trains(policy: SourcePolicy) -> bool:
    """Whether some rule that the policy permits trains at the source, and does not only add moments."""
    return bool(set(policy.allowed_rules) - {Rule.ANALYTIC})


def page_of(dossier: Dossier) -> Page:
    """Return the two pages."""
    policy, kit = dossier.policy, dossier.kit
    template = policy.agreement.template or "none"
    return Page(
        f"What {dossier.site} agrees to",
        (
            f"Federation {kit.federation_id}, list of sites no. {kit.roster.epoch}. Policy of {kit.entry.legal_entity} "
            f"({dossier.site}) as of {dossier.today}. Made from: {template}.",
            f"SHA-256 of the policy: {dossier.digest}. Where it and this page differ, the policy counts.",
        ),
        _state(dossier),
        (
            Section("parties", "Who takes part, and who must be trusted", (_parties(dossier),)),
            Section("data", "Which data are used", (Facts(tuple(_data(dossier))),)),
            Section("leaves", "What leaves, in which form, to whom", (_leaves(dossier),)),
            Section("learns", "Who can learn what", (_learns(dossier),), note=_learns_note(dossier)),
            Section("noise", "What ε (epsilon) means here", tuple(_noise(dossier))),
            Section("rest", "What remains at risk", (Lines([("care", line) for line in _rest(dossier)]),)),
            Section("time", "How long, how to stop, what cannot be undone", (Facts(tuple(_time(dossier))),)),
            Section("words", "Words", (Facts(tuple(_words(dossier))),)),
            Section("signatures", "Signatures", (_signatures(dossier),)),
        ),
    )


def _state(dossier: Dossier) -> State:
    agreed = dossier.policy.agreement
    lines: list[Line] = [
        ("", f"Purpose (a statement): {agreed.purpose or _NOT_STATED}"),
        ("", f"Legal basis (a statement): {agreed.legal_basis or _NOT_STATED}"),
        ("", f"Contract with recipient and sources (a statement): {agreed.contract or _NOT_STATED}"),
    ]
    recipient = f"{agreed.recipient} (checked)" if agreed.recipient else dossier.target
    lines.append(("", f"Recipient of sums and model: {recipient}. The other sources get the model, too"))
    if agreed.expires and dossier.today > agreed.expires:
        return State("failed", f"Ended on {agreed.expires}", "The source refuses every round.", lines=lines)
    if dossier.fault:
        return State("care", "Not in force", f"No process starts with it: {dossier.fault}.", lines=lines)
    if not dossier.people:
        why = (
            f"Signed with the key of {dossier.site}, by no person: the authority may have done it when it made the key."
        )
        return State("care", "In force, and nobody has signed it by name", why, lines=lines)
    by = ", ".join(f"{person.name} ({person.role})" for person in dossier.people)
    why = f"This site's process may take part: the key of {dossier.site} signed the policy, in the name of {by}."
    return State("done", "In force", f"{why} No process can know who typed these names.", lines=lines)


def _parties(dossier: Dossier) -> Table:
    kit, policy = dossier.kit, dossier.policy
    others = [entry.legal_entity for entry in _others(kit)]
    if dossier.in_clear:
        helped = "nothing helps: this policy lets the target see single updates"
    elif policy.max_colluders:
        spare = policy.max_colluders
        helped = f"that at most {spare} of them {'passes what it knows' if spare == 1 else 'pass what they know'}"
        helped += " to the target"
    else:
        helped = "that none of them gives the target its own update, masks or keys"
    named = f" Named as trusted: {', '.join(policy.trusted_peers)}." if policy.trusted_peers else ""
    rows: list[list[Cell]] = [
        [dossier.target, "target: gets sums and model", _OF_THE_TARGET],
        [kit.entry.legal_entity, "source: this site", "its own machine, and the secrecy of its keys"],
        [first_of(others, 6), f"{counted(len(others), 'other source')}", f"{helped}.{named}"],
        [
            policy.agreement.authority or "the authority",
            "authority: signed the list of sites",
            f"that the sites are real and separate, and that it is not the target. {_who_made_the_keys(kit)}",
        ],
        [
            f"securefda {Build.own().software_version}",
            "the software",
            "that this site's copy does what it says; nobody checks the copies of others",
        ],
    ]
    return Table(("organisation", "part", "what it is trusted for"), rows, broad=(2,))


def _others(kit: Kit) -> list[RosterEntry]:
    """Return the other sources that have not left."""
    return [entry for entry in kit.roster.sources if entry.site_id != kit.site_id and not entry.has_left]


def _made_its_own_keys(kit: Kit) -> bool:
    return (kit.local / REQUEST_FILE).exists()


def _who_made_the_keys(kit: Kit) -> str:
    if _made_its_own_keys(kit):
        return "This site made its own keys"
    return "It made this site's keys, so it can pose as this site"


def _data(dossier: Dossier) -> Iterator[tuple[str, str]]:
    policy = dossier.policy
    if dossier.task is None:
        yield "task", "the site has no settings yet, so its task is not known"
        return
    factory, options = dossier.task
    pinned = f"{factory}@{task_digest(factory, options)}" in policy.allowed_tasks
    if pinned:
        by = f"the policy pins its options and code, by the digest {task_digest(factory, options)[:16]}…"
    elif factory in policy.allowed_tasks:
        by = "the policy names its class, and leaves options and code open"
    elif policy.allowed_tasks:
        by = "the policy does not allow it: this site would not start"
    else:
        by = "the policy allows any task"
    yield "task", f"{factory}; {by}"
    read = columns_read(options)
    if read:
        shown = f"{first_of(read, _MOST_COLUMNS)}"
        yield "columns read", f"{counted(len(read), 'column')}: {shown}"
        agreed = policy.agreement.columns
        more = [name for name in read if name not in agreed] if agreed else []
        why = f"the policy refuses {', '.join(more)}: this site would not start"
        limit = "no other column may be read (checked, by name)" if agreed else "the policy does not limit columns"
        yield "limit", why if more else limit
        yield "preparation", "; ".join(_prepared(options))
        yield (
            "mapping",
            "a file of this site may say which of its columns has which name, and convert units; it stays here, and "
            "what it puts under a name is not checked",
        )
    else:
        yield "columns read", "the task names none: its code decides what is read"
    if dossier.spent:
        counts = ", ".join(f"{one.data_set}: {counted(one.rows, 'row')}" for one in dossier.spent)
        yield "data sets with a budget", counts
    most = policy.agreement.rows_per_person
    yield "rows of one person", f"at most {most} (a statement)" if most else _NOT_STATED
    yield "never sent as such", "rows, files and this policy. A sum can reveal content of rows: see who can learn what"


def _prepared(options: Mapping[str, object]) -> Iterator[str]:
    """Say what happens to a table's columns before training, by kind."""
    columns = options.get("columns")
    kinds: dict[str, list[str]] = {}
    for name, column in columns.items() if isinstance(columns, Mapping) else ():
        if isinstance(column, Mapping):
            kinds.setdefault(str(column.get("type")), []).append(str(name))
    words = {
        "number": "minus a public center, divided by a public scale",
        "category": "one of a public list of values",
    }
    for kind, said in words.items():
        if found := kinds.get(kind):
            yield f"{first_of(found, 8)}: {said}"


def _leaves(dossier: Dossier) -> Table:
    policy, target = dossier.policy, dossier.target
    release, rules = policy.release, policy.allowed_rules
    runs = f"{counted(release.max_runs, 'run')} a day" if release.max_runs else "each run needs consent"
    often = f"each round; {counted(release.max_rounds, 'round')} a run, {runs}"
    form = {
        Visibility.SUM: f"masked; only a sum over at least {policy.smallest_sum} sources can be opened",
        Visibility.COHORT: f"masked; only sums over random groups of at least {policy.smallest_sum} can be opened",
        Visibility.INDIVIDUAL: "in clear",
    }[policy.visibility]
    if policy.dp.required:
        form += ", with noise of this site"
    counts = ", without noise" if policy.dp.required else ""
    sizes = f"{'one number a layer' if policy.norm_cap.granularity == 'layer' else 'one number'}, coarsely rounded"
    rows: list[list[Cell]] = []
    if _trains(policy):
        rows.append(["the update: how training changed the model", form, target, often])
    if Rule.ANALYTIC in rules:
        rows.append(["second moments: how often features occur together", form, target, "once a run"])
    has_metrics = _trains(policy) and not policy.dp.required
    numbers = "number of rows, loss, accuracy" if has_metrics else "number of rows"
    if dossier.in_clear:
        named = {"samples": "number of rows", "loss": "loss", "accuracy": "accuracy"}
        numbers = ", ".join(named[name] for name in policy.metadata.may_leave if has_metrics or name == "samples")
    if policy.visibility is not Visibility.SUM and "samples" in policy.metadata.may_leave:
        numbers += "; number of steps, under a rule that does not align updates"
    beside = "beside the update, in clear" if dossier.in_clear else "as sums over the same sources"
    rows.append([numbers, beside + counts, target, "each round"])
    if_a_sum = ", where the target asks for a sum" if dossier.in_clear else ""
    in_sums = [name for name in ("loss", "accuracy") if name not in policy.metadata.may_leave]
    if dossier.in_clear and in_sums and has_metrics:
        rows.append([", ".join(in_sums), f"as sums{if_a_sum}", target, "each round"])
    if SELECTION in rules:
        rows.append(["estimated errors of the rules", "as sums", target, "each round"])
    if features := rules_that_send_features(policy):
        pulled = "how this site's features lie to those that the target sent"
        rows.append([pulled, form, target, f"under {', '.join(features)}"])
    rows.append(["the model so far", "in clear", "all sites", "each round"])
    rows.append(["size of this site's contribution", sizes + if_a_sum, "the other sources", "each round"])
    rows.append(["when it takes part, and which rule of this policy refused a request", "in clear", target, "always"])
    agreed = "fingerprints of this site's log" + ("" if dossier.in_clear else ", and what masks are agreed with")
    rows.append([agreed, "no content of rows", "all sites, through the target", "each round"])
    return Table(("what", "form", "who sees it", "how often"), rows, broad=(1,))


_OF_THE_TARGET = (
    "nothing that limits what it sees: it may deviate in any way. What it does with the model, only a contract limits"
)
_LEARNS_NOTE = (
    "Found: so many of 100 used rows an attack found in ten rounds of a test with handwritten digits, uncertain by "
    "about 2. It knew all rows that could be this site's, and took one in a hundred unused ones for used. "
    "Guessing finds 1. Other data, better attacks and more rounds give other figures. {of_noise}{of_sums}Both columns "
    "are about whether a row was used{of_content}."
)
_OF_NOISE = (
    "At most: what ε allows at the same rate of false alarms, over all rounds. It leaves out the number of rows, which "
    "is exact. It holds for all these readers together, lying or not, since this site adds its noise itself. "
)


def _learns_note(dossier: Dossier) -> str:
    policy = dossier.policy
    spare = policy.max_colluders if not dossier.in_clear else 0
    of_sums = f"Sums are counted without the {counted(spare, 'source')} that may help the target. " if spare else ""
    noise, content = ("", "") if not policy.dp.required else (_OF_NOISE, f"; what it says: {_limits(2, policy)[1]}")
    return _LEARNS_NOTE.format(of_noise=noise, of_sums=of_sums, of_content=content)


def _learns(dossier: Dossier) -> Table:
    policy, target = dossier.policy, dossier.target
    noise = policy.dp.target_epsilon if policy.dp.required else None
    hides = 1 if dossier.in_clear else policy.min_others + 1
    spare = 0 if dossier.in_clear else policy.max_colluders
    used = "whether a row that it knows was used"
    one = "this site's update of each round" if dossier.in_clear else "one sum a round, and the model"
    helped = f", also with {counted(spare, 'source')} that helps it" if spare == 1 else ""
    helped = f", also with {spare} sources that help it" if spare > 1 else helped
    size = "; from the helper, the size of this site's contribution" if spare else ""
    rows: list[list[Cell]] = [
        [f"{target}, if it follows the rules{helped}", f"{one}; from these, {used}{size}", _found(hides, noise)]
    ]
    limit = policy.limits.model_step
    lies = "more: it leads the model, over some rounds, to one that copies single rows into the sum. "
    slow = rounds_to_imprint(limit)
    paced = f"in a test {counted(slow, 'finished round')} were enough" if slow else "the pace was not measured"
    lies += f"The policy slows this (model-step {limit:g}): {paced}"
    if not policy.dp.required and any(rule.value in policy.allowed_rules for rule in Rule if rule.adapts):
        lies += "; with made-up statistics, single row counts and lengths of updates"
    rows.append([f"{target}, if it lies", lies, "not measured"])
    if not dossier.in_clear:
        keys = "" if _made_its_own_keys(dossier.kit) else ", with keys that the authority made"
        more = f"{target} with {counted(spare + 1, 'source')} or more{keys}, or if this site is away in one round"
        fewer = "sums over fewer sources, and differences of sums; in the worst case, this site's update alone"
        rows.append([more, fewer, _found(1, noise)])
    alone = f"from every model, {used}; the size of this site's contribution"
    rows.append(["another source alone", alone, "not measured; at least as from the final model"])
    rows.append(["anyone with the final model", used, _found(hides, noise, model=True)])
    at_most = f"{_limits(1, policy)[1]}" if noise else "no limit"
    rows = [[*row, at_most] for row in rows]
    rows.append(["who has this site's machine", "everything that this site knows", "all", "no limit"])
    return Table(("who", "can learn", "found", "at most"), rows, broad=(1,))


def _found(sources: int, noise: float | None, *, model: bool = False) -> str:
    """Say what attacks found, for no more sources and no less noise than were measured."""
    found = members_in(sources, noise)
    count = found.in_model if model else found.in_sums
    of = "final model" if model else "single updates" if found.sources == 1 else f"sums over {found.sources}"
    least = "" if model or found.sources == sources else "at most as from "
    return f"{count} of 100 ({least}{of}, {'no noise' if found.epsilon is None else f'ε = {found.epsilon:g}'})"


def _noise(dossier: Dossier) -> Iterator[Part]:
    policy = dossier.policy
    dp = policy.dp
    one = f"ε = {dp.target_epsilon:g}"
    added = ["in each step of training (DP-SGD)"] if _trains(policy) else []
    added += ["once, in the second moments"] if Rule.ANALYTIC in policy.allowed_rules else []
    if dp.required:
        yield (
            f"Noise is required. {one} limits what all that leaves reveals about one row, except through the number of "
            "rows. It is for all rounds and runs together, and also holds if the target lies and all other sources "
            "help it. It does not hold against one inside this site's machine. Once it is spent, no round begins. The "
            f"noise is Gaussian, {', and '.join(added)}; its cost is added up by {dp.accountant.upper()}."
        )
    else:
        yield (
            "Noise is not required: the site may train without it, and then no number bounds what leaves. If its "
            f"settings add noise, {one} limits what one row reveals, except through the number of rows."
        )
    right, found = _limits(1, policy)
    yield (
        "Used or not: someone who knows all other rows guesses, at even odds, whether this one was used. That person "
        f"is right in at most {right} cases, and in 50 without seeing any of it. At one false alarm in a hundred, "
        f"at most {found} used rows are found. δ (delta) = {dp.target_delta:g} is, loosely, the probability that the "
        "limit fails."
    )
    most = policy.agreement.rows_per_person
    right, found = _limits(max(2, most), policy)
    several = f"For {max(2, most)} rows of one person these limits are {right} and {found}."
    stated = {0: f"How many rows a person has is not stated. {several}", 1: "A person has one row here (a statement)."}
    two = "{} and {}".format(*_limits(2, policy))
    yield (
        f"{stated.get(most, several)} A guess at what a row says, such as ill or not ill, has the limits for two rows, "
        f"the one that it is and the one that it could be: {two}. The number of rows leaves without noise. Who knows "
        "all other rows here, and the other sites' numbers, learns from it for certain whether there is one row more."
    )
    for ledger in dossier.spent:
        rounds = ledger.pays_for
        more = " or more" if rounds == MOST_ROUNDS else ""
        pays = (
            ""
            if rounds is None
            else f"By the present settings the budget pays for {counted(rounds, 'round')}{more} in all. "
        )
        yield (
            f"Spent so far on data set {ledger.data_set}: ε = {bound_text(ledger.epsilon)} of {dp.target_epsilon:g}. "
            f"{pays}A reset needs a reason and the site's signature; after one, the limits for a row are those for two "
            "rows."
        )
    if not dossier.spent:
        yield "The kit has no ledger, which a site makes before it trains with noise: nothing was charged here."


def _limits(rows: int, policy: SourcePolicy) -> tuple[str, str]:
    """Return in how many of 100 cases a guess about so many rows can be right, and how many of 100 can be found."""
    epsilon, delta = of_several(rows, policy.dp.target_epsilon, policy.dp.target_delta)
    return f"{guessed_right(epsilon):g} of 100", f"{found_at_most(epsilon, delta)} of 100"


def _rest(dossier: Dossier) -> Iterator[str]:
    policy = dossier.policy
    if dossier.in_clear:
        yield "The target sees each update by itself: no sum hides it."
    if not policy.dp.required:
        yield "A sum hides whose part is whose. It does not hide whether a row was used; only noise bounds that."
    if not policy.dp.required:
        yield "Many rounds together reveal more than one."
    if not dossier.in_clear:
        sent = ", as it was sent, with its noise" if policy.dp.required else ""
        yield (
            "If this site is away in one round, the difference between the sum then and one before or after shows "
            f"roughly its update{sent}, and exactly its number of rows."
        )
    if policy.visibility is Visibility.COHORT:
        yield "Each round sums over another random group, so many rounds tell more of this site than one sum does."
    yield "The target chooses what it asks. It and every source can pass the model on, and nobody can check that."
    if not policy.agreement.columns:
        yield "The policy does not limit which columns the task reads."
    if any("@" not in task for task in policy.allowed_tasks) or not policy.allowed_tasks:
        yield "Options and code of the task are not pinned: a change of the site's settings changes what is read."
    if not policy.agreement.signatures_required:
        yield "The policy counts with the site's key alone: no named person has to sign."


def _time(dossier: Dossier) -> Iterator[tuple[str, str]]:
    policy = dossier.policy
    agreed = policy.agreement
    yield "policy ends", f"{agreed.expires} (checked)" if agreed.expires else "no end is set"
    no_more = "no round" if policy.dp.required else "no round with noise"
    ends = f"{policy.dp.expires} (checked): {no_more} begins after it" if policy.dp.expires else "no end is set"
    yield "budget ends", ends
    logs = counted(agreed.keep_logs_days, "day") if agreed.keep_logs_days else _NOT_STATED
    models = counted(agreed.keep_models_days, "day") if agreed.keep_models_days else _NOT_STATED
    final = {
        "any": "the target and, if the run says so, each source",
        "final": "the target and each source",
        "none": "the target alone, if sources keep no copies of their own",
    }[policy.model.keep]
    kept = f"final model: by {final}; logs: {logs}; models: {models} (a statement: people delete, no process does)"
    yield "kept after a run", kept
    others = len(_others(dossier.kit))
    goes_on = "goes on if enough others are left" if others >= policy.smallest_sum else "ends: too few are left"
    yield (
        "can we stop",
        f"at any time: stop the process. It sends nothing more, and the round {goes_on}. A masked update that was sent "
        "may still be opened in its sum. In the middle of a run this is being away: see what remains at risk",
    )
    yield (
        "how to leave",
        "securefda source leave --certificate: this kit then starts no process any more. Sites that take the "
        "certificate refuse its keys when they next start. The authority strikes the site off the list",
    )
    yield (
        "cannot be undone",
        "sums that were opened and models made from them stay with the others. No row can be taken out of them again. "
        "A row that is deleted here is not trained on again, and what it did to the model stays",
    )
    yield (
        "checked afterwards",
        "the site's own log says what left, when, and under which policy; the other sites countersign it, and would "
        "see a later change, but not what this machine leaves out",
    )


_WORDS = (
    (
        "checked, a statement",
        "this site's process compares what is checked, and refuses; a statement is signed text that nothing compares",
    ),
    (
        "mask",
        "random numbers that sources add to their updates; they cancel in the sum and hide each single one, for as "
        "long as the key agreement that they come from is unbroken ({agreements})",
    ),
)


def _words(dossier: Dossier) -> Iterator[tuple[str, str]]:
    agreements = " or ".join(name.upper().replace("-", " and ") for name in dossier.policy.key_agreements)
    for word, meaning in _WORDS:
        yield word, meaning.format(agreements=agreements)


def _signatures(dossier: Dossier) -> Table:
    rows: list[list[Cell]] = [[person.name, person.role, person.day, ""] for person in dossier.people]
    open_rows = max(dossier.policy.agreement.signatures_required, 2) - len(rows)
    rows += [["", "", "", ""] for _ in range(open_rows)]
    return Table(("name", "role", "typed on", "signature by hand"), rows, note=_SIGNED_NOTE)


_SIGNED_NOTE = (
    "Names, roles and days are those of securefda policy sign. A signature by hand is of the policy named above."
)
