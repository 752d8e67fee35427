"""A program that launches without end on the fake libcuda. It prints a line when it has begun."""

from __future__ import annotations

import ctypes
import sys


def main(library: str) -> None:
    cuda = ctypes.CDLL(library)
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxSetCurrent(context) == 0
    assert cuda.cuModuleLoadData(ctypes.byref(module), b"") == 0
    assert cuda.cuModuleGetFunction(ctypes.byref(function), module, b"ns_1000000") == 0
    print("begun", flush=True)  # noqa: T201 - to the test
    while True:
        assert cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None) == 0
        assert cuda.cuCtxSynchronize() == 0


if __name__ == "__main__":
    main(sys.argv[1])
