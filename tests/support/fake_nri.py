"""The runtime's side of NRI: accepts one plugin at a time, and calls it."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

from services.node_agent.handover.nri.frames import PLUGIN, REQUEST, RESPONSE, RUNTIME, Decoder, Message, encode
from services.node_agent.nri_api import nri_pb2 as pb
from services.node_agent.nri_api import ttrpc_pb2 as ttrpc


class FakeRuntime:
    """Follows containerd's order: it answers the registration, configures the plugin and lists what runs."""

    def __init__(self, socket: Path, *, containers: tuple[pb.Container, ...] = (), rejects: str = "") -> None:
        self._socket, self._containers, self._rejects = socket, containers, rejects
        self._server: asyncio.Server | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._answers: dict[int, asyncio.Future[ttrpc.Response]] = {}
        self._streams = itertools.count(1, 2)
        self.plugins: list[tuple[str, str]] = []
        """Plugins that have registered: name and index."""
        self.events = 0
        """The events to which the plugin has subscribed."""
        self.synchronized = asyncio.Event()

    async def start(self) -> None:
        self._socket.parent.mkdir(parents=True, exist_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, str(self._socket))

    async def stop(self) -> None:
        """Ends the connection and removes the socket, as when the runtime is killed and its directory cleaned."""
        assert self._server is not None
        self._server.close()
        if self._writer is not None:
            self._writer.close()
        self._socket.unlink()

    async def ask(self, method: str, request: Any) -> ttrpc.Response:
        assert self._writer is not None
        stream = next(self._streams)
        self._answers[stream] = asyncio.get_running_loop().create_future()
        asked = ttrpc.Request(service="nri.pkg.api.v1alpha1.Plugin", method=method, payload=request.SerializeToString())
        self._writer.write(encode(Message(PLUGIN, stream, REQUEST, asked.SerializeToString())))
        return await asyncio.wait_for(self._answers[stream], 15)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writer, decoder, greeting = writer, Decoder(), None
        while data := await reader.read(1 << 16):
            for message in decoder.feed(data):
                if message.connection == RUNTIME:
                    self._register(message, writer)
                    greeting = asyncio.create_task(self._greet())
                else:
                    self._answers.pop(message.stream).set_result(ttrpc.Response.FromString(message.body))
        if greeting is not None and not greeting.done():
            greeting.cancel()
        self.synchronized.clear()
        writer.close()

    def _register(self, message: Message, writer: asyncio.StreamWriter) -> None:
        plugin = pb.RegisterPluginRequest.FromString(ttrpc.Request.FromString(message.body).payload)
        self.plugins.append((plugin.plugin_name, plugin.plugin_idx))
        status = ttrpc.Status(code=2, message=self._rejects) if self._rejects else None
        writer.write(
            encode(Message(RUNTIME, message.stream, RESPONSE, ttrpc.Response(status=status).SerializeToString()))
        )

    async def _greet(self) -> None:
        configured = await self.ask("Configure", pb.ConfigureRequest(runtime_name="k8s.io", runtime_version="v2.4.2"))
        self.events = pb.ConfigureResponse.FromString(configured.payload).events
        await self.ask("Synchronize", pb.SynchronizeRequest(containers=self._containers))
        self.synchronized.set()
