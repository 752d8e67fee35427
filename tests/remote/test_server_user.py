"""The server of a slice has no rights on its node, and its log stays short."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.node_agent.strategies.control_block import GpuRule, Rules
from tests.interposer.node import MIB, UUID, Node
from tests.remote.raw import Raw, words
from tests.remote.remote import Server
from tests.support import native

Serve = Callable[..., Server]
NOBODY, OUT_OF_MEMORY = 65534, 2


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter; pytest's are for one."""
    with tempfile.TemporaryDirectory(prefix="kerf-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_the_server_and_its_workers_have_no_rights_and_the_slice_still_holds(open_folder: Path) -> None:
    for name in native.SOURCES:
        native.built(name)
    node = Node(native.BUILD, open_folder / "node")
    node.folder.chmod(0o755)
    world = open_folder / "node" / "world"
    world.touch()
    world.chmod(0o666)
    container = node.container("slice", Rules(gpus=(GpuRule(uuid=UUID, memory_limit_bytes=64 * MIB),)))
    container.control_block.folder.chmod(0o755)
    with Server(node, container, open_folder / "socket") as server:
        assert server.run("limit", "2048") == [32, OUT_OF_MEMORY]
        assert container.read().gpus[0].refused > 0
        client = Raw(server)
        for pid in (server.process.pid, *server.workers()):
            status = dict(re.findall(r"^(\w+):\t(.*)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE))
            assert status["Uid"].split() == [str(NOBODY)] * 4
            assert status["Gid"].split() == [str(NOBODY)] * 4
            assert status["Groups"].strip() == ""
            assert {status[f"Cap{which}"] for which in ("Eff", "Prm", "Inh", "Bnd", "Amb")} == {"0" * 16}
            assert status["NoNewPrivs"] == "1"
        found = (open_folder / "socket").stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o600)
        assert client.life.fileno() >= 0


def test_strangers_cannot_fill_the_log(serve: Serve) -> None:
    server = serve()
    for _ in range(110):
        assert Raw(server).ask("cuCtxSynchronize", words(0)) == (None, b"")
    server.process.kill()
    lines = server.process.communicate()[1].splitlines()
    assert len(lines) == 100
    assert set(lines) == {"kerf-remote-server: a client sent a malformed call of cuCtxSynchronize"}


def test_a_program_that_meets_too_many_new_connections_is_told_so(serve: Serve) -> None:
    server = serve()
    with contextlib.ExitStack() as stack:
        for _ in range(256):
            silent = stack.enter_context(socket.socket(socket.AF_UNIX))
            silent.connect(str(server.socket))
        _, err = server.client("info").communicate(timeout=30)
    assert "has too many connections at once" in err


def test_what_a_worker_writes_to_standard_output_is_nobodys(serve: Serve) -> None:
    """Kernels print there (printf), and the server's output is a file of the node."""
    server = serve()
    client = Raw(server)
    (worker,) = server.workers()
    assert Path(f"/proc/{worker}/fd/1").readlink() == Path("/dev/null")
    assert client.life.fileno() >= 0
