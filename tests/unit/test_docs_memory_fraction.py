"""The code for frameworks' memory fractions in docs/users.md, run on the variables that the agent sets."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from services.node_agent.cdi import environment
from shared.model.grant import Grant
from tests.unit.services.node_agent.cdi.hosts import GPUS, hand_over, share

USERS = Path(__file__).resolve().parents[2] / "docs" / "users.md"
TOTAL = GPUS["GPU-a"].memory_mib << 20
"""An H200."""


@pytest.fixture
def code() -> dict[str, Callable[..., float]]:
    (block,) = [text for text in re.findall(r"```python\n(.*?)```", USERS.read_text(), re.DOTALL) if "fraction" in text]
    found: dict[str, Callable[..., float]] = {}
    exec(compile(block, str(USERS), "exec"), found)
    return found


def inside(monkeypatch: pytest.MonkeyPatch, *memory_mib: int, strategy: str = "advisory") -> None:
    """Sets the environment of a gpushare container with these slices."""
    order = hand_over(*(share(uuid, memory=mib) for uuid, mib in zip(GPUS, memory_mib, strict=False)))
    order = msgspec.structs.replace(order, share=msgspec.structs.replace(order.share, strategy=strategy))
    grant = Grant(grant_id="g-1", term=1, dialect="gpushare", containers={"main": order.share})
    for line in environment.kerf(order) + environment.of_dialect(order, grant, GPUS, "GiB"):
        monkeypatch.setenv(*line.split("=", 1))


def test_a_soft_slice_is_its_part_of_the_device(
    code: dict[str, Callable[..., float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gpushare rounds the device's 140.4 GiB down, so its fraction is a little larger than Kerf's."""
    inside(monkeypatch, 3072)
    assert code["gpushare_fraction"]() == 3 / 140
    assert code["kerf_fraction"](TOTAL) == 3072 / 143_771


def test_in_a_firm_slice_the_device_is_the_slice(
    code: dict[str, Callable[..., float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What CUDA reports there is the slice's size."""
    inside(monkeypatch, 3072, strategy="interposer")
    assert (code["gpushare_fraction"](), code["kerf_fraction"](3072 << 20)) == (1.0, 1.0)


def test_a_container_with_two_devices_has_its_part_of_each(
    code: dict[str, Callable[..., float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    inside(monkeypatch, 14 << 10, 14 << 10)
    assert code["gpushare_fraction"]() == 14 / 140
    assert code["kerf_fraction"](TOTAL) == (14 << 10) / 143_771


def test_pytorch_takes_the_fraction(code: dict[str, Callable[..., float]], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a device it limits the allocator. The CPU wheel has the function, and refuses before it looks at the
    fraction: it has no CUDA (torch/cuda/memory.py calls _lazy_init first)."""
    torch = pytest.importorskip("torch", reason="torch is not installed; it is no dependency of Kerf")
    inside(monkeypatch, 3072)
    take = torch.cuda.set_per_process_memory_fraction
    there = torch.cuda.is_available()
    fraction = code["kerf_fraction"](torch.cuda.get_device_properties(0).total_memory if there else TOTAL)
    inspect.signature(take).bind(fraction)
    assert 0 < fraction <= 1
    if there:
        take(fraction)
    else:
        with pytest.raises((AssertionError, RuntimeError), match=r"CUDA|NVIDIA"):
            take(fraction)


def test_tensorflow_takes_the_fraction(code: dict[str, Callable[..., float]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms of the page are accepted by the CPU wheel as well; it has no device to apply them to."""
    tf = pytest.importorskip("tensorflow", reason="tensorflow is not installed; it is no dependency of Kerf")
    inside(monkeypatch, 3072)
    options = tf.compat.v1.GPUOptions(per_process_gpu_memory_fraction=code["gpushare_fraction"]())
    assert options.per_process_gpu_memory_fraction == 3 / 140
    assert tf.compat.v1.ConfigProto(gpu_options=options).gpu_options == options
    assert tf.config.LogicalDeviceConfiguration(memory_limit=3072).memory_limit == 3072
