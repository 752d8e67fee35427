"""Encodes and decodes NRI's wire format: ttrpc messages in the frames of NRI's multiplexer. Pure.

The multiplexer (nri pkg/net/multiplex) carries several connections on one socket, in frames: connection id and length,
four bytes each, and the payload. In each connection ttrpc (its PROTOCOL.md) sends a header of ten bytes (length,
stream, kind, flags) and the message, which may span several frames. Numbers are big-endian.
"""

from __future__ import annotations

import struct

import msgspec

PLUGIN, RUNTIME = 1, 2
"""The connections: on the first the runtime sends requests to the plugin, on the second the plugin to the runtime."""
REQUEST, RESPONSE = 1, 2
MAX_MESSAGE_BYTES = 4 << 20
"""The maximum length of a message, without its header."""
_FRAME_BYTES = 4096
"""The other side's reader accepts no frame that is longer than its buffer."""
_FRAME = struct.Struct(">II")
_HEADER = struct.Struct(">IIBB")


class FramingError(Exception):
    """The bytes are not of this protocol; the connection cannot be used any more."""


class Message(msgspec.Struct, frozen=True):
    connection: int
    stream: int
    """The number of the request that it is or answers."""
    kind: int
    body: bytes


def encode(message: Message) -> bytes:
    whole = _HEADER.pack(len(message.body), message.stream, message.kind, 0) + message.body
    parts = (whole[at : at + _FRAME_BYTES] for at in range(0, len(whole), _FRAME_BYTES))
    return b"".join(_FRAME.pack(message.connection, len(part)) + part for part in parts)


class Decoder:
    def __init__(self) -> None:
        self._trunk = bytearray()
        self._connections: dict[int, bytearray] = {PLUGIN: bytearray(), RUNTIME: bytearray()}

    def feed(self, data: bytes) -> list[Message]:
        """Returns the messages that are complete with these bytes. Raises FramingError."""
        self._trunk += data
        found: list[Message] = []
        while len(self._trunk) >= _FRAME.size:
            connection, length = _FRAME.unpack_from(self._trunk)
            if length > _HEADER.size + MAX_MESSAGE_BYTES:
                raise FramingError(f"a frame of {length} bytes")
            end = _FRAME.size + length
            if len(self._trunk) < end:
                break
            payload = self._trunk[_FRAME.size : end]
            del self._trunk[:end]
            if connection in self._connections:  # frames of other connections are dropped, as on the other side
                found += self._messages(connection, payload)
        return found

    def _messages(self, connection: int, payload: bytearray) -> list[Message]:
        buffer, found = self._connections[connection], list[Message]()
        buffer += payload
        while len(buffer) >= _HEADER.size:
            length, stream, kind, _ = _HEADER.unpack_from(buffer)
            if length > MAX_MESSAGE_BYTES:
                raise FramingError(f"a message of {length} bytes")
            end = _HEADER.size + length
            if len(buffer) < end:
                break
            found.append(Message(connection, stream, kind, bytes(buffer[_HEADER.size : end])))
            del buffer[:end]
        return found
