"""`kerf doctor` on a running stack and with the users of a deployment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.stack import stack
from cli.up import apply, node_object
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.provision import provision
from tests.support.command import kerf

CONF = Path(__file__).resolve().parents[2] / "k8s" / "nats.conf"
NODES = [{"name": "gpu-0", "model": "NVIDIA-A100", "count": 2, "memory_mib": 40_960}]


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


async def test_a_simulated_cluster_is_well() -> None:
    async with stack(NODES) as made:
        await apply(made.bus, [node_object(n) for n in NODES])
        done = await kerf("doctor", "--json", nats=made.url)
        told = json.loads(done.out)
        assert (done.code, told["fail"], told["warn"]) == (0, 0, 0), done.out
        text = {finding["check"]: finding["text"] for finding in told["findings"]}
        assert text["services"] == "connected and well: 1 metrics, 1 node_agent, 1 placement, 1 watcher"
        assert text["drivers"] == "nodes: 1, drivers: simulated on 1"
        people = await kerf("doctor", nats=made.url)
        assert (people.code, "11 ok, 0 warnings, 0 failures" in people.out) == (0, True)


async def test_a_store_without_streams_and_services_fails_with_what_to_do(nats: EmbeddedServer) -> None:
    done = await kerf("doctor", nats=nats.url)
    assert done.code == 1
    assert "KERF_LOG does not exist" in done.out
    assert "→ start placement: its leader creates it" in done.out
    assert "no placement is connected to this NATS" in done.out


async def test_no_server_is_one_failure_and_the_rest_is_not_checked() -> None:
    done = await kerf("doctor", "--json", nats="nats://reader:s3cret@127.0.0.1:1")
    told = json.loads(done.out)
    assert (done.code, told["fail"], told["ok"]) == (1, 1, 0)
    assert "s3cret" not in done.out + done.err


@pytest.mark.parametrize("user", ["reader", "operator"])
async def test_users_of_a_deployment_may_look_at_streams_and_services(
    monkeypatch: pytest.MonkeyPatch, user: str
) -> None:
    for name in ("placement", "watcher", "node_agent", "preemptor", "metrics", "reader", "operator"):
        monkeypatch.setenv(f"KERF_NATS_{name.upper()}", "secret")
    async with EmbeddedServer(config_file=CONF) as server:
        url = f"nats://placement:secret@127.0.0.1:{server.port}"
        async with await NatsBus.connect(url, inbox_prefix="_INBOX_placement") as bus:
            await provision(bus)
        done = await kerf("doctor", "--json", nats=f"nats://{user}:secret@127.0.0.1:{server.port}")
        told = {finding["check"]: finding for finding in json.loads(done.out)["findings"]}
        assert told["streams"]["status"] == "ok", told
        assert told["rights"]["status"] == "ok"
        assert told["services"]["text"] == "no metrics is connected to this NATS", "the survey was allowed"
