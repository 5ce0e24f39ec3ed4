"""``securefda federation``: found a federation, and change who belongs to it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from securefda.cli.options import (
    FederationFile,
    FederationFolder,
    Kit,
    OutputFormat,
    Overrides,
    SiteId,
    file_or_sample,
    now,
    pairs,
)
from securefda.cli.output import Format, print_result, say
from securefda.errors import ConfigError
from securefda.text import quoted

if TYPE_CHECKING:
    from securefda.protocol.roster import Role
    from securefda.site.config import FederationConfig
    from securefda.site.endpoints import Address
    from securefda.site.enrolment import Enrolment

app = typer.Typer(help="Found a federation, and change who belongs to it.")

Entities = Annotated[
    list[str], typer.Option("--entity", metavar="SITE=NAME", help="Organisation behind a site; default: the site id.")
]
Names = Annotated[
    list[str], typer.Option("--name", metavar="SITE=HOST", help="Host name or address in a site's certificate.")
]


RequestFile = Annotated[
    Path | None,
    typer.Option("--request", metavar="FILE", help="Request of the site, which made its own keys (securefda site)."),
]


Fingerprints = Annotated[
    list[str],
    typer.Option("--fingerprint", metavar="SITE=HEX", help="Of a request's keys, as the site read it out by phone."),
]
Fingerprint = Annotated[
    str | None,
    typer.Option("--fingerprint", metavar="HEX", help="Of the request's keys, as the site read it out by phone."),
]


class Deploy(StrEnum):
    """A system that can run a site's process."""

    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    SYSTEMD = "systemd"

    @property
    def in_containers(self) -> bool:
        """Whether the process has a network of its own."""
        return self is not Deploy.SYSTEMD


@app.command("init")
def init(
    file: FederationFile,
    out: Annotated[Path, typer.Option("--out", help="Folder to make; one kit per site goes below it.")] = Path("kits"),
    requests: Annotated[
        Path | None,
        typer.Option("--requests", metavar="DIR", help="Folder with each site's request (*.json): no keys are made."),
    ] = None,
    fingerprint: Fingerprints = [],
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="Where the sources reach the aggregator; default: 127.0.0.1:8443, or what the target's request says.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Where the aggregator binds; default: --address; for containers, 0.0.0.0.",
        ),
    ] = None,
    reach: Annotated[
        list[str],
        typer.Option("--reach", metavar="SITE=HOST:PORT", help="Where one source reaches it, if not at --address."),
    ] = [],
    server_name: Annotated[
        str | None, typer.Option("--server-name", help="Name in the target's certificate; default: the host.")
    ] = None,
    entity: Entities = [],
    name: Names = [],
    deploy: Annotated[
        Deploy | None,
        typer.Option("--deploy", help="Write for each site what runs its process there, into SITE.deploy."),
    ] = None,
    image: Annotated[
        list[str],
        typer.Option(
            "--image", metavar="ROLE=NAME@sha256:DIGEST", help="Image that containers of the aggregator or source run."
        ),
    ] = [],
    overrides: Overrides = [],
    output: OutputFormat = Format.TXT,
) -> None:
    """Make the CA, the signed roster and one startup kit per site.

    With --requests, each site has made its own keys: no kit holds any, and every site signs the roster at home, with
    `securefda site join`. Without, the authority makes all keys, and knows them.
    """
    from securefda.protocol.hybrid import require_available
    from securefda.site.config import kit_settings_toml, load_federation
    from securefda.site.deployment import SUFFIX, pinned_images, write_deployment
    from securefda.site.endpoints import Address, SiteSpec
    from securefda.site.enrolment import init_federation, read_requests

    config = load_federation(file, overrides, os.environ, note=say)
    require_available([config.session.key_agreement])
    site_ids = (config.federation.target, *config.federation.sources)
    asked = None
    if fingerprint and requests is None:
        hint = "give the folder of the sites' requests with --requests DIR, or leave --fingerprint out"
        raise ConfigError("--fingerprint", "is of a request, and there is none", hint=hint)
    if requests is not None:
        _refuse_beside("--requests", {"--entity": entity, "--name": name})
        roles: dict[str, Role] = {config.federation.target: "target"}
        heard = {site: values[-1] for site, values in _known("--fingerprint", fingerprint, site_ids).items()}
        asked = read_requests(requests, roles | dict.fromkeys(config.federation.sources, "source"), heard)
    aggregator = Address.parse_reached(address or "127.0.0.1:8443", "--address")
    if asked and asked[0].address and not address:
        aggregator = asked[0].address
    fixed = "" if config.transport.listen.endswith(":0") else config.transport.listen
    in_containers = deploy is not None and deploy.in_containers
    everywhere = Address("0.0.0.0", aggregator.port) if in_containers else None  # noqa: S104
    bound = Address.parse(listen, "--listen") if listen else fixed or everywhere or aggregator
    entities, names = _known("--entity", entity, site_ids), _known("--name", name, site_ids)
    names.setdefault(config.federation.target, []).append(server_name or aggregator.host)
    by_source = _known("--reach", reach, config.federation.sources)
    routes = {site: str(Address.parse_reached(values[-1], "--reach")) for site, values in by_source.items()}
    sites = [
        SiteSpec(
            site,
            "target" if site == config.federation.target else "source",
            entities.get(site, [site])[-1],
            tuple(dict.fromkeys(names.get(site, []))),
        )
        for site in site_ids
    ]
    recipient = next(
        one.legal_entity for one in ([request.site for request in asked] if asked else sites) if one.role == "target"
    )
    if image and not in_containers:
        raise ConfigError(
            "--image", "is of containers", hint="give --deploy compose or kubernetes, or leave --image out"
        )
    images = pinned_images(image)
    deployed = {} if deploy is None else _deployed(deploy, config, aggregator, str(bound), images)
    enrolment = init_federation(
        out,
        config.federation.name,
        asked or sites,
        aggregator=aggregator,
        server_name=server_name,
        policy_text=lambda site: _policy_text(config, site, recipient),
        settings_text=lambda site: kit_settings_toml(config, site, str(bound), routes.get(site, "")),
        now=now(),
    )
    folders = write_deployment(out, deployed)
    lines = [f"what runs each site's process is in {out}/SITE{SUFFIX}; hand it to the site"] if folders else []
    if in_containers and len(images) < 2:
        lines.append("an image named by a tag can change: pin each by its digest, with --image or in these files")
    data = _data(enrolment) | {"deployments": [str(folder) for folder in folders]}
    print_result(output, data, "\n".join([_founded_text(enrolment), *lines]))


@app.command("add")
def add(
    folder: FederationFolder,
    site: SiteId,
    config_file: Annotated[
        Path,
        typer.Option(
            "--config",
            metavar="FEDERATION.toml",
            help="Configuration that the new kit starts with, or the name of a sample.",
            parser=file_or_sample,
        ),
    ],
    entity: Annotated[str | None, typer.Option("--entity", help="Organisation behind it; default: the id.")] = None,
    name: Annotated[list[str], typer.Option("--name", metavar="HOST", help="Name in its certificate.")] = [],
    request: RequestFile = None,
    fingerprint: Fingerprint = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Enrol one more source; every kit in the folder gets the next roster epoch."""
    from securefda.site.config import kit_settings_toml, load_federation
    from securefda.site.endpoints import SiteSpec
    from securefda.site.enrolment import add_site, read_request, target_of

    config = load_federation(config_file, (), os.environ)
    asked = None
    _check_has_request(fingerprint, request)
    if request is not None:
        _refuse_beside("--request", {"--entity": entity, "--name": name})
        asked = read_request(request)
        if asked.site.site_id != site:
            hint = f"name the request of {site}, or the site {asked.site.site_id}"
            raise ConfigError(str(request), f"is the request of {asked.site.site_id}, not of {site}", hint=hint)
    enrolment = add_site(
        folder,
        asked or SiteSpec(site, "source", entity or site, tuple(name)),
        policy_text=lambda site_id: _policy_text(config, site_id, target_of(folder).legal_entity),
        settings_text=lambda site_id: kit_settings_toml(config, site_id, ""),
        now=now(),
        fingerprint=fingerprint,
    )
    print_result(output, _data(enrolment), f"enrolled {site}\n{_changed_text(enrolment)}")


@app.command("revoke")
def revoke(folder: FederationFolder, site: SiteId, output: OutputFormat = Format.TXT) -> None:
    """Remove a source from the roster; every other kit in the folder gets the next roster epoch."""
    from securefda.site.enrolment import revoke_site

    enrolment = revoke_site(folder, site)
    left = f"{enrolment.root / site} stays as it is; that kit opens nothing at a process that has started with epoch "
    text = f"revoked {site}\n{_changed_text(enrolment)}\n{left}{enrolment.roster.epoch}"
    print_result(output, _data(enrolment), text)


@app.command("renew")
def renew(
    folder: FederationFolder,
    site: SiteId,
    name: Annotated[
        list[str], typer.Option("--name", metavar="HOST", help="Name in its certificate; default: those that it has.")
    ] = [],
    request: RequestFile = None,
    fingerprint: Fingerprint = None,
    output: OutputFormat = Format.TXT,
) -> None:
    """Give a site new keys and a new certificate, before it expires or after a theft.

    With --request, the site has made the new keys (securefda site renew); without, the authority makes them.
    """
    from securefda.site.enrolment import read_request, renew_site

    _check_has_request(fingerprint, request)
    if request is not None:
        _refuse_beside("--request", {"--name": name})
    asked = read_request(request) if request is not None else None
    enrolment = renew_site(folder, site, now=now(), names=name, request=asked, fingerprint=fingerprint)
    text = f"renewed {site}\n{_changed_text(enrolment)}"
    if site != enrolment.roster.target.site_id:  # a target has no policy
        text += f"\n{site} then signs its policy with its new key, once it has read it: securefda policy sign KIT"
    print_result(output, _data(enrolment), text)


@app.command("sign")
def sign(
    kit: Kit,
    roster: Annotated[Path, typer.Argument(metavar="ROSTER", help="The CA's new roster.json.")],
    out: Annotated[Path, typer.Option("--out", help="File for the signed roster.")] = Path("roster.signed.json"),
    output: OutputFormat = Format.TXT,
) -> None:
    """Sign a new roster as a member, at home, after checking that it follows from the kit's own."""
    from securefda.disk import PUBLIC_MODE, require_new, write_file, writing_errors
    from securefda.site.enrolment import countersign
    from securefda.site.kit import load_kit, signed_roster_at

    require_new("--out", out)
    own = load_kit(kit, now())
    signed = countersign(own, signed_roster_at(roster))
    with writing_errors(out):
        write_file(out, signed.to_bytes(), PUBLIC_MODE)
    merge = f"securefda federation merge FOLDER {quoted(out.name)}"
    text = f"{own.site_id} signed; send {out} to the CA, which runs: {merge}"
    print_result(output, {"site": own.site_id, "file": str(out)}, text)


@app.command("merge")
def merge(
    folder: FederationFolder,
    roster: Annotated[Path, typer.Argument(metavar="ROSTER", help="A roster that a member signed.")],
    output: OutputFormat = Format.TXT,
) -> None:
    """Add a member's signature to the CA's roster and write all kits again."""
    from securefda.site.enrolment import merge_signatures
    from securefda.site.kit import signed_roster_at

    enrolment = merge_signatures(folder, signed_roster_at(roster))
    print_result(output, _data(enrolment), _changed_text(enrolment))


def _check_has_request(fingerprint: str | None, request: Path | None) -> None:
    if fingerprint is not None and request is None:
        hint = "give the site's request with --request FILE, or leave --fingerprint out"
        raise ConfigError("--fingerprint", "is of a request, and there is none", hint=hint)


def _refuse_beside(option: str, others: Mapping[str, object]) -> None:
    for other, given in others.items():
        if given:
            raise ConfigError(other, f"cannot be given with {option}: the request says it", hint=f"leave {other} out")


def _known(option: str, values: list[str], sites: tuple[str, ...]) -> dict[str, list[str]]:
    by_site = pairs(option, values)
    for site in by_site:
        if site not in sites:
            raise ConfigError(f"{option} {site}", "is no site of this federation", hint=f"sites: {', '.join(sites)}")
    return by_site


def _deployed(
    kind: Deploy, config: FederationConfig, aggregator: Address, listen: str, images: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Return site -> its files for a deployment."""
    from securefda.site.config import metrics_port_of
    from securefda.site.deployment import METRICS_PORT, DeployedSite, deployment_files
    from securefda.site.endpoints import Address

    target, bound = config.federation.target, Address.parse(listen, "--listen")
    return {
        site: deployment_files(
            kind.value,
            DeployedSite(
                config.federation.name,
                site,
                is_target=site == target,
                aggregator=aggregator,
                listen=bound,
                metrics_port=metrics_port_of(config, site) or METRICS_PORT,
                image=images.get("aggregator" if site == target else "source", ""),
            ),
        )
        for site in (target, *config.federation.sources)
    }


def _policy_text(config: FederationConfig, site: str, recipient: str) -> str:
    """Return a source's first policy: it permits the planned run for a year, and names the target's organisation."""
    from securefda.site.config import site_policy
    from securefda.site.policy import default_policy_text

    policy = site_policy(config, site)
    ends = {"recipient": recipient, "expires": (now() + timedelta(days=365)).date().isoformat()}
    return default_policy_text(site, policy.model_copy(update={"agreement": policy.agreement.model_copy(update=ends)}))


def _data(enrolment: Enrolment) -> dict[str, Any]:
    roster = enrolment.roster
    return {
        "folder": str(enrolment.root),
        "federation": roster.federation_id,
        "epoch": roster.epoch,
        "sites": [entry.site_id for entry in roster.entries],
        "kits": [str(kit) for kit in enrolment.kits],
        "ca_fingerprint": enrolment.ca_fingerprint,
        "key_fingerprints": enrolment.fingerprints,
        "missing_signatures": list(enrolment.missing_signatures),
    }


def _founded_text(enrolment: Enrolment) -> str:
    roster, target = enrolment.roster, enrolment.root / enrolment.roster.target.site_id
    source = enrolment.root / roster.sources[0].site_id
    lines = [
        f"federation {roster.federation_id}: {len(roster.entries)} startup kits in {enrolment.root}",
        f"CA fingerprint (verify it by phone): {enrolment.ca_fingerprint}",
    ]
    if enrolment.missing_signatures:
        return "\n".join([*lines, *_signing_lines(enrolment, is_new=True)])
    return "\n".join(
        [
            *lines,
            "the authority made the sites' private keys and knew them; for keys that stay at home: securefda site init",
            f"keep {enrolment.root / 'ca'} offline, away from the target; hand every other folder to its site",
            "then, at the target:",
            f"  securefda preflight {quoted(target)}",
            f"  securefda aggregator start --config {quoted(target / 'local' / 'settings.toml')}",
            f"and at every source, as at {source.name} (while the aggregator does not run: preflight --offline):",
            f"  securefda preflight {quoted(source)}",
            f"  securefda source start --config {quoted(source / 'local' / 'settings.toml')}",
        ]
    )


def _changed_text(enrolment: Enrolment) -> str:
    roster = enrolment.roster
    lines = [
        f"federation {roster.federation_id}, epoch {roster.epoch}: {len(roster.entries)} sites",
        f"CA fingerprint (a new site verifies it by phone): {enrolment.ca_fingerprint}",
    ]
    if enrolment.missing_signatures:
        return "\n".join([*lines, *_signing_lines(enrolment)])
    return "\n".join(
        [
            *lines,
            "every member has signed; hand the new startup/ folders to the sites",
            f"a site with keys of its own takes a package of its folder below {enrolment.root}: securefda site join",
        ]
    )


def _signing_lines(enrolment: Enrolment, *, is_new: bool = False) -> list[str]:
    root = enrolment.root
    # A site without a kit, or with new keys, can only join; one that has a kit knows the CA
    joins = "site join KIT PACKAGE" + (" --ca FINGERPRINT" if is_new else "")
    others = [
        "  a new site adds: --ca FINGERPRINT",
        "  or roster.json alone; a site whose keys stay signs it with: securefda federation sign KIT roster.json",
    ]
    return [
        "fingerprints of the sites' keys (compare each with its site by phone):",
        *(f"  {site}  {fingerprint}" for site, fingerprint in enrolment.fingerprints.items()),
        f"not yet usable: {', '.join(enrolment.missing_signatures)} must sign {root / 'ca' / 'roster.json'}",
        f"  hand each its package (securefda kit package {quoted(root)}/SITE); it signs with: securefda {joins}",
        *([] if is_new else others),
        f"  then, for each signed roster that comes back: securefda federation merge {quoted(root)} FILE",
    ]
