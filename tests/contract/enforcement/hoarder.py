"""A program without Kerf's library that takes GPU memory: MIB in steps of 8 MiB, one for each line of its input.

It prints how much it has, in MiB, after each step. The driver is the fake libcuda.
"""

from __future__ import annotations

import ctypes
import itertools
import sys

STEP_MIB = 8


def main(library: str) -> None:
    cuda = ctypes.CDLL(library)
    context, pointer = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    for steps in itertools.count(1):
        assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(STEP_MIB << 20)) == 0
        print(STEP_MIB * steps, flush=True)  # noqa: T201 - to the test
        if not sys.stdin.readline():
            return


if __name__ == "__main__":
    main(sys.argv[1])
