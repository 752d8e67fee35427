"""Slices that follow their use: which samples lead to an order, and for which pods."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.preemptor import messages as m
from services.preemptor.autoscaling import AGAIN_S, Autoscaler
from shared.book.book import Book
from shared.contracts.facts import Put
from shared.contracts.samples import GpuUse, SliceUse, UsageSample
from shared.model.grant import ContainerGrant, GpuShare, Grant
from tests.support import build

GRANTED_MIB = 4096


def book(granted_mib: int = GRANTED_MIB, memory: str = "4Gi", gpu_mib: int = 0, /, **annotations: str) -> Book:
    """`gpu_mib`: of the GPU; 0: its node's inventory has not come."""
    made = Book()
    share = GpuShare(node="n", uuid="n-gpu-0", memory_mib=granted_mib, compute_milli=400)
    grant = Grant(grant_id="g", term=1, containers={"c": ContainerGrant(strategy="interposer", gpus=(share,))})
    pod = build.gpu_pod("p", memory=memory, compute=40)
    notes = {f"kerf.dev/{key}": text for key, text in annotations.items()}
    for seen in (build.node("n"), build.bound(pod, "n", grant, **notes)):
        made.apply(Put(object=seen))
    if gpu_mib:
        made.put_inventory(build.inventory("n", gpus=1, memory_mib=gpu_mib))
    return made


def sample(memory_mib: int, refused: int = 0, **more: Any) -> UsageSample:
    use = SliceUse(
        uid="uid-team-p",
        namespace="team",
        name="p",
        memory_mib=memory_mib,
        granted_memory_mib=GRANTED_MIB,
        granted_compute_milli=400,
        refused=refused,
        **more,
    )
    return UsageSample(node="n", at_ms=0, gpus=(GpuUse(uuid="n-gpu-0", used_mib=0, slices=(use,)),))


def orders(said: list[m.Command]) -> list[str]:
    return [order.order.resize for order in said if isinstance(order, m.Resize)]


def test_a_slice_that_is_nearly_full_is_to_grow_within_its_bounds() -> None:
    known = book(autoscale="memory=2Gi..5Gi")
    scaler = Autoscaler(known)
    said = scaler.sampled(sample(4000), 0.0)
    assert orders(said) == ["memory=5120Mi"]
    (order,) = [one.order for one in said if isinstance(one, m.Resize)]
    assert (order.uid, order.resource_version) == ("uid-team-p", known.pods["uid-team-p"].pod.metadata.resource_version)
    assert orders(scaler.sampled(sample(4000), AGAIN_S - 1)) == [], "it was asked for already"
    assert orders(scaler.sampled(sample(4000), AGAIN_S)) == ["memory=5120Mi"], "and is not annotated yet"


def test_what_is_annotated_already_is_not_asked_for_again() -> None:
    scaler = Autoscaler(book(autoscale="memory=2Gi..5Gi", resize="memory=5120Mi"))
    assert orders(scaler.sampled(sample(4000), 0.0)) == []


def test_pods_without_the_annotation_or_with_a_bad_one_stay_as_they_are() -> None:
    for notes in ({}, {"autoscale": "more"}):
        assert orders(Autoscaler(book(**notes)).sampled(sample(4000, refused=9), 0.0)) == []


def test_gpu_time_and_memory_are_asked_for_together() -> None:
    scaler = Autoscaler(book(autoscale="memory=4Gi..8Gi,compute=10..80"))
    said = [orders(scaler.sampled(sample(1000, gpu_milli=399), float(second))) for second in range(0, 70, 10)]
    assert said == [[]] * 6 + [["memory=4096Mi,compute=50"]]


def test_amounts_that_are_not_scaled_stay_as_they_are_annotated() -> None:
    for text in ("memory=4Gi,compute=60", "c:compute=60"):
        scaler = Autoscaler(book(autoscale="memory=2Gi..5Gi", resize=text))
        assert orders(scaler.sampled(sample(4000), 0.0)) == ["memory=5120Mi,compute=60"]


def test_slices_that_cannot_be_resized_are_left_alone() -> None:
    known = book(autoscale="memory=2Gi..5Gi")
    held = known.grants[known.pods["uid-team-p"].grant_id]
    whole = msgspec.structs.replace(held.grant.containers["c"], strategy="exclusive")
    held.grant = msgspec.structs.replace(held.grant, containers={"c": whole})
    assert orders(Autoscaler(known).sampled(sample(4000), 0.0)) == []


def test_a_growth_that_waits_and_is_not_needed_any_more_is_taken_back() -> None:
    scaler = Autoscaler(book(autoscale="memory=2Gi..5Gi", resize="memory=5120Mi"))
    said = [(at, orders(scaler.sampled(sample(4000 if at < 100 else 3000), float(at)))) for at in range(0, 200, 10)]
    assert [(at, text) for at, text in said if text] == [(160, ["memory=4096Mi"])]


def test_an_amount_beyond_its_bounds_comes_back_to_them_but_not_below_the_use() -> None:
    for used_mib, text in ((1000, ["memory=2048Mi"]), (2600, ["memory=2816Mi"]), (4090, [])):
        assert orders(Autoscaler(book(autoscale="memory=1Gi..2Gi")).sampled(sample(used_mib), 0.0)) == text


@pytest.mark.parametrize(("granted_mib", "used_mib", "asked"), [
    (13_312, 12_800, ["memory=16384Mi"]),
    (16_384, 16_000, ["memory=20480Mi"]),
])  # fmt: skip
def test_what_was_taken_away_comes_back_before_more_than_the_request_is_asked_for(
    granted_mib: int, used_mib: int, asked: list[str]
) -> None:
    """Placement may refuse what exceeds the request, and a refused order gives nothing back."""
    scaler = Autoscaler(book(granted_mib, "16Gi", autoscale="memory=4Gi..20Gi"))
    assert orders(scaler.sampled(sample(used_mib), 0.0)) == asked


def test_memory_within_the_request_is_not_asked_for_together_with_compute_beyond_it() -> None:
    scaler = Autoscaler(book(13_312, "16Gi", autoscale="memory=4Gi..20Gi,compute=10..80"))
    for at in range(0, 60, 10):
        scaler.sampled(sample(10_000, gpu_milli=399), float(at))
    assert orders(scaler.sampled(sample(12_800, gpu_milli=399), 60.0)) == ["memory=16384Mi,compute=40"]


def test_no_more_memory_is_asked_for_than_the_gpu_has() -> None:
    scaler = Autoscaler(book(16_384, "16Gi", 18_000, autoscale="memory=4Gi..20Gi"))
    assert orders(scaler.sampled(sample(16_000), 0.0)) == ["memory=18000Mi"]
