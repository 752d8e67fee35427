"""The environment of a container, by the dialect of its pod."""

from __future__ import annotations

import msgspec
import pytest

from services.node_agent.cdi import environment
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.mig import MigInstance
from tests.unit.services.node_agent.cdi.hosts import GPUS, hand_over, share


def of(dialect: str, *shares: object, unit: str = "GiB") -> dict[str, str]:
    order = hand_over(*shares)  # type: ignore[arg-type]
    other = ContainerGrant(strategy="advisory", gpus=(share("GPU-b", memory=1024),))
    grant = Grant(grant_id="g-1", term=1, dialect=dialect, containers={"main": order.share, "other": other})
    return dict(line.split("=", 1) for line in environment.of_dialect(order, grant, GPUS, unit))


def test_every_container_has_the_variables_of_kerf() -> None:
    found = dict(
        line.split("=", 1) for line in environment.kerf(hand_over(share("GPU-a", 1000, 250), share("GPU-b", 1000, 250)))
    )
    assert found == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "KERF_GRANT": "g-1",
        "KERF_CONTAINER": "main",
        "KERF_GPUS": "GPU-a,GPU-b",
        "KERF_GPU_MEMORY_MIB": "2000",
        "KERF_GPU_COMPUTE_MILLI": "500",
        "KERF_STRATEGY": "advisory",
    }


def test_gpushare_pods_read_their_device_in_the_configured_unit() -> None:
    """An H200 of 143,771 MiB has 140 GiB there: gpushare's plugin rounds down."""
    words = {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "140",
    }
    assert of("gpushare", share("GPU-a", memory=3072)) == words
    assert of("gpushare", share("GPU-a", memory=3072), unit="MiB")["ALIYUN_COM_GPU_MEM_DEV"] == "143771"


def test_hami_pods_read_a_limit_for_each_gpu() -> None:
    assert of("hami", share("GPU-a", 3000, 300), share("GPU-b", 3000, 300)) == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "3000m", "CUDA_DEVICE_MEMORY_LIMIT_1": "3000m", "CUDA_DEVICE_SM_LIMIT": "30",
    }  # fmt: skip
    assert "CUDA_DEVICE_SM_LIMIT" not in of("hami", share("GPU-a", 3000, 0)), "no compute was requested"


def test_volcanos_pods_read_what_hamis_do() -> None:
    assert of("volcano", share("GPU-a", 1024, 0)) == {"CUDA_DEVICE_MEMORY_LIMIT_0": "1024m"}


def test_koordinators_pods_read_bytes_and_percent_of_one_gpu() -> None:
    assert of("koordinator", share("GPU-a", 1024, 500)) == {
        "CUDA_DEVICE_MEMORY_LIMIT": str(1 << 30), "CUDA_DEVICE_SM_LIMIT": "50",
    }  # fmt: skip
    assert of("koordinator", share("GPU-a", 1024, 0)) == {"CUDA_DEVICE_MEMORY_LIMIT": str(1 << 30)}


@pytest.mark.parametrize(
    ("shares", "part"),
    [
        ([share("GPU-a", 71_885, 500)], "0.5"),
        ([share("GPU-a", 71_885, 500), share("GPU-b", 71_885, 500)], "0.5"),
        ([share("GPU-a", 143_771, 1000), share("GPU-b", 143_771, 1000)], "2"),
        ([share("GPU-a", 14_400, 0)], "0.1"),
    ],
)
def test_kais_pods_read_the_part_of_each_gpu_or_the_number_of_whole_ones(shares: list[GpuShare], part: str) -> None:
    assert of("kai", *shares) == {"RUNAI_NUM_OF_GPUS": part, "GPU_PORTION": part}


def test_nos_pods_read_the_limit_of_mps() -> None:
    assert of("nos", share("GPU-a", 10_240, 0)) == {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=10G"}


def on_instance(requested_mib: int, requested_milli: int = 0) -> GpuShare:
    """A 3g.71gb of GPU-a, for a part of that size."""
    instance = MigInstance(profile="3g.71gb", start=4, uuid="MIG-1")
    return GpuShare(
        node="n", uuid="GPU-a", memory_mib=71_168, compute_milli=428, mig=instance, requested_mib=requested_mib,
        requested_milli=requested_milli,
    )  # fmt: skip


def test_on_a_mig_instance_gpushare_pods_read_what_they_requested_and_the_size_of_the_instance() -> None:
    """Its examples give a framework CONTAINER / DEV of what CUDA says the device has: of the instance
    (AliyunContainerService/gpushare-device-plugin, pkg/gpu/nvidia/allocate.go; docs/userguide of the extender)."""
    assert of("gpushare", on_instance(3072)) == {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "69",
    }
    assert of("gpushare", on_instance(3072), unit="MiB")["ALIYUN_COM_GPU_MEM_DEV"] == "71168"


@pytest.mark.parametrize(
    ("strategy", "device"),
    [("advisory", "140"), ("interposer", "3"), ("time_slice", "3"), ("policed", "3"), ("driver", "140")],
)
def test_the_device_of_gpushare_pods_is_as_large_as_cuda_shows_it(strategy: str, device: str) -> None:
    """Where the interposer limits memory it shows the slice as the device; 3 / 140 of that would be 66 MiB."""
    order = hand_over(share("GPU-a", memory=3072))
    order = msgspec.structs.replace(order, share=msgspec.structs.replace(order.share, strategy=strategy))
    grant = Grant(grant_id="g-1", term=1, dialect="gpushare", containers={"main": order.share})
    found = dict(line.split("=", 1) for line in environment.of_dialect(order, grant, GPUS, "GiB"))
    assert (found["ALIYUN_COM_GPU_MEM_CONTAINER"], found["ALIYUN_COM_GPU_MEM_DEV"]) == ("3", device)


def test_on_a_mig_instance_other_pods_read_what_they_requested() -> None:
    """HAMi and Volcano set no limit there (`operatingMode != "mig"` in Project-HAMi/HAMi, server.go)."""
    for dialect in ("hami", "volcano"):
        assert of(dialect, on_instance(3072, 100)) == {}
    assert of("koordinator", on_instance(3072, 100)) == {
        "CUDA_DEVICE_MEMORY_LIMIT": str(3 << 30), "CUDA_DEVICE_SM_LIMIT": "10",
    }  # fmt: skip
    assert of("kai", on_instance(35_942, 250))["GPU_PORTION"] == "0.25"
    assert of("kai", on_instance(14_400))["GPU_PORTION"] == "0.1"
    assert of("nos", on_instance(3072)) == {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3G"}


def test_an_instance_requested_by_name_was_requested_as_large_as_it_is() -> None:
    words = of("gpushare", on_instance(0))
    assert (words["ALIYUN_COM_GPU_MEM_CONTAINER"], words["ALIYUN_COM_GPU_MEM_DEV"]) == ("69", "69")


def test_kerfs_own_variables_say_what_the_container_has() -> None:
    found = environment.kerf(hand_over(on_instance(3072)))
    assert "KERF_GPU_MEMORY_MIB=71168" in found


def test_other_dialects_have_no_variables() -> None:
    assert of("") == {}
    assert of("nvidia") == {}
