"""``securefda site``: a site makes its own keys, asks to be enrolled, and joins."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import Kit, OutputFormat, SiteId, now
from securefda.cli.output import Format, print_result

if TYPE_CHECKING:
    from securefda.site.home import Joined
    from securefda.site.request import SiteRequest

app = typer.Typer(help="Make a site's keys at home, ask to be enrolled, and join.")


@app.command("init")
def init(
    site: SiteId,
    federation: Annotated[str, typer.Option("--federation", metavar="NAME", help="The federation to join.")],
    out: Annotated[Path | None, typer.Option("--out", help="The kit to make; default: a folder named SITE.")] = None,
    entity: Annotated[str | None, typer.Option("--entity", help="Organisation behind it; default: the id.")] = None,
    address: Annotated[
        str | None,
        typer.Option("--address", metavar="HOST:PORT", help="Of the target only: where the sources will reach it."),
    ] = None,
    name: Annotated[list[str], typer.Option("--name", metavar="HOST", help="Name in its certificate.")] = [],
    output: OutputFormat = Format.TXT,
) -> None:
    """Make a site's keys, and the request that the authority signs. With --address, it asks to be the target."""
    from securefda.site.endpoints import Address, SiteSpec
    from securefda.site.home import request_enrolment

    kit = out or Path(site)
    reached = Address.parse_reached(address, "--address") if address else None
    names = tuple(dict.fromkeys([*name, *([reached.host] if reached else [])]))
    spec = SiteSpec(site, "target" if reached else "source", entity or site, names)
    request = request_enrolment(kit, federation, spec, reached)
    print_result(output, _data(request, kit), _asked_text(request, kit, " --ca FINGERPRINT"))


@app.command("renew")
def renew(
    kit: Kit,
    name: Annotated[
        list[str], typer.Option("--name", metavar="HOST", help="Name in its certificate; default: those it has.")
    ] = [],
    lost_key: Annotated[
        bool, typer.Option("--lost-key", help="The present signing key or its passphrase is lost: it signs nothing.")
    ] = False,
    output: OutputFormat = Format.TXT,
) -> None:
    """Make new keys of an enrolled site, and the request for them. The old ones work until the site joins."""
    from securefda.site.home import request_renewal

    request = request_renewal(kit, now(), name or None, lost_key=lost_key)
    print_result(output, _data(request, kit), _asked_text(request, kit))


@app.command("join")
def join(
    kit: Kit,
    package: Annotated[Path, typer.Argument(metavar="PACKAGE", help="What the authority signed for this site.")],
    ca: Annotated[
        str | None,
        typer.Option(
            "--ca", metavar="FINGERPRINT", help="The CA's fingerprint, learnt another way; at the first join."
        ),
    ] = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Take a package of the authority into a kit whose keys the site made, if it fits them, and sign its roster."""
    from securefda.site.home import join as join_federation
    from securefda.site.request import entry_fingerprint
    from securefda.text import quoted

    joined = join_federation(kit, package, now(), expected_ca=ca)
    roster, public, at = joined.public.roster, joined.public, quoted(kit)
    fingerprints = {entry.site_id: entry_fingerprint(entry) for entry in roster.entries}
    lines = [
        f"{kit}: {public.role} {public.site_id} of federation {public.federation_id}, epoch {roster.epoch}",
        f"CA fingerprint: {public.ca.fingerprint}",
        f"roster (the same at every site): {roster.digest().hex()}",
        *_changes_lines(joined),
        "fingerprints of the sites' keys (compare them with the sites by phone):",
        *(f"  {site}  {fingerprint}" for site, fingerprint in fingerprints.items()),
    ]
    if joined.is_ready:
        lines.append("every member has signed")
        if public.role == "source":
            lines.append(
                f"read your policy and sign it: securefda policy explain {at}, then securefda policy sign {at}"
            )
        lines.append(f"then: securefda preflight {at}")
    else:
        if joined.signed is not None:
            lines.append(f"signed: send {joined.signed} to the authority, then join with the package that comes back")
        if joined.missing_signatures:
            lines.append(f"not yet signed by: {', '.join(joined.missing_signatures)}")
    data = {
        "kit": str(kit),
        "site": public.site_id,
        "epoch": roster.epoch,
        "ready": joined.is_ready,
        "signed_roster": str(joined.signed) if joined.signed else None,
        "missing_signatures": list(joined.missing_signatures),
        "previous_epoch": joined.previous.epoch if joined.previous else None,
        "changes": {what.replace(" ", "_"): list(sites) for what, sites in joined.changes.items()},
        "ca_fingerprint": public.ca.fingerprint,
        "roster_digest": roster.digest().hex(),
        "key_fingerprints": fingerprints,
    }
    print_result(output, data, "\n".join(lines))


@app.command("left")
def left(
    kit: Kit,
    certificate: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="Of a site that leaves.")],
    output: OutputFormat = Format.TXT,
) -> None:
    """Take the certificate of a site that leaves: a process that starts from now on refuses its keys.

    The site is refused when it connects, and headers and new rosters that name it are. A run that is under way does not
    notice before it is started again.
    """
    from securefda.disk import read_file
    from securefda.site.left import MAX_CERTIFICATE_BYTES, LeavingCertificate, take
    from securefda.site.package import load_public
    from securefda.text import counted, printable

    own = load_public(kit, now())
    read = LeavingCertificate.from_bytes(str(certificate), read_file(certificate, limit=MAX_CERTIFICATE_BYTES).data)
    file = take(own.local, own.roster, read)
    is_kept = read_file(file, limit=MAX_CERTIFICATE_BYTES).data == read.to_bytes()
    kept = f"kept as {file}" if is_kept else f"these keys are refused already, by {file}, which stays as it is"
    runs = []
    for one in read.runs:
        spent = f", epsilon {one.epsilon} spent so far" if one.epsilon else ", without noise" if one.rounds else ""
        runs.append(f"  run {one.run[:12]}: contributions of {counted(one.rounds, 'round')}{spent}")
    lines = [
        f"{read.site_id} left federation {read.federation_id} on {read.day}: {own.site_id} refuses its keys",
        *(["it states that this left it:", *map(printable, runs)] if runs else ["it states that nothing left it"]),
        f"{kept}; start the process of this site again",
    ]
    data = {
        "site": read.site_id,
        "left_at": read.left_at,
        "epoch": read.epoch,
        "file": str(file),
        "runs": [{"run": one.run, "rounds": one.rounds, "epsilon": one.epsilon or None} for one in read.runs],
    }
    print_result(output, data, "\n".join(lines))


@app.command("show")
def show(
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="A site's request.")],
    output: OutputFormat = Format.TXT,
) -> None:
    """Check a request and say what it asks for, with the fingerprint to compare by phone."""
    from securefda.site.enrolment import read_request
    from securefda.text import aligned, printable

    asked = read_request(request)
    data = _data(asked, None)
    rows = [(key.replace("_", " "), ", ".join(v) if isinstance(v, list) else str(v)) for key, v in data.items() if v]
    print_result(output, data, aligned([(key, printable(value)) for key, value in rows]))


def _changes_lines(joined: Joined) -> list[str]:
    if joined.previous is None or joined.previous == joined.public.roster:
        return []
    changes = [f"  {what}: {', '.join(sites)}" for what, sites in joined.changes.items() if sites]
    if not changes:
        return [f"members and keys are those of epoch {joined.previous.epoch}"]
    signing = " before you send your signature" if joined.signed else ""
    return [f"changed since epoch {joined.previous.epoch} (ask each site by phone{signing}):", *changes]


def _data(request: SiteRequest, kit: Path | None) -> dict[str, Any]:
    data = {
        "federation": request.federation_id,
        "site": request.site.site_id,
        "role": request.site.role,
        "legal_entity": request.site.legal_entity,
        "names": list(request.site.names),
        "address": str(request.address) if request.address else "",
        "key_fingerprint": request.fingerprint,
    }
    return data if kit is None else {"kit": str(kit), "request": str(_file(kit))} | data


def _asked_text(request: SiteRequest, kit: Path, ca: str = "") -> str:
    from securefda.site.enrolment import is_below_authority
    from securefda.text import quoted

    site = request.site.site_id
    known = "which no other site and no authority knows"
    if is_below_authority(kit):
        known = f"in the authority's own folder {kit.parent}: the authority can read them, and pose as {site}"
    return "\n".join(
        [
            f"{kit}: keys of {request.site.role} {site}, {known}",
            f"fingerprint of {site}: {request.fingerprint}",
            f"send {_file(kit)} to the authority, and compare the fingerprint by phone",
            f"then, with the package that comes back: securefda site join {quoted(kit)} PACKAGE{ca}",
        ]
    )


def _file(kit: Path) -> Path:
    from securefda.site.home import REQUESTED
    from securefda.site.kit import REQUEST_FILE

    return kit / REQUESTED / REQUEST_FILE
