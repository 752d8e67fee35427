"""Inventory, symptoms and events through the real pynvml, on a fake library whose machine is a text file."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pynvml
import pytest
from structlog.testing import capture_logs

from services.node_agent.devices import events
from services.node_agent.devices.health import Symptoms
from services.node_agent.devices.nvml import NvmlDevices
from services.node_agent.processes.owner import Owner
from services.node_agent.worker import Hung, Worker
from shared.model.gpu import Inventory
from shared.model.mig import MigInstance
from tests.support.waiting import eventually
from tests.unit.services.node_agent.devices.machine import TWO, Machine


def devices(**how: object) -> NvmlDevices:
    """A machine whose sysfs is empty and whose processes cannot be inspected."""
    return NvmlDevices(**({"timeout_s": 5.0, "sysfs": Path("/nowhere"), "owner": lambda _: None} | how))  # type: ignore[arg-type]


async def seen(watched: NvmlDevices, *pods: str) -> Inventory:
    return await watched.inventory("n1", "boot-1", frozenset(pods))


async def symptoms(watched: NvmlDevices) -> dict[str, Symptoms]:
    await seen(watched)
    return {sign.uuid: sign for sign in await watched.symptoms()}


async def test_the_inventory_is_read(machine: Machine) -> None:
    found = await seen(devices())
    assert (found.node, found.boot_id, found.driver_version, found.cuda_version) == (
        "n1",
        "boot-1",
        "580.95.05",
        "13.0",
    )
    first, second = found.gpus
    assert (first.uuid, first.index, first.model, first.memory_mib) == ("GPU-a", 0, "NVIDIA-H200", 143771)
    assert (first.pci_bus_id, first.numa_node, first.compute_capability, first.state) == (
        "00000000:01:00.0",
        0,
        "9.0",
        "healthy",
    )
    assert (first.mig_enabled, second.mig_enabled, found.strategies) == (False, True, ("exclusive", "advisory"))


async def test_an_unsupported_call_costs_only_its_field(machine: Machine) -> None:
    machine.become(
        "gpu 0 GPU-a Tesla_V100 16384 00000000:01:00.0 -1 7 0 -1 0\necc 0 -1 -1\nrows 0 -1 -1\nrecovery 0 -1\n"
    )
    watched = devices()
    (gpu,) = (await seen(watched)).gpus
    assert (gpu.numa_node, gpu.mig_enabled, gpu.cpus, gpu.state) == (-1, False, "", "healthy")
    (sign,) = await watched.symptoms()
    assert (sign.lost, sign.recovery, sign.remaps_rows, sign.ecc_volatile) == ("", -1, False, 0)


async def test_the_minor_number_of_a_gpu_may_differ_from_its_index(machine: Machine) -> None:
    machine.also("minor 0 5\n")
    assert [gpu.minor for gpu in (await seen(devices())).gpus] == [5, 1]


async def test_the_cpus_and_the_c2c_link_are_read(machine: Machine) -> None:
    machine.also("cpus 0 f0f\nc2c 1 1\n")
    first, second = (await seen(devices())).gpus
    assert (first.cpus, first.c2c, second.cpus, second.c2c) == ("0-3,8-11", False, "", True)


async def test_the_numa_node_of_the_kernel_is_preferred(machine: Machine, tmp_path: Path) -> None:
    device = tmp_path / "sys" / "bus" / "pci" / "devices" / "0000:01:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("3\n")
    assert [gpu.numa_node for gpu in (await seen(devices(sysfs=tmp_path / "sys"))).gpus] == [3, 1]


async def test_mig_instances_of_known_profiles_are_offered(machine: Machine) -> None:
    """An instance that is split further, or of an unknown profile, is not offered."""
    machine.also(
        "mig 1 9 4 3g.71gb 71000 MIG-b\nmig 1 7 0 1g.18gb+me 18000 MIG-a\n"
        "mig 1 8 2 1c.2g.35gb 35000 MIG-c\nmig 1 3 1 1g.18gb+gfx 18000 MIG-d\n"
    )
    found = await seen(devices())
    assert found.gpus[1].mig_instances == (
        MigInstance(profile="1g.18gb+me", start=0, uuid="MIG-a"),
        MigInstance(profile="3g.71gb", start=4, uuid="MIG-b"),
    )
    assert found.strategies == ("exclusive", "advisory", "mig")


@pytest.mark.parametrize(
    ("lines", "nvlinks", "pcie", "p2p"),
    [
        ("", 0, "system", True),
        ("ancestor 0 1 30\n", 0, "hostbridge", True),
        ("ancestor 0 1 40\np2p 0 1 3\n", 0, "node", False),
        (
            "nvlink 0 0 gpu 00000000:02:00.0\nnvlink 0 1 gpu 00000000:02:00.0\n"
            "nvlink 1 0 gpu 00000000:01:00.0\nnvlink 1 1 gpu 00000000:01:00.0\n",
            2,
            "system",
            True,
        ),
        ("nvlink 0 0 gpu 00000000:09:00.0\n", 0, "system", True),
        (
            "".join(f"nvlink 0 {i} switch\n" for i in range(18)) + "".join(f"nvlink 1 {i} switch\n" for i in range(16)),
            16,
            "system",
            True,
        ),
    ],
    ids=["nothing", "one root", "no peer access", "direct", "to another", "switched"],
)
async def test_the_links_between_gpus_are_read(
    machine: Machine, lines: str, nvlinks: int, pcie: str, p2p: bool
) -> None:
    """Direct NVLinks are counted; through a switch the GPU with fewer links decides."""
    machine.also(lines)
    (link,) = (await seen(devices())).links
    assert (link.a, link.b, link.nvlinks, link.pcie, link.p2p) == (0, 1, nvlinks, pcie, p2p)


@pytest.mark.parametrize("call", ["nvmlDeviceGetNvLinkState", "nvmlDeviceGetTopologyCommonAncestor"])
async def test_a_gpu_of_which_the_links_cannot_be_read_costs_only_its_links(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    machine.also("gpu 2 GPU-c NVIDIA_H200 143771 00000000:03:00.0 1 9 0 1 0\n")
    real, broken = getattr(pynvml, call), pynvml.NVML_ERROR_UNKNOWN

    def fails(handle: Any, *more: Any) -> Any:
        if pynvml.nvmlDeviceGetUUID(handle) == "GPU-a":
            raise pynvml.NVMLError(broken)
        return real(handle, *more)

    monkeypatch.setattr(pynvml, call, fails)
    found = await seen(devices())
    assert [gpu.uuid for gpu in found.gpus] == ["GPU-a", "GPU-b", "GPU-c"]
    assert [(link.a, link.b) for link in found.links] == [(1, 2)]
    broken = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    assert (await seen(devices())).problem == "NVML: Driver Not Loaded"


@pytest.mark.parametrize(
    ("lines", "clique", "down"),
    [
        ("", "", False),
        (
            "fabric 0 3 7 00112233445566778899aabbccddeeff\nfabric 1 3 7 00112233445566778899aabbccddeeff\n",
            "00112233-4455-6677-8899-aabbccddeeff.7",
            False,
        ),
        ("fabric 0 3 0 00000000000000000000000000000000\n", "", False),
        ("fabric 0 2 0 0\n", "", True),
    ],
    ids=["none", "leaves the node", "within one machine", "not up"],
)
async def test_the_nvswitch_fabric_is_read(machine: Machine, lines: str, clique: str, down: bool) -> None:
    machine.also(lines)
    watched = devices()
    assert (await seen(watched)).clique == clique
    assert (await watched.symptoms())[0].fabric_down is down


async def test_foreign_memory_is_counted_separately(machine: Machine) -> None:
    """Processes of the host, of pods without slices, and those that outlived their lease."""
    owners = {11: Owner(), 12: Owner("u-ours", "c"), 13: Owner("u-other", "c"), 14: None}
    machine.also("process 0 11 2048\nprocess 0 12 512\nprocess 0 13 1\nprocess 0 14 100\n")
    watched = devices(owner=owners.get)
    assert [gpu.foreign_mib for gpu in (await seen(watched, "u-ours")).gpus] == [2049, 0]
    assert [gpu.foreign_mib for gpu in (await seen(watched)).gpus] == [2561, 0]


async def test_symptoms_are_read(machine: Machine) -> None:
    machine.also("ecc 0 2 9\nrows 0 1 0\npcie 0 8 16 4 5\nclocks 0 40\nrecovery 0 4\nbusy 0 50\n")
    found = (await symptoms(devices()))["GPU-a"]
    assert found == Symptoms(
        uuid="GPU-a",
        recovery=4,
        rows_pending=True,
        remaps_rows=True,
        ecc_volatile=2,
        ecc_aggregate=9,
        pcie_width=8,
        max_pcie_width=16,
        pcie_generation=4,
        max_pcie_generation=5,
        busy=True,
        clock_reasons=0x40,
    )


async def test_a_lost_gpu_stays_in_the_inventory_with_the_others(machine: Machine) -> None:
    watched = devices()
    await seen(watched)
    machine.become(TWO.replace("0 9 0 0 0", "0 9 0 0 15"))
    found = await symptoms(watched)
    assert (found["GPU-a"].lost, found["GPU-b"].lost) == ("GPU is lost", "")


async def test_a_gpu_with_the_index_of_another_is_not_confused_with_it(machine: Machine) -> None:
    """As when a GPU has fallen off and NVML was initialised again; the next inventory corrects the indices."""
    watched = devices()
    await seen(watched)
    machine.become(TWO.splitlines()[3].replace("gpu 1", "gpu 0") + "\n")
    assert [sign.lost for sign in await watched.symptoms()] == ["Not Found", "Invalid Argument"]
    assert await watched.processes(1) == ()
    assert [(gpu.uuid, gpu.index) for gpu in (await seen(watched)).gpus] == [("GPU-b", 0)]


async def test_a_gpu_lost_before_the_agent_starts_is_known_from_the_checkpoint(machine: Machine) -> None:
    before = await seen(devices())
    machine.become(TWO.replace("0 9 0 0 0", "0 9 0 0 15"))
    assert [gpu.uuid for gpu in (await seen(devices(known=before))).gpus] == ["GPU-a", "GPU-b"]


async def test_a_removed_gpu_is_not_in_the_inventory(machine: Machine) -> None:
    watched = devices()
    await seen(watched)
    machine.become(TWO.splitlines()[2] + "\n")
    assert [gpu.uuid for gpu in (await seen(watched)).gpus] == ["GPU-a"]


async def test_a_driver_that_is_loaded_later_is_found(machine: Machine) -> None:
    machine.become("init 9\n")
    watched = devices()
    without = await seen(watched)
    assert (without.gpus, without.problem) == ((), "NVML: Driver Not Loaded")
    machine.become(TWO)
    assert (len((await seen(watched)).gpus), (await seen(watched)).problem) == (2, "")


async def test_a_driver_without_a_gpu_says_so(machine: Machine) -> None:
    machine.become("")
    assert (await seen(devices())).problem == "the driver reports no GPU"


async def test_a_reloaded_driver_is_counted_and_keeps_the_uuids(machine: Machine) -> None:
    watched = devices()
    before = await seen(watched)
    machine.become("init 9\n" + TWO.replace(" 0 0\n", " 0 9\n").replace(" 1 0\n", " 1 9\n"))
    assert {sign.silent for sign in await watched.symptoms()} == {"NVML: Driver Not Loaded"}
    assert (await seen(watched)).gpus == before.gpus
    machine.become(TWO)
    assert {sign.silent for sign in await watched.symptoms()} == {""}
    assert (watched.loaded, (await seen(watched)).gpus) == (1, before.gpus)


async def test_a_hung_nvml_is_reported_and_blocks_nothing(machine: Machine) -> None:
    """The answer comes in time with what was known; a second question starts no second thread."""
    watched = devices(timeout_s=0.2)
    before = await seen(watched)
    machine.also("hang\n")
    for _ in range(2):
        assert (await seen(watched)).gpus == before.gpus
        assert all("NVML hangs" in sign.silent for sign in await watched.symptoms())
    assert sum(thread.name == "nvml" for thread in threading.enumerate()) == 1
    machine.become(TWO)

    async def well() -> bool:
        return all(sign.silent == "" for sign in await watched.symptoms())

    await eventually(well)
    await watched.close()


async def test_xids_are_received_with_their_gpu(machine: Machine) -> None:
    """A double-bit error has no number of its own; errors from before the agent started are not reported; those of the
    application are."""
    heard: list[tuple[str, int]] = []
    machine.also("event 1 0 8 13\n")
    watched = devices()
    watched.listen(lambda uuid, number: heard.append((uuid, number)))
    number = 1

    async def listening() -> bool:
        """Repeated until the first event arrives, because nothing shows when the thread has started."""
        nonlocal number
        number += 1
        machine.also(f"event {number} 1 8 31\n")
        return bool(heard)

    await eventually(listening)
    assert set(heard) == {("GPU-b", 31)}
    machine.also(f"event {number + 1} 0 2 0\nevent {number + 2} 0 8 79\n")
    await eventually(lambda: heard[-2:] == [("GPU-a", 48), ("GPU-a", 79)])
    await watched.close()
    await eventually(lambda: all(thread.name != "nvml-events" for thread in threading.enumerate()))


@pytest.mark.parametrize("error", [8, 11, 15, 999])
async def test_a_gpu_that_cannot_be_registered_keeps_no_xids_of_the_others_away(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """The error of each is logged once, although all are tried again until one can be registered."""
    tries = 0
    real = pynvml.nvmlEventSetCreate

    def create() -> Any:
        nonlocal tries
        tries += 1
        return real()

    monkeypatch.setattr(events, "RETRY_S", 0.01)
    monkeypatch.setattr(pynvml, "nvmlEventSetCreate", create)
    heard: list[tuple[str, int]] = []
    number = 0

    async def listening() -> bool:
        nonlocal number
        number += 1
        machine.also(f"event {number} 1 8 31\n")
        return bool(heard)

    async def both() -> bool:
        nonlocal number
        number += 2
        machine.also(f"event {number - 1} 1 8 31\nevent {number} 0 8 31\n")
        return ("GPU-a", 31) in heard

    watched = devices()
    machine.become(TWO.replace(" 0 0\n", f" 0 {error}\n").replace(" 1 0\n", f" 1 {error}\n"))
    with capture_logs() as logs:
        watched.listen(lambda uuid, xid: heard.append((uuid, xid)))
        await eventually(lambda: tries > 3)
        assert [line["index"] for line in logs if line["event"] == "gpu_tells_no_events"] == [0, 1]
        machine.become(TWO.replace(" 0 0\n", f" 0 {error}\n"))
        await eventually(listening)
    assert set(heard) == {("GPU-b", 31)}
    monkeypatch.setattr(events, "FAILED_AGAIN_S", 0.01)
    machine.become(TWO)
    await eventually(both, what="XIDs of the one that can be registered later")
    await watched.close()


async def test_xids_are_received_again_as_soon_as_the_driver_is_back(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU may fail right after its driver was loaded again: that is not delayed until the next retry."""
    monkeypatch.setattr(events, "RETRY_S", 3600.0)
    heard: list[str] = []
    number = 0

    async def heard_of(uuid: str) -> bool:
        nonlocal number
        number += 1
        machine.also(f"event {number} 1 8 31\n")
        return uuid in heard

    watched = devices()
    await seen(watched)
    watched.listen(lambda uuid, _: heard.append(uuid))
    await eventually(lambda: heard_of("GPU-b"))
    machine.become("init 9\n" + TWO.replace(" 0 0\n", " 0 9\n").replace(" 1 0\n", " 1 9\n"))
    await watched.symptoms()
    machine.become(TWO.replace("GPU-b", "GPU-c"))
    await watched.symptoms()
    await eventually(lambda: heard_of("GPU-c"))
    await watched.close()


async def test_a_worker_raises_the_error_of_the_call() -> None:
    worker = Worker(5.0)
    with pytest.raises(ZeroDivisionError):
        await worker.call(lambda: 1 // 0)
    assert await worker.call(lambda: 7) == 7


async def test_a_worker_makes_no_second_call_while_one_hangs() -> None:
    worker = Worker(0.05)
    gate = threading.Event()
    for _ in range(2):
        with pytest.raises(Hung):
            await worker.call(gate.wait)
    gate.set()
