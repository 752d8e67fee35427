"""A program without Kerf's library that takes GPU memory in steps of 8 MiB, one for each line of its input.

A line "managed" asks for managed memory. After each step it prints how much it has, in MiB. The driver is the fake
libcuda, and may refuse.
"""

from __future__ import annotations

import ctypes
import sys

STEP_MIB, OUT_OF_MEMORY = 8, 2


def main(library: str) -> None:
    cuda = ctypes.CDLL(library)
    context, pointer = ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    mib, asked = 0, "plain\n"
    while asked:
        size = ctypes.c_size_t(STEP_MIB << 20)
        if asked == "managed\n":
            refused = cuda.cuMemAllocManaged(ctypes.byref(pointer), size, 1)
        else:
            refused = cuda.cuMemAlloc_v2(ctypes.byref(pointer), size)
        assert refused in (0, OUT_OF_MEMORY)
        mib += 0 if refused else STEP_MIB
        print(mib, flush=True)  # noqa: T201 - to the test
        asked = sys.stdin.readline()


if __name__ == "__main__":
    main(sys.argv[1])
