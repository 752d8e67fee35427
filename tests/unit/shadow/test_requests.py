"""What Kerf reads in pods of other schedulers."""

from __future__ import annotations

from shadow.requests import NotTaken, Wanted, read
from shared.model.request import GpuAsk
from tests.support import shadow


def asks(*args: object, replicas: int = 1, **rest: object) -> tuple[GpuAsk, ...]:
    found = read(shadow.pod(*args, **rest), replicas)  # type: ignore[arg-type]
    assert isinstance(found, Wanted), found
    assert found.pod.spec.scheduler_name == "kerf"
    assert found.pod.spec.node_name == ""
    return found.asks


def test_each_peers_pods_are_read_as_admission_reads_them() -> None:
    assert asks("p", {"nvidia.com/gpu": "2"}) == (GpuAsk(count=2, compute_milli=1000, whole=True),)
    hami = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"}
    assert asks("p", hami, on="n1", scheduler="hami-scheduler") == (
        GpuAsk(count=1, memory_mib=3000, compute_milli=300),
    )
    (half,) = asks("p", scheduler="kai-scheduler", annotations={"gpu-fraction": "0.5"})
    assert (half.count, half.memory_milli, half.compute_milli) == (1, 500, 500)
    vgpu = {"volcano.sh/vgpu-number": "1", "volcano.sh/vgpu-memory": "1024"}
    assert asks("p", vgpu, scheduler="volcano") == (GpuAsk(count=1, memory_mib=1024),)
    assert asks("p", {"nvidia.com/gpu": "1"}, scheduler="volcano") == (GpuAsk(count=1, compute_milli=1000, whole=True),)


def test_a_replica_of_a_time_sliced_gpu_is_an_equal_part_of_it() -> None:
    for resource in ("nvidia.com/gpu", "nvidia.com/gpu.shared"):
        (quarter,) = asks("p", {resource: "1"}, replicas=4)
        assert (quarter.count, quarter.memory_milli, quarter.compute_milli) == (1, 250, 250)
        (one,) = asks("p", {resource: "4"}, replicas=4)
        assert (one.count, one.whole) == (1, True)


def test_a_pod_without_gpus_and_one_that_would_be_refused() -> None:
    assert read(shadow.pod("p", {"cpu": "1"})) is None
    refused = read(shadow.pod("p", {"nvidia.com/gpumem": "3000"}, annotations={"nvidia.com/vgpu-mode": "mps"}))
    assert isinstance(refused, NotTaken)
    assert "[foreign-field]" in refused.why


def test_a_pod_of_a_gang_is_read_by_itself() -> None:
    found = read(shadow.pod("p", {"nvidia.com/gpu": "1"}, labels={"scheduling.x-k8s.io/pod-group": "g"}))
    assert isinstance(found, Wanted)
    assert found.pod.metadata.annotations["kerf.dev/gang"] == "none"
