"""GPUs over the network on one node: what is measured stays while it is not known anew, and what needs no proxy."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.node_agent.config import Config
from services.node_agent.processes.own_cgroup import OwnCgroup
from services.node_agent.remote.clients import Clients
from services.node_agent.remote.identity import Identity
from services.node_agent.remote.remote import Remote
from services.node_agent.remote.serving import Serving
from shared.bus.port import BusError
from shared.contracts.base import encode
from shared.contracts.identity import IdentityAnswer
from shared.contracts.queries import RemotePeer, RemotePeersAnswer
from shared.model.network import NetworkLink

LINK = NetworkLink(rtt_us=20, mib_s=9000)


class World:
    """A node, what placement answers it, and what runs there."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.answer: RemotePeersAnswer | None = None
        self.details: list[str] = []
        note = lambda *_, **__: None  # noqa: E731
        ctx: Any = SimpleNamespace(
            bus=SimpleNamespace(request=self._request),
            log=SimpleNamespace(info=note, warning=note),
            health=SimpleNamespace(set=lambda name, *, ok, detail: self.details.append(detail)),
        )
        config = Config(
            node="n", run_dir=str(folder / "run"), cgroup_dir=str(folder / "cgroup"), remote_dir=str(folder),
            checkpoint_file=str(folder / "state" / "checkpoint"), remote_files=str(folder / "files"), **settings,
        )  # fmt: skip
        nothing: Any = None
        self.remote = Remote(
            ctx, config, libcuda=str, enforced=nothing, grant_of=lambda _: None, clients=tuple, say=nothing
        )

    async def _request(self, subject: str, payload: bytes) -> bytes:
        if self.answer is None:
            raise BusError("nobody leads")
        return encode(self.answer)

    def peers(self, *names: str, error: str = "") -> None:
        peers = tuple(RemotePeer(node=name, address=f"{name}:1") for name in names)
        self.answer = RemotePeersAnswer(peers=peers, error=error)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The nodes that were measured."""
    found: list[str] = []

    async def probe(_: Remote, peer: RemotePeer) -> NetworkLink:
        found.append(peer.node)
        return LINK

    monkeypatch.setattr(Remote, "_probe", probe)
    return found


@pytest.mark.parametrize("answered", [True, False], ids=["it does not know yet", "it does not answer"])
async def test_what_was_measured_stays_while_placement_names_no_nodes(
    tmp_path: Path, measured: list[str], answered: bool
) -> None:
    """As while another leader begins: a deleted link takes its nodes from all pods until it is measured again."""
    world = World(tmp_path)
    world.peers("a", "b")
    assert await world.remote._measure_all()
    measured.clear()
    world.answer = RemotePeersAnswer(error="this leader has just begun") if answered else None
    assert not await world.remote._measure_all()
    assert measured == ["a", "b"]
    assert world.remote._network.told == {"a": LINK, "b": LINK}
    world.peers("b")
    assert await world.remote._measure_all()
    assert world.remote._network.told == {"b": LINK}


class Processes:
    """Of all cgroups of the agent's own; what was ended."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ended: list[str] = []
        monkeypatch.setattr(OwnCgroup, "pids", lambda _: frozenset({1}))
        monkeypatch.setattr(OwnCgroup, "end", self._end_of())

    def _end_of(self) -> Any:
        async def end(cgroup: OwnCgroup, within_s: float) -> None:
            self.ended.append(cgroup._name)

        return end


@pytest.mark.parametrize("runs", [True, False])
async def test_a_node_that_serves_no_more_keeps_its_proxy_until_its_last_server_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: bool
) -> None:
    processes = Processes(monkeypatch)
    servers = frozenset({("u", "main")}) if runs else frozenset[tuple[str, str]]()
    monkeypatch.setattr(Serving, "running", lambda _: servers)
    world = World(tmp_path)
    (tmp_path / "run" / "remote" / "proxy").mkdir(parents=True)
    await world.remote._look()
    await world.remote._look()
    assert processes.ended == ([] if runs else ["kerf-remote/proxy", "kerf-remote/leaving"])
    assert not world.remote.ability().address


async def test_a_node_without_gpus_over_the_network_asks_for_no_certificate(tmp_path: Path) -> None:
    world = World(tmp_path)
    await world.remote._look()
    assert not (tmp_path / "files").exists()
    assert not (tmp_path / "run").exists()


async def test_a_proxy_that_cannot_start_leaves_the_node_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ways of its containers to GPUs of other nodes are kept, and told of as before."""

    async def obtained(_: Identity) -> str:
        return ""

    kept: list[object] = []

    async def keep(_: Clients, containers: Callable[[], object]) -> list[str]:
        kept.append(containers())
        return []

    monkeypatch.setattr(Identity, "obtain", obtained)
    monkeypatch.setattr(Clients, "keep", keep)
    world = World(tmp_path, remote_serving_nodes=("n",), remote_client_nodes=("n",))
    await world.remote._look()
    assert kept == [()]
    assert (world.remote.ability().client, world.remote.ability().address) == (True, "")
    assert "the setting remote_address is empty" in world.details[-1]


async def test_a_certificate_that_cannot_be_kept_is_no_end_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def signed(subject: str, payload: bytes) -> bytes:
        return encode(IdentityAnswer(certificate="c", authority="a", grants_key="k" * 32, valid_until_s=1.0))

    monkeypatch.setattr(Identity, "_write", staticmethod(full))
    config = Config(node="n", checkpoint_file=str(tmp_path / "state" / "checkpoint"), remote_dir=str(tmp_path))
    ctx: Any = SimpleNamespace(bus=SimpleNamespace(request=signed), now=lambda: 1e9)
    why = await Identity(ctx, config).obtain()
    assert why == f"the certificate cannot be kept in {tmp_path / 'state' / 'remote'}: No space left on device"
