"""The guard: python -m tools.sandbox DIR. Not for people; tools.sandbox.node starts it."""

from __future__ import annotations

import ctypes
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tools.sandbox import cgroups
from tools.sandbox.machine import UNSHARE

_PR_SET_PDEATHSIG = 1


def main() -> int:
    state = Path(sys.argv[1])
    groups = cgroups.make(state.name)

    def prepare() -> None:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        cgroups.enter(groups)

    try:
        # It inherits both pipes to the parent, and ends when the incoming one does; then all in its namespace
        # is killed.
        inside = subprocess.Popen(
            [*UNSHARE, sys.executable, "-m", "tools.sandbox.inside", str(state)],
            preexec_fn=prepare,  # noqa: PLW1509
        )
        return inside.wait()
    finally:
        cgroups.remove(groups)
        shutil.rmtree(state, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
