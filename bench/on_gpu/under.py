"""Runs a command in a slice of the first GPU, with an agent's heartbeats, then prints what its control block counts.

python -m bench.on_gpu.under MIB MILLI COMMAND...     MILLI 0: no limit of compute
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from bench.enforce.__main__ import real
from bench.enforce.place import Place, build


def main(mib: str, milli: str, *command: str) -> None:
    with tempfile.TemporaryDirectory(prefix="kerf-under-") as name:
        folder = Path(os.environ.get("KERF_BUILD") or name)
        if not (folder / "test" / "libkerf.so").exists():
            build(folder, fake=False)
        device = real("libcuda.so.1")
        if device is None:
            raise SystemExit("no GPU: libcuda.so.1 does not answer")
        place = Place(Path(name), device, costs=(int(os.environ.get("KERF_CONTEXT_MIB", "0")) << 20, 0))
        with place.registry() as registry:
            one = place.slice("u", int(milli), memory_mib=int(mib))
            registry.put(one)
            more = {"LD_PRELOAD": str(folder / "test" / "libkerf.so"), "KERF_DIRECTORY": str(registry.folder(one.key))}
            done = subprocess.run(command, env=os.environ | more, check=False)
            reading = registry.read(one.key)
    print(json.dumps({"status": done.returncode, "control_block": msgspec.to_builtins(reading)}), flush=True)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main(*sys.argv[1:])
