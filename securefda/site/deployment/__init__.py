"""Deployment files for a site's process, written beside its kit.

A folder ``SITE.deploy`` holds a systemd unit, a compose file, or a base and an overlay for Kustomize. Nothing in it is
secret, and it contains no more than the kit's public files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from securefda.disk import make_folder, write_file, writing_errors
from securefda.errors import ConfigError
from securefda.site.endpoints import Address, is_ip_address, is_loopback

SUFFIX = ".deploy"
"""Behind the site's id; no site id holds a dot."""

METRICS_PORT = 9464
"""The port for probes, on 127.0.0.1, unless the site's settings name another."""


@dataclass(frozen=True, slots=True)
class DeployedSite:
    """A site whose process is to be deployed.

    Attributes:
        federation: its id.
        site: id of the site.
        is_target: whether its process is the aggregator.
        aggregator: where the sources reach the aggregator.
        listen: where the aggregator binds.
        metrics_port: where probes are answered, on 127.0.0.1.
        image: ``NAME@sha256:DIGEST``; "" for the image of this name that was built on the site's machine.
    """

    federation: str
    site: str
    is_target: bool
    aggregator: Address
    listen: Address
    metrics_port: int = METRICS_PORT
    image: str = ""

    def __post_init__(self) -> None:
        if self.is_target and self.metrics_port == self.listen.port:
            why = f"{self.metrics_port} is the port on which {self.site} listens for sources"
            raise ConfigError("metrics.port", why, hint="set another port")

    @property
    def values(self) -> dict[str, object]:
        """Return the values for the templates."""
        command = "aggregator" if self.is_target else "source"
        return {
            "federation": self.federation,
            "site": self.site,
            "role": "target" if self.is_target else "source",
            "command": command,
            "image": self.image or f"securefda-{command}",
            "is_target": self.is_target,
            "aggregator_host": self.aggregator.host,
            "aggregator_port": self.aggregator.port,
            "aggregator_is_ip": is_ip_address(self.aggregator.host),
            "aggregator_network": f"{self.aggregator.host}/{128 if ':' in self.aggregator.host else 32}",
            "listen_port": self.listen.port,
            "metrics_port": self.metrics_port,
            "unit": f"securefda-{self.site}.service",
        }


_IMAGE = re.compile(r"(aggregator|source)=(\w[\w.:/-]*@sha256:[0-9a-f]{64})", re.ASCII)


def pinned_images(texts: Iterable[str]) -> dict[str, str]:
    """Read ``ROLE=NAME@sha256:DIGEST``, where a role is ``aggregator`` or ``source``, into role -> name with digest.

    Raises:
        ConfigError: one has another form, such as a tag alone.
    """
    found = {}
    for text in texts:
        pinned = _IMAGE.fullmatch(text)
        if pinned is None:
            hint = "name the role, aggregator or source, and a digest: a tag can come to mean another image"
            raise ConfigError(f"--image {text}", "is not ROLE=NAME@sha256:DIGEST", hint=hint)
        found[pinned[1]] = pinned[2]
    return found


def _systemd(site: DeployedSite) -> Iterator[tuple[str, str]]:
    yield f"securefda-{site.site}.service", _render("systemd/securefda.service.j2", site)


def _compose(site: DeployedSite) -> Iterator[tuple[str, str]]:
    _require_reachable(site)
    yield "compose.yaml", _render("compose/compose.yaml.j2", site)


def _kubernetes(site: DeployedSite) -> Iterator[tuple[str, str]]:
    _require_reachable(site)
    if not is_ip_address(site.aggregator.host):
        hint = "give its IP address, and the name in its certificate with --server-name"
        raise ConfigError("--address", f"a NetworkPolicy knows no host names, as {site.aggregator.host}", hint=hint)
    if len(site.site) > _LONGEST_NAME or site.site.endswith("-"):
        hint = f"use at most {_LONGEST_NAME} characters, the last a letter or a digit"
        raise ConfigError(f"site {site.site}", "is no name for a StatefulSet", hint=hint)
    role = str(site.values["command"])
    for name, template in (
        ("base/kustomization.yaml", "base-kustomization"),
        ("base/statefulset.yaml", "statefulset"),
        ("base/network.yaml", "base-network"),
        ("base/disruption.yaml", "disruption"),
        ("kustomization.yaml", "kustomization"),
        ("namespace.yaml", "namespace"),
        ("network.yaml", "network"),
        (f"{role}.yaml", "role"),
        ("monitoring/kustomization.yaml", "monitoring"),
        ("monitoring/podmonitor.yaml", "podmonitor"),
        ("monitoring/network.yaml", "monitoring-network"),
        ("monitoring/statefulset.yaml", "monitoring-statefulset"),
        *((("service.yaml", "service"),) if site.is_target else ()),
    ):
        yield name, _render(f"kubernetes/{template}.yaml.j2", site)


def _require_reachable(site: DeployedSite) -> None:
    """Refuse loopback addresses for a process in a network of its own."""
    for option, address in (("--address", site.aggregator), ("--listen", site.listen)):
        if is_loopback(address.host):
            hint = "name an address that leads to the aggregator" if option == "--address" else "use 0.0.0.0:PORT"
            raise ConfigError(option, f"{address} is each container's own", hint=hint)


_LONGEST_NAME = 63 - len("securefda--") - len("-0123456789")
"""A label holds the name of the StatefulSet with a digest behind it."""

_KINDS: dict[str, Callable[[DeployedSite], Iterator[tuple[str, str]]]] = {
    "compose": _compose,
    "kubernetes": _kubernetes,
    "systemd": _systemd,
}


def deployment_files(kind: str, site: DeployedSite) -> dict[str, str]:
    """Return the files of one site: name relative to its folder -> text.

    Args:
        kind: ``compose``, ``kubernetes`` or ``systemd``.
        site: whose process it is.

    Raises:
        ConfigError: the site cannot be deployed so.
    """
    return dict(_KINDS[kind](site))


def write_deployment(root: Path, files: Mapping[str, Mapping[str, str]]) -> list[Path]:
    """Write each site's files into ``root/SITE.deploy``.

    Args:
        root: the federation's folder.
        files: site id -> what :func:`deployment_files` gave.

    Returns:
        The folders.

    Raises:
        ConfigError: one cannot be written.
    """
    folders = []
    for site, texts in files.items():
        folder = root / f"{site}{SUFFIX}"
        with writing_errors(folder):
            for name, text in texts.items():
                make_folder((folder / name).parent)
                write_file(folder / name, text.encode(), 0o644)  # for a person to read and to change
        folders.append(folder)
    return folders


def _render(template: str, site: DeployedSite) -> str:
    environment = Environment(  # noqa: S701 - no page
        loader=PackageLoader("securefda.site.deployment"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(site.values)
