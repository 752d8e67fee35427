"""The control block's layout is the same in C and in Python."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from services.node_agent.strategies import layout

INTERPOSER = Path(__file__).resolve().parents[5] / "native" / "interposer"
PAIRS: dict[str, type[ctypes.Structure]] = {
    "kerf_gpu_orders": layout.GpuOrders,
    "kerf_orders": layout.Orders,
    "kerf_gpu_counters": layout.GpuCounters,
    "kerf_process": layout.Process,
    "kerf_counters": layout.Counters,
    "kerf_signal": layout.Signal,
}


def test_every_field_is_where_c_has_it(tmp_path: Path, compiler: str) -> None:
    program = tmp_path / "layout"
    subprocess.run([compiler, "-o", str(program), str(INTERPOSER / "control_block_layout.c")], check=True)
    printed = [
        line.split()
        for line in subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines()
    ]
    in_c = {(struct, field): (int(offset), int(size)) for struct, field, offset, size in printed}
    in_python: dict[tuple[str, str], tuple[int, int]] = {}
    for name, struct in PAIRS.items():
        in_python[name, "-"] = (0, ctypes.sizeof(struct))
        for field, *_ in struct._fields_:
            if not field.startswith("reserved"):
                at = getattr(struct, field)
                in_python[name, field] = (at.offset, at.size)
    assert in_python == in_c


def test_a_uuid_is_the_drivers_sixteen_bytes() -> None:
    assert layout.uuid_bytes("GPU-5a1c9a60-3f0e-4c53-8a53-3d1d0a8d7e11").hex() == "5a1c9a603f0e4c538a533d1d0a8d7e11"
    for bad in ("GPU-a", "", "GPU-zz1c9a60-3f0e-4c53-8a53-3d1d0a8d7e11"):
        with pytest.raises(ValueError, match="not a GPU UUID"):
            layout.uuid_bytes(bad)
