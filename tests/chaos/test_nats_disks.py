"""NATS servers that cannot write, or that are too few to: nothing is placed then, and nothing is lost.

What brings a server back is what an installation has: its liveness probe and the kubelet's restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from shared.bus.embedded import EmbeddedServer
from shared.bus.port import BusError
from shared.contracts.subjects import STREAM_LOG
from tests.chaos.cluster import ChaosCluster, chaos_cluster, loaded
from tests.support.nats_cluster import ELECTED_WITHIN_S, NatsCluster, is_alive, max_file_store, monitoring
from tests.support.own_disk import OwnDisk
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane, free_ports

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("chaos")]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="NOT ROOT, so full disks are NOT TESTED: mounts need it")

FIRST, LATER = 60, 30
DISK_MIB = 4096
"""Above what the stream of events may take: a server makes no stream for which it has no room."""


async def _fails_its_probe(monitor: int) -> bool:
    return not await asyncio.to_thread(is_alive, monitor)


async def _whole(nats: NatsCluster, cluster: ChaosCluster) -> bool:
    with contextlib.suppress(BusError):
        return not await nats.lagging(cluster.site.bus)
    return False


@needs_root
@pytest.mark.parametrize("restarted_while_full", [False, True])
async def test_the_disk_of_the_one_server_is_full_for_a_while(
    own_control_plane: ControlPlane, tmp_path: Path, restarted_while_full: bool
) -> None:
    """Where there is room again the server still writes nothing until it is restarted (2.15.1)."""
    monitor = free_ports(1)[0]
    with OwnDisk(tmp_path / "disk", mib=DISK_MIB) as disk:
        nats = EmbeddedServer(
            store_dir=disk.path / "nats", extra_config=monitoring(monitor), max_file_store=max_file_store()
        )
        async with chaos_cluster(own_control_plane, tmp_path, nats) as cluster, loaded(cluster, 1) as load:
            await load.go(FIRST)
            assert await asyncio.to_thread(is_alive, monitor)
            disk.fill()
            going = asyncio.create_task(load.go(LATER))
            await eventually(lambda: _fails_its_probe(monitor), within_s=30, what="a server that fails its probe")
            if restarted_while_full:
                await nats.restart()
                await eventually(lambda: _fails_its_probe(monitor), within_s=30, what="one that fails it again")
            await going
            disk.make_room()
            assert await _fails_its_probe(monitor)
            await nats.restart()
            await load.go(LATER)
            await cluster.verdict(load)
            assert await asyncio.to_thread(is_alive, monitor)


@needs_root
async def test_the_disk_of_the_server_that_leads_the_log_is_full(
    own_control_plane: ControlPlane, tmp_path: Path
) -> None:
    """The other two go on. The one with the full disk has given up its streams, which its probe finds."""
    with contextlib.ExitStack() as stack:
        disks = [stack.enter_context(OwnDisk(tmp_path / f"nats-{i}", mib=DISK_MIB)) for i in range(3)]
        nats = NatsCluster(tmp_path)
        async with chaos_cluster(own_control_plane, tmp_path, nats) as cluster, loaded(cluster, 2) as load:
            await load.go(FIRST)
            leader = await nats.leader_of(cluster.site.bus, STREAM_LOG)
            number = nats.servers.index(leader)
            monitor = nats.monitors[number]
            disks[number].fill()
            await load.go(LATER)
            await eventually(lambda: _fails_its_probe(monitor), within_s=30, what="a server that fails its probe")
            await cluster.settled(load)
            with pytest.raises(BusError, match="no space left on device"):
                await leader.restart()
            disks[number].make_room()
            await leader.start()
            await eventually(lambda: _whole(nats, cluster), within_s=ELECTED_WITHIN_S, what="all replicas current")
            await cluster.verdict(load)
            assert await asyncio.to_thread(is_alive, monitor)


async def test_two_of_three_servers_are_gone_for_a_while(own_control_plane: ControlPlane, tmp_path: Path) -> None:
    """The one that is left fails no probe: a restart would not help it."""
    nats = NatsCluster(tmp_path / "nats")
    async with chaos_cluster(own_control_plane, tmp_path, nats) as cluster, loaded(cluster, 3) as load:
        await load.go(FIRST)
        leader = await nats.leader_of(cluster.site.bus, STREAM_LOG)
        left = next(server for server in nats.servers if server is not leader)
        gone = [server for server in nats.servers if server is not left]
        await asyncio.gather(*(server.kill() for server in gone))
        await load.go(LATER)
        assert await asyncio.to_thread(is_alive, nats.monitors[nats.servers.index(left)])
        await asyncio.gather(*(server.start() for server in gone))
        await eventually(lambda: _whole(nats, cluster), within_s=ELECTED_WITHIN_S, what="all replicas current")
        await cluster.verdict(load)
