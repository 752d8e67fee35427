"""What a container may use beyond its request, in annotations. Invalid ones are in admission's table of bad pods."""

from __future__ import annotations

import pytest

from shared.model.request import GpuAsk, RequestError
from shared.model.request_limits import with_limits

SLICE = GpuAsk(count=1, memory_mib=8192, compute_milli=300)


@pytest.mark.parametrize(
    ("ask", "annotations", "expected"),
    [
        (SLICE, {}, SLICE),
        (SLICE, {"memory": "24Gi"}, GpuAsk(count=1, memory_mib=8192, compute_milli=300, memory_limit_mib=24576)),
        (SLICE, {"memory": "8Gi", "compute": "30"}, SLICE),
        (SLICE, {"memory": "60%"}, GpuAsk(count=1, memory_mib=8192, compute_milli=300, memory_limit_milli=600)),
        (SLICE, {"compute": "60"}, GpuAsk(count=1, memory_mib=8192, compute_milli=300, compute_limit_milli=600)),
        (SLICE, {"compute": "33.3%"}, GpuAsk(count=1, memory_mib=8192, compute_milli=300, compute_limit_milli=333)),
        (
            GpuAsk(count=2, memory_mib=4096, compute_milli=150),
            {"memory": "24Gi", "compute": "60"},
            GpuAsk(count=2, memory_mib=4096, compute_milli=150, memory_limit_mib=12288, compute_limit_milli=300),
        ),
        (
            GpuAsk(count=1, memory_milli=250, compute_milli=250),
            {"memory": "80%"},
            GpuAsk(count=1, memory_milli=250, compute_milli=250, memory_limit_milli=800),
        ),
    ],
)
def test_a_limit_is_the_containers_total(ask: GpuAsk, annotations: dict[str, str], expected: GpuAsk) -> None:
    notes = {f"kerf.dev/gpu-{key}-limit": value for key, value in annotations.items()}
    assert with_limits({"main": ask}, notes, "soft") == {"main": expected}


def test_several_containers_are_named() -> None:
    notes = {"kerf.dev/gpu-memory-limit": "main=24Gi, side=50%"}
    found = with_limits({"main": SLICE, "side": SLICE, "third": SLICE}, notes, "firm")
    assert {name: (ask.memory_limit_mib, ask.memory_limit_milli) for name, ask in found.items()} == {
        "main": (24576, 0),
        "side": (0, 500),
        "third": (0, 0),
    }


@pytest.mark.parametrize("text", ["24Gi", "main=24Gi,main=25Gi", "main=24Gi,other=1Gi"])
def test_an_amount_that_is_not_of_one_container_is_refused(text: str) -> None:
    with pytest.raises(RequestError) as refused:
        with_limits({"main": SLICE, "side": SLICE}, {"kerf.dev/gpu-memory-limit": text}, "soft")
    assert refused.value.code == "bad-annotation"
