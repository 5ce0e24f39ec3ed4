"""Ray, which runs functions and objects in other processes, of this machine or of a cluster."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from securefda.errors import ConfigError

_OBJECT_STORE_BYTES = 128 << 20
_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class RaySettings:
    """The Ray processes that run the sources of a simulation.

    Attributes:
        workers: processes.
        address: of a cluster that is there; empty to start Ray on this machine.
        exposed: whether it may be started here, see :func:`ray_engine`.
    """

    workers: int
    address: str = ""
    exposed: bool = False


@contextmanager
def ray_engine(workers: int, address: str = "", *, exposed: bool = False) -> Iterator[Any]:
    """Yield the module ``ray``, connected; what it started ends with the block.

    Args:
        workers: processes beside each other, where Ray is started for this block.
        address: of a Ray cluster that is there; empty to start Ray on this machine, with a token of its own.
        exposed: whether Ray may be started on this machine: some of its ports are open on every address.

    Raises:
        ConfigError: Ray would be started and may not be, is not installed, or cannot be reached.
    """
    if not address and not exposed:
        why = "opens ports on every address of this machine, where only a token keeps others from running code"
        raise ConfigError("--engine ray", why, hint="add --ray-exposed where a firewall keeps others out")
    # Before the import, which reads them.
    if not address:
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        hint = "pip install 'securefda[ray]', or leave --engine out"
        raise ConfigError("--engine ray", "Ray is not installed", hint=hint) from error
    if address:
        _require_listening(address)
    own = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": _OBJECT_STORE_BYTES}
    how: dict[str, Any] = {"address": address} if address else own | {"_node_ip_address": "127.0.0.1"}
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(log_to_driver=False, logging_level=logging.ERROR, **how)
    except Exception as error:
        why = f"Ray cannot be reached: {' '.join(str(error).split())[:200]}"
        if address:
            hint = "look at the address, and whether RAY_AUTH_TOKEN is that of the cluster"
            raise ConfigError("--ray-address", why, hint=hint) from error
        raise ConfigError("--engine ray", why, hint="see Ray's logs, or leave --engine out") from error
    if threading.current_thread() is threading.main_thread():  # else Ray has set none
        # Ray's own handler would end this process at once, with a stack of C++.
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)
    try:
        yield ray
    finally:
        ray.shutdown()


def _require_listening(address: str) -> None:
    """Fail early if nothing listens: Ray itself tries for minutes, and then ends the process."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError("--ray-address", f"{address!r} is not HOST:PORT")
    try:
        socket.create_connection((host, int(port)), _PATIENCE_S).close()
    except OSError as error:
        hint = "give the address that `ray start --head` printed, and look whether a firewall is between"
        raise ConfigError("--ray-address", f"no answer from {address}: {error.strerror or error}", hint=hint) from error
