"""The annotation with the GPU time that a pod has had."""

from __future__ import annotations

import pytest

from shared.model import names
from shared.turns.gpu_time import GpuTime, encode_gpu_time, read_gpu_time


def test_it_is_read_as_it_was_written() -> None:
    written = GpuTime(since=1_800_000_000.25, attained_gpu_ms=123_456, turns=3, lifted_at_gpu_ms=1_000)
    assert read_gpu_time({names.ANNOTATION_GPU_TIME: encode_gpu_time(written)}) == written


def test_it_grows_while_the_pod_runs_and_not_while_it_waits() -> None:
    known = GpuTime(since=100.0, attained_gpu_ms=5_000)
    assert known.attained(500, 102.0, runs=True) == 6_000
    assert known.attained(500, 102.0, runs=False) == 5_000
    assert known.attained(500, 98.0, runs=True) == 5_000  # another node's clock


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"since":1,"attained_gpu_ms":-1}', '{"since":1,"turns":1e30}'])
def test_what_cannot_be_read_counts_as_none(text: str) -> None:
    assert read_gpu_time({names.ANNOTATION_GPU_TIME: text}) is None
    assert read_gpu_time({}) is None
