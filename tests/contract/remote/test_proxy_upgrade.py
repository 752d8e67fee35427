"""The proxy of a node that serves: an agent of another image replaces it, and connections that it has go on.

Real processes and cgroups. Needs root.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.node_agent.config import Config
from services.node_agent.processes.own_cgroup import OwnCgroup
from services.node_agent.remote.remote import Remote
from shared.model.names import certificate_name
from tests.remote.nodes import Pki, free_port
from tests.support import native
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="cgroups need root"),
    pytest.mark.xdist_group("remote-ends"),
]
ROOT = Path("/sys/fs/cgroup")
NOW, LEAVING = OwnCgroup(ROOT, "kerf-remote/proxy"), OwnCgroup(ROOT, "kerf-remote/leaving")


class Node:
    """The node `gpu`, with one image after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, free_port()
        pki, files = Pki(folder / "pki"), folder / "files"
        files.mkdir()
        certificate, key = pki.node(certificate_name("gpu"))
        for source, name in ((certificate, "tls.crt"), (key, "tls.key"), (pki.authority, "ca.crt")):
            shutil.copyfile(source, files / name)
        (files / "grants.key").write_text("k" * 48)

    def agent(self, image: str, *, serves: bool = True) -> Remote:
        """A new agent with the proxy of this image, by the path that it has in each."""
        programs = self._folder / "programs"
        shutil.rmtree(programs, ignore_errors=True)
        shutil.copytree(native.built("enforcement") / "remote", programs)
        with (programs / "proxy").open("ab") as file:
            file.write(image.encode())  # the loader does not read what is behind the sections
        config = Config(
            node="gpu", run_dir=str(self._folder / "run"), cgroup_dir=str(ROOT), remote_dir=str(programs),
            remote_files=str(self._folder / "files"), checkpoint_file=str(self._folder / "state" / "checkpoint"),
            remote_serving_nodes=("gpu",) if serves else (), remote_address=f"127.0.0.1:{self.port}",
        )  # fmt: skip
        note = lambda *_, **__: None  # noqa: E731
        ctx: Any = SimpleNamespace(log=SimpleNamespace(info=note, warning=note), health=SimpleNamespace(set=note))
        nothing: Any = None
        return Remote(ctx, config, libcuda=str, enforced=nothing, grant_of=lambda _: None, clients=tuple, say=nothing)

    def dial(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)


@pytest.fixture
async def node() -> AsyncIterator[Node]:
    with tempfile.TemporaryDirectory(prefix="kerf-") as folder:
        yield Node(Path(folder))
        for group in (NOW, LEAVING):
            await group.end(10)


async def serving(agent: Remote, node: Node) -> frozenset[int]:
    """The processes of the proxy after this agent has looked after it."""
    await agent._look()
    assert agent.ability().address == f"127.0.0.1:{node.port}"
    return NOW.pids()


async def test_an_agent_of_another_image_replaces_the_proxy_and_its_connections_go_on(node: Node) -> None:
    first = await serving(node.agent("first"), node)
    assert await serving(node.agent("first"), node) == first, "the same image: it stays"
    with node.dial() as held:
        await eventually(lambda: len(list(Path(f"/proc/{min(first)}/task").iterdir())) > 2, what="it was accepted")
        second = await serving(node.agent("second"), node)
        assert not second & first
        assert LEAVING.pids() == first
        held.setblocking(False)
        with pytest.raises(BlockingIOError):
            held.recv(1)
        node.dial().close()
    await eventually(lambda: not LEAVING.pids(), what="its last connection has ended")
    assert NOW.pids() == second


async def test_a_node_that_serves_no_more_has_no_proxy(node: Node) -> None:
    await serving(node.agent("first"), node)
    later = node.agent("first", serves=False)
    await later._look()
    assert NOW.pids() == frozenset()
    with pytest.raises(ConnectionRefusedError):
        node.dial()
