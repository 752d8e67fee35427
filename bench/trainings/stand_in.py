"""The stand-in of `torch_training.py` on the fake driver, which runs no code of PyTorch: the same lines of a log.

    python stand_in.py LIBCUDA LOG MIB SEED

Each step is a kernel of 20 ms that computes on the memory; the "loss" is the word that it leaves there.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys

STEP_NS = 20_000_000


def main(library: str, log: str, mib: str, seed: str) -> None:
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    driver = ctypes.CDLL(library)
    now = driver.kerf_virtual_now
    now.restype = ctypes.c_uint64
    device, context, module, mix = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    memory, word, length = ctypes.c_uint64(), ctypes.c_uint64(int(seed)), ctypes.c_uint64(STEP_NS)

    def must(name: str, *arguments: object) -> None:
        result = getattr(driver, name)(*arguments)
        if result:
            raise SystemExit(f"{name}: {result}")

    must("cuInit", 0)
    must("cuDeviceGet", ctypes.byref(device), 0)
    must("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    must("cuCtxSetCurrent", context)
    must("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(int(mib) << 20))
    must("cuMemcpyHtoD_v2", memory, ctypes.byref(word), ctypes.c_size_t(8))
    must("cuModuleLoadData", ctypes.byref(module), b"")
    must("cuModuleGetFunction", ctypes.byref(mix), module, b"mix")
    step = 0
    with open(log, "a", buffering=1) as file:
        while not ending:
            number = ctypes.c_uint64(step)
            fields = [ctypes.cast(ctypes.byref(value), ctypes.c_void_p) for value in (length, memory, number)]
            must("cuLaunchKernel", mix, 1, 1, 1, 1, 1, 1, 0, None, (ctypes.c_void_p * 3)(*fields), None)
            must("cuMemcpyDtoH_v2", ctypes.byref(word), memory, ctypes.c_size_t(8))  # waits for the kernel
            file.write(f"{step} {now()} {word.value:x}\n")
            step += 1
    print(json.dumps({"steps": step, "memory_mib": int(mib)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:5])
