"""``securefda policy``: a policy in words, and against a header; templates to start from; the site's signature."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import Kit, OutputFormat, file_or_sample, now
from securefda.cli.output import Format, print_outcome, print_result, print_text
from securefda.errors import ConfigError, SecureFdaError
from securefda.text import aligned, counted, names, quoted

if TYPE_CHECKING:
    from securefda.local.policy_check import Verdict
    from securefda.site.kit import Kit as StartupKit
    from securefda.site.policy import Change, SourcePolicy

app = typer.Typer(help="Explain, check and sign what may leave a site.")

_POLICY_HELP = "A site's startup kit, or a policy.toml."


@app.command("check")
def check(
    policies: Annotated[list[Path], typer.Argument(metavar="POLICY...", help=_POLICY_HELP)],
    asked: Annotated[
        Path,
        typer.Argument(
            metavar="FEDERATION|HEADER",
            help="A FEDERATION.toml, the name of a sample, or a header that a source kept.",
            parser=file_or_sample,
        ),
    ],
    site: Annotated[
        list[str],
        typer.Option("--site", metavar="SITE", help="Whose policy.toml it is, in order; default: the first sources."),
    ] = [],
    output: OutputFormat = Format.TXT,
) -> int:
    """Compare policies with the header that a run would open with, or with one that came; exit code 10 on a refusal."""
    from securefda.local.policy_check import PolicyCheckError, verdicts_on

    verdicts, levels = verdicts_on(policies, asked, site, os.environ, now())
    data: dict[str, Any] = {"asked": str(asked), "levels": levels, "policies": list(map(_verdict_json, verdicts))}
    table = aligned([row for verdict in verdicts for row in _verdict_rows(verdict)])
    errors = [PolicyCheckError(verdict.site, verdict.error) for verdict in verdicts if verdict.error is not None]
    if not errors and len(verdicts) > 1:
        table += "\nserved together: " + ", ".join(f"{name} at {level}" for name, level in levels.items())
    return print_outcome(output, data, table, errors[0] if errors else None)


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    """The first refusal, which is what a source would end with, stands beside the list of all."""
    common = {"site": verdict.site, "policy": str(verdict.path), "signed": verdict.signed}
    if (error := verdict.unusable) is not None:
        key = error.key if isinstance(error, ConfigError) else ""
        return common | {"verdict": "unusable", "key": key, "message": str(error), "hint": error.hint}
    if not verdict.refusals:
        return common | {"verdict": "permitted", "level": verdict.level}
    refusals = [
        {"key": refusal.key, "asked": str(refusal.asked), "allowed": str(refusal.allowed), "hint": refusal.hint}
        for refusal in verdict.refusals
    ]
    return common | {"verdict": "refused"} | refusals[0] | {"refusals": refusals}


def _verdict_rows(verdict: Verdict) -> list[tuple[str, str, str]]:
    """Return site, verdict and reason; hints and further reasons below."""
    if (error := verdict.unusable) is not None:
        answer, reasons = "unusable", [(str(error), error.hint)]
    elif verdict.refusals:
        answer = "refused"
        reasons = [
            (f"{refusal.key}: asked {refusal.asked}, allowed {refusal.allowed}", refusal.hint)
            for refusal in verdict.refusals
        ]
    else:
        unsigned = "" if verdict.signed else "; its signature was not checked, name the kit for that"
        answer, reasons = "permitted", [(f"at visibility {verdict.level}{unsigned}", "")]
    lines = [line for reason, hint in reasons for line in (reason, f"-> {hint}" if hint else "") if line]
    return [(verdict.site, answer, lines[0]), *(("", "", line) for line in lines[1:])]


@app.command("explain")
def explain(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help=_POLICY_HELP)],
    federation: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FEDERATION.toml]",
            help="Gives the number of sources if the policy is not in a kit; the name of a sample does, too.",
            parser=file_or_sample,
        ),
    ] = None,
    site: Annotated[str, typer.Option("--site", help="Whose policy.toml it is, where it is in no kit.")] = "",
    full: Annotated[bool, typer.Option("--full", help="All that each side can learn, and what that rests on.")] = False,
    output: OutputFormat = Format.TXT,
) -> None:
    """Say in ten lines what may leave a site under its policy, signed or not.

    With --full, it says all that the aggregator can and cannot learn, and what these claims rest on.
    """
    from securefda.site.config import load_federation
    from securefda.site.kit import PolicyFile, naming
    from securefda.site.policy import explain as in_words
    from securefda.site.policy import in_brief, load_policy, load_signed_policy, require_satisfiable

    file = PolicyFile.at(policy, now())
    if file.kit is not None and site not in ("", file.kit.site_id):
        members = [entry.site_id for entry in file.kit.roster.entries]
        why = f"{policy} is the kit of {file.kit.site_id}" if site in members else "is no site of this federation"
        raise ConfigError(
            f"--site {site}", why, hint=f"leave it out: a kit says whose it is; sites: {', '.join(members)}"
        )
    if file.kit is not None and file.kit.role == "target":
        _explain_target(file.kit, output)
        return
    name = file.kit.site_id if file.kit else site or "this site"
    sources: tuple[str, ...] = ()
    if federation is not None:
        sources = load_federation(federation, (), os.environ).federation.sources
    elif file.kit is not None:
        sources = tuple(entry.site_id for entry in file.kit.roster.sources)
    if site and sources and site not in sources:
        why = f"is no source of the federation in {federation}"
        raise ConfigError(f"--site {site}", why, hint=f"sources: {', '.join(sources)}")
    with naming(name) if file.kit is not None else nullcontext():
        loaded = load_policy(file.path)
    if sources and name in sources:
        require_satisfiable(loaded, name, sources)
    count = len(sources) or None if federation is not None or file.kit is None else _still_there(file.kit)
    words = in_words(loaded, name, count)
    signature = "not checked; name the kit for that"
    if file.kit is not None:
        try:
            load_signed_policy(file.kit)
            signature = f"right, by {file.kit.site_id}"
            if people := file.kit.signers():
                signature += f" and {counted(len(people), 'person', 'people')}"
        except SecureFdaError as error:
            signature = str(error)
    data = {"policy": str(file.path), "site": name, "sources": count, "signature": signature}
    if full:
        text = f"{words.text()}\n\nSignature: {signature}"
    else:
        brief = in_brief(loaded, count, file.kit.roster.target.site_id if file.kit else "")
        last = loaded.agreement.expires
        until = "" if not last else f"; until {last}" if now().date().isoformat() <= last else f"; ended on {last}"
        text = aligned([*brief, ("signed", f"{signature}{until}"), ("more", _full_command(policy, federation, site))])
    print_result(output, data | asdict(words), text)


def _still_there(kit: StartupKit) -> int:
    """Count the sources of a source's roster, itself among them, without those that have left."""
    return sum(not entry.has_left or entry.site_id == kit.site_id for entry in kit.roster.sources)


def _full_command(policy: Path, federation: Path | None, site: str) -> str:
    words = ["securefda", "policy", "explain", str(policy), *([str(federation)] if federation else [])]
    return shlex.join([*words, *(["--site", site] if site else []), "--full"])


@app.command("dossier")
def dossier(
    kit: Kit,
    out: Annotated[Path, typer.Option("--out", help="The page to write, .html or .pdf.")] = Path("dossier.html"),
    output: OutputFormat = Format.TXT,
) -> None:
    """Write a source's policy as two pages for those who sign: who gets what, who can learn what, how to stop.

    The page is HTML without scripts, to print on A4. A file that ends in .pdf is printed by Chromium or Chrome, which
    must be installed.
    """
    from securefda.disk import PUBLIC_MODE, require_new, write_file, writing_errors
    from securefda.pages.html import static_page
    from securefda.pages.pdf import browser_for, printed
    from securefda.site.config import load_source
    from securefda.site.dossier import page_of, read_dossier
    from securefda.site.kit import SETTINGS_FILE, load_kit

    require_new("--out", out)
    browser = browser_for("--out") if out.suffix.lower() == ".pdf" else ""
    own = load_kit(kit, now(), expected_role="source")
    settings = own.local / SETTINGS_FILE
    config = load_source(settings, (), os.environ) if settings.exists() else None
    found = read_dossier(own, config, now())
    page = static_page(page_of(found), f"{own.site_id}: what it agrees to", "securefda policy dossier", sheet=True)
    data = printed(page, browser, "--out") if browser else page.encode("utf-8")
    with writing_errors(out):
        write_file(out, data, PUBLIC_MODE)
    told = {"site": own.site_id, "file": str(out), "policy_sha256": found.digest, "fault": found.fault}
    print_result(output, told, f"{out}: two pages on A4{'' if browser else '; print it from a browser'}")


def _explain_target(kit: StartupKit, output: Format) -> None:
    """Explain what a target's settings ask for, since a target has no policy."""
    from securefda.site.asks import describe_target
    from securefda.site.config import load_aggregator
    from securefda.site.kit import SETTINGS_FILE

    config = load_aggregator(kit.local / SETTINGS_FILE, (), os.environ)
    words = describe_target(config, kit.site_id, tuple(entry.site_id for entry in kit.roster.sources))
    described = {"summary": words.summary, "asks": list(words.asks), "sends": list(words.sends)}
    then = "To see whether a source permits it, with the kits of sources at hand: securefda policy explain KIT"
    print_result(output, {"site": kit.site_id, "role": "target"} | described, f"{words.text()}\n\n{then}")


@app.command("template")
def template(
    name: Annotated[str, typer.Argument(metavar="NAME", help="strict, clinical-default or research-open.")],
    out: Annotated[Path | None, typer.Option("--out", help="File to write; default: print it.")] = None,
    site: Annotated[str, typer.Option("--site", help="Site id for the heading.")] = "this site",
    output: OutputFormat = Format.TXT,
) -> None:
    """Print a policy to start from, with the reason of each value."""
    from securefda.disk import require_new, write_file, writing_errors
    from securefda.site.policy import NAMED_POLICIES

    if name not in NAMED_POLICIES:
        raise ConfigError(
            f"template {name or repr(name)}", "does not exist", hint=f"there are {', '.join(NAMED_POLICIES)}"
        )
    text = NAMED_POLICIES[name].text(site)
    if out is None:
        print_result(output, {"template": name, "text": text}, text.rstrip("\n"))
        return
    require_new("--out", out)
    with writing_errors(out):
        write_file(out, text.encode("utf-8"), 0o644)
    print_result(output, {"template": name, "file": str(out)}, f"{out}: edit it, then run securefda policy sign KIT")


@app.command("sign")
def sign(
    kit: Kit,
    name: Annotated[str, typer.Option("--name", help="The person who signs, where people sign by name.")] = "",
    role: Annotated[str, typer.Option("--role", help="In which role: data protection officer.")] = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    output: OutputFormat = Format.TXT,
) -> None:
    """Sign KIT/local/policy.toml as its site; no process starts with an unsigned one.

    It shows what differs from the policy that the site signed last. On a terminal it asks before it signs. With --name,
    a person signs: those who signed the same policy before stay.
    """
    from contextlib import suppress
    from hashlib import sha256

    from securefda.disk import read_file, writing_errors
    from securefda.site.kit import POLICY_FILE, load_kit, naming
    from securefda.site.policy import changes, in_brief, parse_policy, require_satisfiable
    from securefda.site.policy import explain as in_words
    from securefda.site.policy.signed import SignedBy, read_with_people, with_person, write_policy_signature

    own = load_kit(kit, now())
    if own.role == "target":
        hint = f"name the kit of a source; what the target sees: securefda policy explain {quoted(kit)}"
        raise ConfigError(str(kit), "is the kit of a target, which has no policy", hint=hint)
    file, sources = own.local / POLICY_FILE, [entry.site_id for entry in own.roster.sources]
    contents = read_file(file).data
    with naming(own.site_id):
        policy = parse_policy(contents, file)
        require_satisfiable(policy, own.site_id, sources)
    people: tuple[SignedBy, ...] = ()
    with suppress(ConfigError):  # of another text or key: all sign again
        known, earlier = read_with_people(file, own.federation_id, own.site_id, own.entry.signing_key)
        people = earlier if known == contents else ()
    needed = policy.agreement.signatures_required
    if name or role or len(people) < needed:
        people = with_person(people, name, role, now().date().isoformat())
    before, compared = _signed_before(own, file)
    differs = None if before is None else changes(before, policy)
    gone = own.roster.gone
    shown = [f"{names(gone)} left {own.federation_id}"] if gone else []
    shown.append(compared if differs is None else _changes_text(differs, own.site_id))
    shown += ["", aligned(in_brief(policy, _still_there(own), own.roster.target.site_id)), ""]
    signed = not sys.stdin.isatty() or yes
    if not signed:
        print_text("\n".join(shown), sys.stderr)
        who = f"{people[-1].name}, for {own.site_id}" if name else own.site_id
        signed, shown = typer.confirm(f"sign it as {who}?", err=True), []
    words, digest = in_words(policy, own.site_id, _still_there(own)), sha256(contents).hexdigest()
    changed = None if differs is None else [asdict(change) for change in differs]
    data = {"site": own.site_id, "federation": own.federation_id, "policy": str(file), "sha256": digest}
    found: dict[str, Any] = data | asdict(words) | {"signed": signed, "changes": changed, "required": needed}
    found["left"] = list(gone)
    found["people"] = [asdict(person) for person in people]
    if not signed:
        print_result(output, found, "nothing was signed")
        return
    with writing_errors(file):
        write_policy_signature(file, contents, own.federation_id, own.site_id, own.signing_key, people=people)
    shown += [f"{own.site_id} signed {file} for {own.federation_id}", f"SHA-256 {digest}"]
    shown += [f"signed on {person.day}: {person.name}, {person.role}" for person in people]
    if len(people) < needed:
        shown.append(f"{needed - len(people)} more must sign by name before a process starts")
    print_result(output, found, "\n".join(shown))


def _signed_before(kit: StartupKit, file: Path) -> tuple[SourcePolicy | None, str]:
    """Return the policy that the site signed last, or None and why there is none to compare with."""
    from securefda.site.policy import parse_policy
    from securefda.site.policy.signed import last_signed_policy

    try:
        data = last_signed_policy(file, kit.federation_id, kit.site_id, kit.entry.signing_key)
        if data is None:
            return None, f"{kit.site_id} has signed no policy here before: all of it is new."
        return parse_policy(data, file), ""
    except ConfigError as error:
        return None, f"Nothing to compare with, so read all of it: {error}."


def _changes_text(found: Sequence[Change], site: str) -> str:
    """Describe what differs from the policy that was signed last: key, value before and now, and what it means."""
    from securefda.site.config.key_help import toml

    if not found:
        return f"No value differs from the policy that {site} signed last."
    lines = [f"What differs from the policy that {site} signed last:"]
    for change in found:
        if isinstance(change.old, tuple) and isinstance(change.new, tuple):
            less, more = sorted(set(change.old) - set(change.new)), sorted(set(change.new) - set(change.old))
            parts = [f"{word} {', '.join(names)}" for word, names in (("without", less), ("with", more)) if names]
            values = "; ".join(parts) or "in another order"
        else:
            values = f"{toml(change.old)} -> {toml(change.new)}"
        lines += [f"  {change.key}: {values}", f"    {change.meaning}"]
    return "\n".join(lines)
