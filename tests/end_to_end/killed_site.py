"""A site's process that can be killed at a point that its driver names, and writes down what it is about to do.

Run as ``python -m killed_site ARGUMENTS`` in the place of ``python -m securefda.cli ARGUMENTS``.

``SECUREFDA_KILL`` names a file of :class:`Countdowns`: while one of them is above 0, each point of its kind that the
process reaches lowers it, and at 0 the process ends by SIGKILL. The kinds are ``disk``, as in :mod:`disk_points`;
``message``, before anything that gRPC sends and after anything it receives; ``training``, before and after each
training with noise, or each training of a process that follows; and ``exchange``, before anything that the processes
of a team do together. ``SECUREFDA_WITNESS`` names a file that gets a line before a vector leaves, before noise is drawn
for a round, and for each header that came. A process that is killed cannot take such a line back.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from disk_points import tell_disk_points
from wire_tap import Tap, install

KINDS = ("disk", "message", "training")
EXCHANGE = "exchange"
_PLACES = (*KINDS, EXCHANGE)
_COUNT = struct.Struct("<I")


class Countdowns:
    """How many points of each kind a process still lives through, in memory that it shares with its driver."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_COUNT.size * len(_PLACES)))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 0)

    def set(self, kind: str, count: int) -> None:
        """Kill at the ``count``-th point of this kind from now on; 0 for none."""
        _COUNT.pack_into(self._shared, _PLACES.index(kind) * _COUNT.size, count)

    def get(self, kind: str) -> int:
        """Points of this kind that are left."""
        left: int = _COUNT.unpack_from(self._shared, _PLACES.index(kind) * _COUNT.size)[0]
        return left

    def reach(self, kind: str) -> None:
        """This process is at a point of this kind."""
        left = self.get(kind)
        if left:
            self.set(kind, left - 1)
            if left == 1:
                os.kill(os.getpid(), signal.SIGKILL)


class Witness(Tap):
    """A tap that keeps what was released, and which header asked for it, and no more."""

    def __init__(self, path: Path, countdowns: Countdowns) -> None:
        super().__init__(path)
        self._countdowns = countdowns

    def note(self, way: str, name: str, data: bytes = b"") -> None:
        from securefda.transport.wire import signed_from_proto  # gRPC is tapped before it is imported
        from securefda.v1 import federation_pb2 as pb

        if way in ("out", "in"):
            upload = pb.UploadRequest.FromString(data) if name == "UploadRequest" and way == "out" else None
            if upload is not None and upload.HasField("start"):
                message = signed_from_proto(upload.start.message)
                self.line("released", session=message.envelope.session_id.hex(), digest=message.digest().hex())
            if name == "ControlResponse" and way == "in":
                frame = pb.ControlResponse.FromString(data).frame
                if frame.HasField("delivery"):
                    self._header(signed_from_proto(frame.delivery.message))
            self._countdowns.reach("message")

    def _header(self, message: Any) -> None:
        from securefda.protocol.messages import Header

        if isinstance(message.body, Header):
            self.line("header", session=message.envelope.session_id.hex(), round=message.body.round)

    def line(self, what: str, **values: Any) -> None:
        """Write one line, whole."""
        os.write(self._file, json.dumps({"what": what, **values}).encode() + b"\n")

    def watch_training(self) -> None:
        """Have trainers with noise say so before they train, and reach a point before and after."""
        from securefda.site import private_trainer

        trainer = private_trainer.PrivateTrainer
        real_train, real_event = private_trainer.train_private, trainer.event
        asked: list[Any] = []

        def event(self: Any, *arguments: Any) -> Any:
            asked[:] = [real_event(self, *arguments)]
            return asked[0]

        def train(*arguments: Any, **options: Any) -> Any:
            (of,) = asked
            self._countdowns.reach("training")
            self.line("trains", run=of.run_id, round=of.round, attempt=of.attempt, steps=of.steps)
            result = real_train(*arguments, **options)
            self._countdowns.reach("training")
            return result

        trainer.event, private_trainer.train_private = event, train  # type: ignore[method-assign]

    def watch_team(self) -> None:
        """Have the processes of a team reach a point before each exchange, and followers around each training."""
        from securefda.source import follower
        from securefda.training.team import Team

        real_together, real_train = Team._reaching, follower.follow_order

        @contextmanager
        def together(self_: Team) -> Iterator[None]:
            self._countdowns.reach(EXCHANGE)
            with real_together(self_):
                yield

        def train(*arguments: Any, **named: Any) -> None:
            self._countdowns.reach("training")
            real_train(*arguments, **named)
            self._countdowns.reach("training")

        Team._reaching, follower.follow_order = together, train  # type: ignore[method-assign]


def _have_followers_killable() -> None:
    """Have this process start its followers by this module."""
    from securefda.training import team

    command = (sys.executable, "-m", "killed_site", "source", "follow")
    team.started_team = partial(team.started_team, command=command)


def main() -> int:
    """Run a site's command under a witness, or that of the process that follows it."""
    follows = "+1" if sys.argv[1:3] == ["source", "follow"] else ""
    countdowns = Countdowns(Path(os.environ["SECUREFDA_KILL"] + follows))
    witness = Witness(Path(os.environ["SECUREFDA_WITNESS"] + follows), countdowns)
    install(witness)
    tell_disk_points(Path(os.environ["SECUREFDA_KIT"]), lambda _: countdowns.reach("disk"))
    from securefda.cli import main as run

    if sys.argv[1] == "source":
        witness.watch_training()
        witness.watch_team()
        _have_followers_killable()
    if follows:
        pid = Path(os.environ["SECUREFDA_KILL"] + follows + ".pid")
        pid.with_suffix(".new").write_text(f"{os.getpid()} {os.getppid()}")
        pid.with_suffix(".new").replace(pid)
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
