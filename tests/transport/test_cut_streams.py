"""A stream that is cut off as its server stops leaves no traceback of gRPC's on the console."""

import asyncio
import logging

import pytest

from securefda.transport.event_loop import run_interruptibly


def test_grpc_does_not_log_a_cancelled_stream_and_logs_everything_else(caplog: pytest.LogCaptureFixture) -> None:
    async def log_both() -> None:
        for error in (asyncio.CancelledError(), RuntimeError("a fault")):
            logging.getLogger("grpc._cython.cygrpc").error("in servicer method", exc_info=error)

    run_interruptibly(log_both())
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [RuntimeError]
