"""Whether another device plugin offers GPUs of this node."""

from __future__ import annotations

import pytest

from services.node_agent.handover.other_plugins import gpus_offered_elsewhere
from shared.model.gpu import Gpu
from shared.model.mig import MigInstance

GPUS = (
    Gpu(uuid="GPU-a", index=0, model="X", memory_mib=1000),
    Gpu(
        uuid="GPU-b",
        index=1,
        model="X",
        memory_mib=1000,
        mig_instances=(MigInstance(profile="1g.10gb", start=0, uuid="MIG-1"), MigInstance(profile="1g.10gb", start=1)),
    ),
)


@pytest.mark.parametrize(
    ("offered", "found"),
    [
        ([("nvidia.com/gpu", "GPU-a")], {"GPU-a": "nvidia.com/gpu"}),
        ([("nvidia.com/gpu.shared", "GPU-b::3")], {"GPU-b": "nvidia.com/gpu.shared"}),
        ([("nvidia.com/mig-1g.10gb", "MIG-1")], {"GPU-b": "nvidia.com/mig-1g.10gb"}),
        ([("nvidia.com/gpu", "GPU-of-another-node"), ("rdma/hca", "mlx5_0"), ("x/y", "")], {}),
    ],
)
def test_devices_of_other_plugins_are_matched_by_uuid(offered: list[tuple[str, str]], found: dict[str, str]) -> None:
    assert gpus_offered_elsewhere(offered, GPUS) == found
