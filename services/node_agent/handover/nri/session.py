"""One connection to the runtime: registers as a plugin, then answers the runtime's requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from google.protobuf.message import DecodeError

from services.node_agent.handover.nri.frames import (
    PLUGIN,
    REQUEST,
    RESPONSE,
    RUNTIME,
    Decoder,
    FramingError,
    Message,
    encode,
)
from services.node_agent.nri_api import nri_pb2 as pb
from services.node_agent.nri_api import ttrpc_pb2 as ttrpc

PACKAGE = "nri.pkg.api.v1alpha1"
_UNIMPLEMENTED = 12
_READ_BYTES = 1 << 16


class Unimplemented(Exception):
    """The runtime calls a method that this plugin does not implement."""


class Rejected(Exception):
    """The runtime rejects the plugin."""


async def talk(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    name: str,
    index: str,
    answer: Callable[[str, bytes], bytes],
) -> None:
    """Serves until the runtime closes the connection. Raises Rejected, FramingError, and OSError if the connection is
    lost.

    `answer` takes a method and its message and returns the message that answers it; it may raise Unimplemented.
    Requests are answered one by one, in order.
    """
    registration = pb.RegisterPluginRequest(plugin_name=name, plugin_idx=index)
    request = ttrpc.Request(
        service=f"{PACKAGE}.Runtime", method="RegisterPlugin", payload=registration.SerializeToString()
    )
    writer.write(encode(Message(RUNTIME, 1, REQUEST, request.SerializeToString())))
    decoder = Decoder()
    while data := await reader.read(_READ_BYTES):
        for message in decoder.feed(data):
            try:
                reply = _reply(message, answer)
            except DecodeError as error:
                raise FramingError(f"a message that cannot be read: {error}") from error
            if reply is not None:
                writer.write(encode(Message(PLUGIN, message.stream, RESPONSE, reply.SerializeToString())))
        await writer.drain()


def _reply(message: Message, answer: Callable[[str, bytes], bytes]) -> ttrpc.Response | None:
    if (message.connection, message.kind) == (RUNTIME, RESPONSE):
        status = ttrpc.Response.FromString(message.body).status
        if status.code:
            raise Rejected(status.message)
        return None
    if (message.connection, message.kind) != (PLUGIN, REQUEST):
        raise FramingError(f"a message of kind {message.kind} on connection {message.connection}")
    asked = ttrpc.Request.FromString(message.body)
    try:
        return ttrpc.Response(payload=answer(asked.method, asked.payload))
    except Unimplemented:
        return ttrpc.Response(
            status=ttrpc.Status(
                code=_UNIMPLEMENTED, message=f"{asked.service}/{asked.method} is not implemented by this plugin"
            )
        )
