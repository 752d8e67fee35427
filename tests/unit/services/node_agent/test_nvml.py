"""The inventory through the real pynvml, over a library whose machine stands in a text file."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from services.node_agent.nvml import NvmlDevices
from services.node_agent.worker import Hung, Worker
from shared.model.gpu import Inventory
from tests.support.waiting import eventually

FAKE = Path(__file__).resolve().parents[3] / "fakes" / "nvml"
TWO = (
    "driver 580.95.05\ncuda 13000\n"
    "gpu 0 GPU-a NVIDIA_H200 143771 00000000:01:00.0 0 9 0 0 0\n"
    "gpu 1 GPU-b NVIDIA_H200 143771 00000000:02:00.0 1 9 0 1 0\n"
)


@pytest.fixture(scope="session", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Loaded before pynvml asks for that name: the loader then gives it ours."""
    if shutil.which("cc") is None or shutil.which("make") is None:
        pytest.skip("no C compiler to build the fake NVML with")
    build = tmp_path_factory.mktemp("nvml")
    subprocess.run(["make", "-s", "-C", str(FAKE), f"BUILD={build}"], check=True)
    ctypes.CDLL(str(build / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Sets the machine. At the end it hangs no more, so that no thread stays behind."""
    file = tmp_path / "state"

    def become(text: str) -> None:
        beside = file.with_suffix(".new")
        beside.write_text(text)
        beside.replace(file)

    become(TWO)
    monkeypatch.setenv("KERF_FAKE_NVML_STATE", str(file))
    yield become
    become(TWO)


async def seen(devices: NvmlDevices) -> Inventory:
    return await devices.inventory("n1", "boot-1")


def devices(**how: object) -> NvmlDevices:
    return NvmlDevices(**({"timeout_s": 5.0} | how))  # type: ignore[arg-type]


async def test_it_reads_what_there_is(machine: Callable[[str], None]) -> None:
    found = await seen(devices())
    assert (found.node, found.boot_id, found.driver_version, found.cuda_version) == ("n1", "boot-1", "580.95.05", "13.0")
    first, second = found.gpus
    assert (first.uuid, first.index, first.model, first.memory_mib) == ("GPU-a", 0, "NVIDIA-H200", 143771)
    assert (first.pci_bus_id, first.numa_node, first.compute_capability, first.state) == ("00000000:01:00.0", 0, "9.0", "healthy")
    assert (first.mig_enabled, second.mig_enabled) == (False, True)


async def test_what_a_device_does_not_know_costs_a_field(machine: Callable[[str], None]) -> None:
    machine("gpu 0 GPU-a Tesla_V100 16384 00000000:01:00.0 -1 7 0 -1 0\n")
    (gpu,) = (await seen(devices())).gpus
    assert (gpu.numa_node, gpu.mig_enabled, gpu.state) == (-1, False, "healthy")


@pytest.mark.parametrize(
    ("lines", "nvlinks", "pcie", "p2p"),
    [
        ("", 0, "system", True),
        ("ancestor 0 1 30\n", 0, "hostbridge", True),
        ("ancestor 0 1 40\np2p 0 1 3\n", 0, "node", False),
        ("nvlink 0 0 gpu 00000000:02:00.0\nnvlink 0 1 gpu 00000000:02:00.0\nnvlink 1 0 gpu 00000000:01:00.0\nnvlink 1 1 gpu 00000000:01:00.0\n", 2, "system", True),
        ("nvlink 0 0 gpu 00000000:09:00.0\n", 0, "system", True),
        ("".join(f"nvlink 0 {i} switch\n" for i in range(18)) + "".join(f"nvlink 1 {i} switch\n" for i in range(16)), 16, "system", True),
    ],
    ids=["nothing", "one root", "no peer access", "direct", "to another", "switched"],
)
async def test_it_reads_how_gpus_are_linked(machine: Callable[[str], None], lines: str, nvlinks: int, pcie: str, p2p: bool) -> None:
    """Direct NVLinks are counted; through a switch it is the links of the lesser one."""
    machine(TWO + lines)
    (link,) = (await seen(devices())).links
    assert (link.a, link.b, link.nvlinks, link.pcie, link.p2p) == (0, 1, nvlinks, pcie, p2p)


async def test_strangers_memory_is_told_apart(machine: Callable[[str], None]) -> None:
    """Processes of pods are ours to account for otherwise."""
    machine(TWO + "process 0 11 2048\nprocess 0 12 512\nprocess 0 13 1\n")
    found = await seen(devices(is_pods=lambda pid: pid == 12))
    assert [gpu.foreign_mib for gpu in found.gpus] == [2049, 0]


async def test_a_lost_gpu_is_unhealthy_and_comes_back(machine: Callable[[str], None]) -> None:
    """Shown with its reason under its own UUID; its neighbours are unharmed."""
    watched = devices()
    await seen(watched)
    machine(TWO.replace("0 9 0 0 0", "0 9 0 0 15"))
    lost, other = (await seen(watched)).gpus
    assert (lost.uuid, lost.state, lost.reason) == ("GPU-a", "unhealthy", "NVML: GPU is lost")
    assert other.state == "healthy"
    machine(TWO)
    assert [gpu.state for gpu in (await seen(watched)).gpus] == ["healthy", "healthy"]


async def test_a_gpu_that_was_taken_out_is_gone(machine: Callable[[str], None]) -> None:
    watched = devices()
    await seen(watched)
    machine(TWO.splitlines()[2] + "\n")
    assert [gpu.uuid for gpu in (await seen(watched)).gpus] == ["GPU-a"]


async def test_without_a_driver_there_is_nothing_and_a_later_one_is_found(machine: Callable[[str], None]) -> None:
    machine("init 9\n")
    watched = devices()
    assert (await seen(watched)).gpus == ()
    machine(TWO)
    assert len((await seen(watched)).gpus) == 2


async def test_a_hung_nvml_makes_gpus_suspect_and_nothing_waits_for_it(machine: Callable[[str], None]) -> None:
    """The answer comes in time with what was known; a second look sends no second thread in."""
    watched = devices(timeout_s=0.2)
    await seen(watched)
    machine(TWO + "hang\n")
    for _ in range(2):
        hung = await seen(watched)
        assert [(gpu.uuid, gpu.state) for gpu in hung.gpus] == [("GPU-a", "suspect"), ("GPU-b", "suspect")]
        assert "NVML hangs" in hung.gpus[0].reason
    assert sum(thread.name == "nvml" for thread in threading.enumerate()) == 1
    machine(TWO)

    async def well() -> bool:
        return all(gpu.state == "healthy" for gpu in (await seen(watched)).gpus)

    await eventually(well)
    await watched.close()


async def test_a_worker_hands_on_what_a_call_raises() -> None:
    worker: Worker[int] = Worker(5.0)
    with pytest.raises(ZeroDivisionError):
        await worker.call(lambda: 1 // 0)
    assert await worker.call(lambda: 7) == 7


async def test_a_worker_sends_nobody_after_a_hung_call() -> None:
    worker: Worker[bool] = Worker(0.05)
    gate = threading.Event()
    for _ in range(2):
        with pytest.raises(Hung):
            await worker.call(gate.wait)
    gate.set()
