"""The NATS server of the image: nats-server as published, with the time-outs of its elections as settings."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from pathlib import Path

import pytest

from shared.bus.nats_bus import NatsBus
from shared.bus.port import BusError
from shared.contracts.subjects import STREAM_LOG
from tests.support.cluster import program_or_skip
from tests.support.nats_cluster import NatsCluster, installed_server, provision_cluster
from tests.support.waiting import eventually

SOURCE = Path(__file__).resolve().parents[2] / "native/nats_server"


@pytest.fixture(scope="module")
def server() -> Path:
    return program_or_skip("nats-server")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"KERF_NATS_HEARTBEAT_MS": "1s"}, 'KERF_NATS_HEARTBEAT_MS is "1s"; it has to be a whole number'),
        ({"KERF_NATS_ELECTION_MAX_MS": "0"}, 'KERF_NATS_ELECTION_MAX_MS is "0"'),
        ({"KERF_NATS_ELECTION_MIN_MS": "2999"}, "at least three times KERF_NATS_HEARTBEAT_MS"),
        ({"KERF_NATS_ELECTION_MAX_MS": "4000"}, "KERF_NATS_ELECTION_MAX_MS has to be above"),
    ],
)
def test_time_outs_that_cannot_work_are_refused_at_start(server: Path, settings: dict[str, str], text: str) -> None:
    done = subprocess.run([server, "--version"], env=settings, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert text in done.stderr


def test_it_is_the_published_server_otherwise(server: Path) -> None:
    done = subprocess.run([server, "--version"], env={}, capture_output=True, text=True, check=True)
    pinned = (SOURCE / "go.mod").read_text().partition("nats-server/v2 ")[2].split()[0]
    assert done.stdout == f"nats-server: {pinned}\n"


def test_the_settings_are_the_servers_own_time_outs(server: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("the server's time-outs are read by a test in Go, and there is no Go")
    done = subprocess.run(["go", "test", "-count=1", "./..."], cwd=SOURCE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


async def test_a_cluster_elects_another_leader_of_a_stream(
    server: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in installed_server(server).items():
        monkeypatch.setenv(name, value)
    async with NatsCluster(tmp_path) as cluster:
        bus = await NatsBus.connect(cluster.url, name="test")
        try:
            await provision_cluster(bus, replicas=3)
            leader = await cluster.leader_of(bus, STREAM_LOG)
            await leader.kill()

            async def another() -> bool:
                with contextlib.suppress(BusError):
                    return await cluster.leader_of(bus, STREAM_LOG) is not leader
                return False

            await eventually(another, within_s=30.0)
        finally:
            await bus.close()
