"""A node offers strategies according to its canary."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from services.node_agent.canary import verdict
from services.node_agent.canary.verdict import Proof
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from tests.support.enforcement import (
    NVML,
    become,
    control_block,
    offered,
    prove,
    started,
)
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubelet_agent import agent
from tests.support.waiting import eventually


async def _offers(bus: NatsBus) -> bool:
    return {"interposer", "time_slice"} <= set(await offered(bus))


def _proof(host: Path) -> Proof:
    return msgspec.json.decode((host / "state" / "canary.json").read_bytes(), type=Proof)


@pytest.mark.skipif(os.geteuid() != 0, reason="the canary mounts its control block where a container has it")
async def test_the_canary_does_not_touch_a_gpu_in_use(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    build: Path,
    place: None,
) -> None:
    """If all memory of the GPU is granted, there is no room for a canary: nothing is proven until memory is
    released."""
    async with agent(nats, host, **(settings | {"interposer_dir": str(host / "nothing")})):
        await started(bus, kubelet, "a", memory_mib=3000, strategy="advisory")
    async with agent(nats, host, **settings) as ctx:
        await eventually(lambda: "no healthy GPU has 2048 MiB" in str(ctx.health.report()["parts"].get("enforcement")))
        assert "interposer" not in await offered(bus)


async def test_after_a_failed_canary_firm_is_not_offered_and_firm_pods_do_not_start(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], build: Path
) -> None:
    prove(host, build, ok=False, sentence="cuMemCreate gave too much")
    broken = settings | {"libcuda": "/nowhere/libcuda.so.1"}
    async with agent(nats, host, **broken) as ctx:
        with pytest.raises(grpc.aio.AioRpcError, match="strategy-not-offered"):
            await started(bus, kubelet, "a")
        assert not control_block(host, "a").exists()
        assert "interposer" not in await eventually(lambda: offered(bus))
        assert (
            "failed with driver 580.1: cuMemCreate gave too much"
            in ctx.health.report()["parts"]["enforcement"]["detail"]
        )
        assert ctx.health.ready
        assert "kerf_agent_enforcement_proven 0.0" in ctx.metrics.render().decode()


@pytest.mark.skipif(os.geteuid() != 0, reason="the canary mounts its control block where a container has it")
async def test_a_node_offers_firm_isolation_when_its_own_canary_has_passed_and_again_after_a_driver_change(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    place: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERF_FAKE_CUDA", str(host / "world"))
    async with agent(nats, host, **settings) as ctx:
        await eventually(lambda: _offers(bus), within_s=30)
        assert "kerf_agent_enforcement_proven 1.0" in ctx.metrics.render().decode()
        become(host, NVML.replace("580.1", "590.7"))
        await eventually(lambda: _proof(host).driver_version == "590.7", within_s=30)
    assert _proof(host).ok


async def _detail(nats: EmbeddedServer, host: Path, settings: dict[str, Any], bus: NatsBus) -> tuple[str, set[str]]:
    """What an agent says about enforcement and offers, with a driver on which no canary can run again."""
    async with agent(nats, host, **settings, libcuda="/nowhere/libcuda.so.1") as ctx:
        await eventually(lambda: "enforcement" in ctx.health.report()["parts"])
        found = set(await eventually(lambda: offered(bus)))
        return str(ctx.health.report()["parts"]["enforcement"]["detail"]), found


@pytest.mark.parametrize(("said", "firm"), [({}, False), ({"context_mib": 300}, True)])
async def test_firm_is_not_offered_until_the_memory_of_a_context_is_known(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    build: Path,
    said: dict[str, Any],
    firm: bool,
) -> None:
    """Measured, or set by the operator. Otherwise each process would get it for nothing."""
    prove(host, build, context_bytes=verdict.UNKNOWN)
    del settings["libcuda"]
    detail, found = await _detail(nats, host, settings | said, bus)
    assert ({"interposer", "time_slice"} <= found, "interposer" in found) == (firm, firm)
    assert ("memory of a CUDA context is not known" in detail) is not firm


async def test_time_slice_is_not_offered_where_two_slices_did_not_take_turns(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], build: Path
) -> None:
    prove(host, build, turns_milli=(900, 90, 990, 5), turns_sentence="two slices of equal rank got 900 and 90 milli")
    del settings["libcuda"]
    detail, found = await _detail(nats, host, settings, bus)
    assert ("interposer" in found, "time_slice" in found, "policed" in found) == (True, False, False)
    why = "two slices of equal rank got 900 and 90 milli"
    assert detail == f"time_slice is not offered: {why}; policed is not offered: {why}"


@pytest.mark.parametrize(
    ("seen_bytes", "why"),
    [
        (1, ""),
        (0, "NVML does not report the memory of the canary's own process by its ID"),
        (verdict.UNKNOWN, "the canary has not asked NVML for the memory of its own process yet"),
    ],
)
async def test_policed_is_offered_where_nvml_has_told_the_canary_what_its_own_process_holds(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    build: Path,
    seen_bytes: int,
    why: str,
) -> None:
    """Otherwise the agent would not see what a pod holds."""
    prove(host, build, seen_bytes=seen_bytes)
    del settings["libcuda"]
    detail, found = await _detail(nats, host, settings, bus)
    assert ({"interposer", "time_slice"} <= found, "policed" in found) == (True, not why)
    assert detail.startswith(f"policed is not offered: {why}") if why else not detail


@pytest.mark.skipif(os.geteuid() != 0, reason="the canary mounts its control block where a container has it")
@pytest.mark.parametrize("found", [{"seen_bytes": 0}, {"driver_limit": "fails"}], ids=["hostPID", "cgroups"])
async def test_what_an_agent_lacked_is_tried_again_by_the_next_one(
    nats: EmbeddedServer,
    bus: NatsBus,
    host: Path,
    kubelet: FakeKubelet,
    settings: dict[str, Any],
    build: Path,
    place: None,
    monkeypatch: pytest.MonkeyPatch,
    found: dict[str, Any],
) -> None:
    """An operator who gives the agent hostPID, as it advises, restarts it by that. The driver is as before."""
    monkeypatch.setenv("KERF_FAKE_CUDA", str(host / "world"))
    prove(host, build, at_ms=1, **found)
    async with agent(nats, host, **settings):
        assert await offered(bus) == () or "interposer" in await offered(bus), "what is proven is offered meanwhile"
        await eventually(lambda: _proof(host).at_ms > 1, within_s=30)


async def test_policed_pods_do_not_start_where_the_canary_has_failed(
    nats: EmbeddedServer, bus: NatsBus, host: Path, kubelet: FakeKubelet, settings: dict[str, Any], build: Path
) -> None:
    prove(host, build, seen_bytes=0)
    async with agent(nats, host, **settings | {"libcuda": "/nowhere/libcuda.so.1"}):
        with pytest.raises(grpc.aio.AioRpcError, match="strategy-not-offered"):
            await started(bus, kubelet, "a", strategy="policed")
        assert not control_block(host, "a").exists()
