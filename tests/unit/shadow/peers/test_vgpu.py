"""The text of HAMi and Volcano for what containers have."""

from __future__ import annotations

import pytest

from shadow.peers import vgpu
from shadow.peers.base import Unreadable
from tests.support import shadow

FIRST = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"


def test_the_example_of_hamis_protocol_is_read() -> None:
    """docs/develop/protocol.md: two containers, with 3000 and 5000 MiB of the same GPU."""
    text = f"{FIRST},NVIDIA,3000,0:;{FIRST},NVIDIA,5000,0:;"
    assert [[part.memory_mib for part in parts] for parts in vgpu.containers_of(text, "it")] == [[3000], [5000]]
    (part,) = vgpu.parts_of(shadow.pod(), text, "it")
    assert (part.uuid, part.memory_mib, part.milli, part.sharers) == (FIRST, 8000, 0, 2)


def test_an_empty_segment_is_a_container_without_gpus() -> None:
    assert [len(parts) for parts in vgpu.containers_of("a,NVIDIA,1,10:;;b,NVIDIA,1,10:", "it")] == [1, 0, 1]


def test_of_init_and_app_containers_the_larger_counts() -> None:
    pod = shadow.pod(inits=[{"name": "i"}])
    (part,) = vgpu.parts_of(pod, "a,NVIDIA,900,10:;a,NVIDIA,500,30:;", "it")
    assert (part.memory_mib, part.milli, part.sharers) == (900, 300, 1)


def test_a_sidecar_runs_beside_the_others() -> None:
    pod = shadow.pod(inits=[{"name": "i", "restartPolicy": "Always"}])
    (part,) = vgpu.parts_of(pod, "a,NVIDIA,900,10:;a,NVIDIA,500,30:;", "it")
    assert (part.memory_mib, part.milli, part.sharers) == (1400, 400, 2)


def test_a_mig_instance_counts_on_its_gpu() -> None:
    (part,) = vgpu.parts_of(shadow.pod(), "GPU-a[1-0],NVIDIA,1000,0:", "it")
    assert part.uuid == "GPU-a"


@pytest.mark.parametrize(
    "text",
    [
        "GPU-a;",
        "GPU-a,NVIDIA,3000:;",
        ",NVIDIA,3000,0:;",
        "GPU-a,NVIDIA,much,0:;",
        "GPU-a,NVIDIA,-1,0:;",
        "GPU-a,NVIDIA,1,0.5:;",
    ],
)
def test_malformed_text_is_a_named_problem(text: str) -> None:
    with pytest.raises(Unreadable, match="the annotation"):
        vgpu.containers_of(text, "the annotation")
