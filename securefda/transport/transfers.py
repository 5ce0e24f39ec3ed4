"""Vectors between a source and the aggregator: one attempt each, over the present connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import grpc

from securefda.errors import FaultyAggregatorError
from securefda.secagg.messages import Signed
from securefda.transport.dialer import Connection, HungUp, Withdrawn, translated
from securefda.transport.limits import GRPC_PREFIX_BYTES
from securefda.transport.streams import Assembly, chunks
from securefda.transport.wire import WireError, refuse_unknown_fields, signed_to_proto
from securefda.v1 import federation_pb2 as pb


async def download(connection: Connection, assembly: Assembly, patience_s: float) -> bool:
    """Fetch what is missing of a vector; False where the aggregator has withdrawn it.

    Args:
        connection: the present one.
        assembly: sized as the aggregator announced; holds what earlier attempts brought.
        patience_s: seconds without a chunk after which the attempt ends.

    Raises:
        HungUp: the stream broke; what came is in the assembly.
        FaultyAggregatorError: the aggregator sends something else than it announced.
        SecureFdaError: it refuses.
    """
    request = pb.DownloadRequest(digest=assembly.digest, offset=assembly.received)
    connection.traffic.up += request.ByteSize() + GRPC_PREFIX_BYTES
    call = connection.stub.Download(request)
    try:
        while not assembly.is_whole:
            with _breaks_translated():
                async with asyncio.timeout(patience_s):
                    response: Any = await call.read()
            if response is grpc.aio.EOF:
                raise HungUp("a download ended early")
            if response is None:
                raise WireError("not a download response")
            connection.traffic.down += refuse_unknown_fields(response) + GRPC_PREFIX_BYTES
            if response.total_bytes != assembly.total:
                raise WireError(f"{response.total_bytes} bytes instead of the {assembly.total} announced")
            assembly.add(response.offset, response.data)
    except Withdrawn:
        return False
    except TimeoutError as error:
        raise HungUp(f"a download stood still for {patience_s:g} s") from error
    except WireError as error:
        raise FaultyAggregatorError("ATTACHMENT", error.detail) from error
    finally:
        call.cancel()
    return True


async def upload(
    connection: Connection,
    *,
    instance_id: bytes,
    message: Signed[Any],
    view: memoryview,
    chunk_bytes: int,
    patience_s: float,
) -> None:
    """Bring a message and its vector to the aggregator, from where an earlier attempt got.

    Args:
        connection: the present one.
        instance_id: of this process, as in its hello.
        message: names the vector by its digest.
        view: the vector.
        chunk_bytes: size of a piece.
        patience_s: seconds without an acknowledgement after which the attempt ends.

    Raises:
        HungUp: the stream broke.
        SecureFdaError: the aggregator refuses.
    """
    call = connection.stub.Upload()
    sender: asyncio.Task[None] | None = None
    try:
        with _breaks_translated():
            start = pb.UploadStart(instance_id=instance_id, message=signed_to_proto(message), total_bytes=len(view))
            try:  # gRPC lets a write wait for ever where its connection broke before the call had begun
                async with asyncio.timeout(patience_s):
                    await _write(connection, call, pb.UploadRequest(start=start))
            except TimeoutError as error:
                raise HungUp(f"an upload did not begin for {patience_s:g} s") from error
            answer = await _read(connection, call, patience_s)
            sender = asyncio.create_task(_send_chunks(connection, call, view, answer.received_bytes, chunk_bytes))
            while not answer.complete:
                answer = await _read(connection, call, patience_s)
    finally:
        if sender is not None:
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)  # the reader's error is the telling one
        call.cancel()


@contextlib.contextmanager
def _breaks_translated() -> Iterator[None]:
    """Turn the ways in which gRPC reports a broken call into our own errors."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise translated(error) from error
    except asyncio.InvalidStateError as error:  # a write after the call has ended
        raise HungUp("the call has ended") from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled us: the control stream broke, and its channel was closed together with this call.
        raise HungUp("the connection was closed") from error


async def _send_chunks(connection: Connection, call: Any, view: memoryview, offset: int, chunk_bytes: int) -> None:
    for place, data in chunks(view, offset, chunk_bytes):
        await _write(connection, call, pb.UploadRequest(chunk=pb.UploadChunk(offset=place, data=data)))
    await call.done_writing()


async def _write(connection: Connection, call: Any, request: pb.UploadRequest) -> None:
    await call.write(request)
    connection.traffic.up += request.ByteSize() + GRPC_PREFIX_BYTES


async def _read(connection: Connection, call: Any, patience_s: float) -> pb.UploadResponse:
    try:
        async with asyncio.timeout(patience_s):
            response: Any = await call.read()
    except TimeoutError as error:
        raise HungUp(f"no acknowledgement of an upload for {patience_s:g} s") from error
    if response is grpc.aio.EOF:
        raise HungUp("an upload ended early")
    if response is None:
        raise FaultyAggregatorError("UPLOAD_RESPONSE", "not an upload response")
    try:
        connection.traffic.down += refuse_unknown_fields(response) + GRPC_PREFIX_BYTES
    except WireError as error:
        raise FaultyAggregatorError("UPLOAD_RESPONSE", error.detail) from error
    answer: pb.UploadResponse = response
    return answer
