"""GPU feature discovery's labels, on nodes where it does not run itself."""

from __future__ import annotations

from services.placement.protocol import labels
from shared.model.gpu import Gpu, Inventory

H100 = Gpu(uuid="A", index=0, model="NVIDIA-H100-80GB-HBM3", memory_mib=81559, compute_capability="9.0")
NODE = Inventory(
    node="n",
    boot_id="b",
    gpus=(H100, H100.__class__(uuid="B", index=1, model="NVIDIA-H100-80GB-HBM3", memory_mib=81559)),
    driver_version="580.95.05",
    cuda_version="13.0",
    clique="c1.7",
)
ALL = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "2",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.family": "hopper",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
    "nvidia.com/cuda.driver.major": "580",
    "nvidia.com/cuda.driver.minor": "95",
    "nvidia.com/cuda.driver.rev": "05",
    "nvidia.com/cuda.runtime.major": "13",
    "nvidia.com/cuda.runtime.minor": "0",
    "nvidia.com/mig.capable": "true",
    "nvidia.com/gpu.clique": "c1.7",
}


def test_a_bare_node_gets_all_of_them() -> None:
    assert labels.missing(NODE, {}) == ALL


def test_labels_that_are_already_set_are_not_written_again() -> None:
    assert labels.missing(NODE, ALL | {"zone": "z"}) == {}
    assert labels.missing(NODE, ALL | {"nvidia.com/gpu.count": "8"}) == {"nvidia.com/gpu.count": "2"}


def test_a_label_of_feature_discovery_is_not_overwritten() -> None:
    """Only labels that it did not write are added."""
    theirs = {
        "nvidia.com/gfd.timestamp": "1795254276",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED",
        "nvidia.com/gpu.count": "2",
    }
    written = labels.missing(NODE, theirs)
    assert written == {key: value for key, value in ALL.items() if key not in theirs}


def test_what_is_not_known_is_not_written() -> None:
    plain = Inventory(node="n", boot_id="b", gpus=(Gpu(uuid="A", index=0, model="Tesla V100/SXM2", memory_mib=16384),))
    assert labels.missing(plain, {}) == {
        "nvidia.com/gpu.product": "Tesla-V100-SXM2",
        "nvidia.com/gpu.count": "1",
        "nvidia.com/gpu.memory": "16384",
        "nvidia.com/mig.capable": "false",
    }


def test_a_node_without_gpus_has_no_labels() -> None:
    assert labels.missing(Inventory(node="n", boot_id="b"), {}) == {}
