"""Whose samples of a slice count."""

from __future__ import annotations

import pytest

from shared.book.book import Book
from shared.book.granted_use import granted_use
from shared.contracts.facts import Put
from shared.contracts.samples import GpuUse, SliceUse, UsageSample
from shared.model.grant import ContainerGrant, GpuShare, Grant
from tests.support import build


@pytest.mark.parametrize(
    ("node", "gpu", "uid", "counts"),
    [
        ("n", "n-gpu-0", "uid-team-p", True),
        ("n", "n-gpu-1", "uid-team-p", False),
        ("evil", "evil-gpu-0", "uid-team-p", False),
        ("evil", "n-gpu-0", "uid-team-p", False),
        ("n", "n-gpu-0", "uid-team-waits", False),
        ("n", "n-gpu-0", "unknown", False),
    ],
)
def test_a_slice_counts_on_the_gpus_of_its_grant_alone(node: str, gpu: str, uid: str, counts: bool) -> None:
    """The agent of any node could have any pod resized, and decide what is known of it."""
    book = Book()
    share = GpuShare(node="n", uuid="n-gpu-0", memory_mib=4096, compute_milli=400)
    grant = Grant(grant_id="g", term=1, containers={"c": ContainerGrant(strategy="interposer", gpus=(share,))})
    pod = build.bound(build.gpu_pod("p", memory="4Gi", compute=40), "n", grant)
    for seen in (build.node("n"), build.node("evil"), pod, build.gpu_pod("waits")):
        book.apply(Put(object=seen))
    use = SliceUse(
        uid=uid, namespace="team", name="p", memory_mib=10, granted_memory_mib=4096, granted_compute_milli=400
    )
    said = UsageSample(node=node, at_ms=0, gpus=(GpuUse(uuid=gpu, used_mib=10, slices=(use,)),))
    (found,) = granted_use(said, book).gpus
    assert found.slices == ((use,) if counts else ())
