"""Everything that can be found wrong with a site before a run, found before the run."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from securefda.errors import ConfigError, ExitCode, SecureFdaError
from securefda.federation.certificates import require_aware
from securefda.federation.endpoints import Address
from securefda.federation.kit import Kit, load_kit
from securefda.federation.reach import check_port_free, shake_hands
from securefda.secagg.roster import Role

Probe = Callable[[], str]
"""A check: returns one line that says what is fine, or raises SecureFdaError with the mend as its hint."""

EXPIRY_WARNING = timedelta(days=30)
MIN_FREE_BYTES = 1 << 30


class Level(StrEnum):
    """How a check ended."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: stable name, for example ``"certificate"``.
        message: one line, what is fine or what is wrong.
        mend: one line, how to put it right; ``""`` where there is nothing to do.
        exit_code: what a run would end with; ``OK`` unless the level is ``FAIL``.
    """

    check: str
    level: Level
    message: str
    mend: str = ""
    exit_code: ExitCode = ExitCode.OK


@dataclass(frozen=True, slots=True)
class Probes:
    """Checks that need more than this package knows; one that is None is left out.

    Attributes:
        policy: does ``local/policy.toml`` parse.
        device: which device would train.
        data: is the task's data there and sound.
    """

    policy: Probe | None = None
    device: Probe | None = None
    data: Probe | None = None


_NO_PROBES = Probes()


def preflight(
    path: Path,
    now: datetime,
    *,
    expected_site: str | None = None,
    expected_role: Role | None = None,
    address: Address | None = None,
    probes: Probes = _NO_PROBES,
    min_free_bytes: int = MIN_FREE_BYTES,
    timeout_s: float = 5.0,
) -> tuple[Finding, ...]:
    """Check a site's kit, network, disk, policy, device and data; change nothing.

    One check's failure does not keep the others from running, except those that need a sound kit.

    Args:
        path: the kit's folder.
        now: this machine's clock, with a time zone.
        expected_site: the site that this kit should be of.
        expected_role: the role that this kit should have.
        address: where the target will listen, or where a source should look; default: as the kit says.
        probes: checks of policy, device and data.
        min_free_bytes: free disk space below which the check fails.
        timeout_s: for reaching the aggregator, in seconds.

    Returns:
        One finding per check, in the order in which they matter.
    """
    try:
        kit = load_kit(path, now, expected_site=expected_site, expected_role=expected_role)
    except SecureFdaError as error:
        findings = [_failed("kit", error)]
    else:
        network = _network_finding(kit, now, address, timeout_s)
        findings = [_kit_finding(kit), _expiry_finding(kit, now), network]
    findings.append(_run("disk", lambda: _check_disk(path, min_free_bytes)))
    for check, probe in (("policy", probes.policy), ("device", probes.device), ("data", probes.data)):
        if probe is not None:
            finding = _run(check, probe)
            if finding.message != findings[0].message:  # what the kit keeps from being checked is said once
                findings.append(finding)
    return tuple(findings)


def exit_code(findings: tuple[Finding, ...]) -> ExitCode:
    """The exit code of the first check that failed, or ``OK``; a warning fails nothing."""
    return next((finding.exit_code for finding in findings if finding.level is Level.FAIL), ExitCode.OK)


def _run(check: str, probe: Probe) -> Finding:
    try:
        return Finding(check, Level.OK, probe())
    except SecureFdaError as error:
        return _failed(check, error)


def _failed(check: str, error: SecureFdaError) -> Finding:
    return Finding(check, Level.FAIL, str(error), error.hint, error.exit_code)


def _kit_finding(kit: Kit) -> Finding:
    roster = kit.roster
    line = f"{kit.role} {kit.site_id} of {roster.federation_id}, epoch {roster.epoch}, {len(roster.entries)} sites"
    return Finding("kit", Level.OK, f"{line}; signatures, keys and file modes are right")


def _expiry_finding(kit: Kit, now: datetime) -> Finding:
    """The kit is valid now; warn of the first of site and CA certificates that soon is not."""
    end = min(kit.certificate.not_valid_after_utc, kit.ca.certificate.not_valid_after_utc)
    left = end - require_aware(now)
    line = f"valid until {end:%Y-%m-%d}, {left.days} days from now"
    if left < EXPIRY_WARNING:
        return Finding("certificate", Level.WARN, line, "ask for a new startup kit before then")
    return Finding("certificate", Level.OK, line)


def _network_finding(kit: Kit, now: datetime, address: Address | None, timeout_s: float) -> Finding:
    if kit.role == "target":
        return _run("port", lambda: check_port_free(address or kit.endpoints.aggregator))
    return _run("aggregator", lambda: shake_hands(kit, now, address=address, timeout_s=timeout_s))


def _check_disk(path: Path, min_free_bytes: int) -> str:
    folder = path / "local"
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"\0")
            probe.flush()
            os.fsync(probe.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as error:
        why = f"cannot be written: {error.strerror or error}"
        raise ConfigError(str(folder), why, hint="check the folder's owner and the disk") from error
    if free < min_free_bytes:
        raise ConfigError(str(folder), f"{_size(free)} free, {_size(min_free_bytes)} needed", hint="free some space")
    return f"{_size(free)} free"


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"
