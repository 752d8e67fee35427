"""A server that runs: whether it listens, and what lets its client in."""

from __future__ import annotations

import contextlib
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.node_agent import measured_files
from services.node_agent.processes.own_cgroup import OwnCgroup
from services.node_agent.remote import serving
from services.node_agent.remote.programs import SECRET
from services.node_agent.remote.serving import OWNER, PEER, SOCKET, Owner, Serving
from services.node_agent.remote.slices import slice_name, slice_secret
from shared.model.names import certificate_name

NAME = slice_name("u", "g", "main")


@pytest.fixture
def folder() -> Iterator[Path]:
    """The path of a socket has at most 107 bytes, and pytest's folders have long names."""
    with tempfile.TemporaryDirectory(prefix="kerf-") as name:
        yield Path(name)


@pytest.fixture
def listener(folder: Path) -> Iterator[socket.socket]:
    """What listens as the server of that slice, and accepts nothing."""
    (folder / NAME).mkdir()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / NAME / SOCKET))
        made.listen(1)
        yield made


class Servers:
    def __init__(self, folder: Path) -> None:
        self.key = b"a" * 32
        nothing: Any = None
        self.serving = Serving(
            folder, build=folder, cgroups=folder, key=lambda: self.key, libcuda=str, enforced=nothing,
            grant_of=lambda _: None, memory_mib=1,
        )  # fmt: skip

    def secret(self) -> str:
        return f"{slice_secret(self.key, NAME)}\n"


@pytest.fixture
def servers(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Servers:
    monkeypatch.setattr(OwnCgroup, "pids", lambda _: frozenset({1}))
    return Servers(folder)


def test_a_server_whose_queue_is_full_listens(folder: Path, listener: socket.socket) -> None:
    """It is stuck. A connection that waits for room in the queue would stop the whole agent."""
    with contextlib.ExitStack() as stack:
        while True:
            waiting = stack.enter_context(socket.socket(socket.AF_UNIX))
            waiting.setblocking(False)
            try:
                waiting.connect(str(folder / NAME / SOCKET))
            except BlockingIOError:
                break
        assert serving._listens(folder / NAME / SOCKET)
    listener.close()
    assert not serving._listens(folder / NAME / SOCKET)


@pytest.mark.usefixtures("listener")
def test_a_server_that_is_found_lets_its_client_in_by_the_present_key(folder: Path, servers: Servers) -> None:
    assert servers.serving.find("u", "g", "main", "n2")
    servers.key = b"b" * 32
    assert servers.serving.find("u", "g", "main", "n3")
    assert (folder / NAME / SECRET).read_text() == servers.secret()
    assert (folder / NAME / PEER).read_text() == f"{certificate_name('n3')}\n"
    assert stat.S_IMODE((folder / NAME / SECRET).stat().st_mode) == 0o600


@pytest.mark.usefixtures("listener")
async def test_a_server_runs_also_where_its_secret_cannot_be_written(servers: Servers) -> None:
    servers.key = b""
    assert servers.serving.find("u", "g", "main", "n2")
    nothing: Any = None
    assert await servers.serving.serve("u", "g", "main", nothing, "n2") == ""


def test_another_key_reaches_all_servers_but_those_that_are_being_ended(folder: Path, servers: Servers) -> None:
    measured_files.store(folder / NAME / OWNER, Owner(uid="u", container="main", grant_id="g"))
    assert servers.serving.renew_secrets() == []
    assert not (folder / NAME / SECRET).exists(), "first nobody new can come, then what runs is ended"
    (folder / NAME / SECRET).write_text("earlier\n")
    assert servers.serving.renew_secrets() == []
    assert (folder / NAME / SECRET).read_text() == servers.secret()
    servers.key = b""
    (why,) = servers.serving.renew_secrets()
    assert "bytes" in why
