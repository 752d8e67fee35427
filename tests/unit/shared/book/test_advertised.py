"""What nodes advertise, and what pods request of it."""

from __future__ import annotations

import msgspec
import pytest

from shared.book.advertised import advertised, requested
from shared.model.gpu import Gpu
from shared.model.mig import MigInstance
from tests.support import build

GIB = 1 << 30
MIB = 1 << 20


def test_what_is_additive_adds_up_to_the_gpus_and_gpu_itself_never_binds() -> None:
    """16 halves on 8 GPUs ask for kerf.dev/gpu: 16."""
    found = advertised(build.inventory(gpus=8, memory_mib=81_920), 80 * GIB)
    half = requested(build.pod(limits={"kerf.dev/gpu": "1", "kerf.dev/gpu-compute": "50"}))
    assert {name: 16 * amount <= found[name] for name, amount in half.items()} == dict.fromkeys(half, True)
    assert found["kerf.dev/gpu-compute"] == 16 * 50
    assert found["kerf.dev/gpu-memory"] == 8 * 81_920 * MIB
    assert found["kerf.dev/quota-gpu-milli"] == 8_000


@pytest.mark.parametrize(
    ("memory_mib", "milli"), [(40_960, 1_000), (81_920, 1_000), (143_360, 1_750)], ids=["smaller", "equal", "larger"]
)
def test_a_gpu_counts_as_one_and_as_more_by_its_memory(memory_mib: int, milli: int) -> None:
    found = advertised(build.inventory(gpus=1, memory_mib=memory_mib), 80 * GIB)
    assert found["kerf.dev/quota-gpu-milli"] == milli


def test_gpus_that_are_not_healthy_count_nothing() -> None:
    assert advertised(build.inventory(gpus=2, states={0: "draining"}), 80 * GIB)["kerf.dev/gpu-compute"] == 100
    assert advertised(build.inventory(gpus=1, states={0: "draining"}), 80 * GIB) == {}


def test_of_a_fixed_mig_layout_its_instances_count_and_of_one_on_demand_as_many_as_fit() -> None:
    gpu = Gpu(uuid="g", index=0, model="NVIDIA-A100-SXM4-80GB", memory_mib=81_920, mig_enabled=True)
    fixed = msgspec.structs.replace(
        gpu, mig_instances=(MigInstance(profile="3g.40gb", start=0), MigInstance(profile="3g.40gb", start=4))
    )
    whole = build.inventory(gpus=0)
    found = advertised(msgspec.structs.replace(whole, gpus=(fixed,)), 80 * GIB)
    assert {name: amount for name, amount in found.items() if "mig-" in name} == {"kerf.dev/mig-3g.40gb": 2}
    demand = advertised(
        msgspec.structs.replace(whole, gpus=(msgspec.structs.replace(gpu, mig_on_demand=True),)), 80 * GIB
    )
    assert (demand["kerf.dev/mig-1g.10gb"], demand["kerf.dev/mig-7g.80gb"]) == (7, 1)


def test_a_pod_requests_what_its_containers_do_and_nothing_of_the_slot() -> None:
    pod = build.gpu_pod(memory="16Gi", requests={"cpu": "4"})
    assert requested(pod) == {"kerf.dev/gpu-memory": 16 * GIB}
