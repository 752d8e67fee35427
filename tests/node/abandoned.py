"""Starts a sandbox and never stops it: `python -m tests.node.abandoned DIR`. Prints its folder, and waits."""

import sys
import threading
from pathlib import Path

from tools.binaries import NODE, find_binaries
from tools.control_plane import ControlPlane
from tools.sandbox import Sandbox

if __name__ == "__main__":
    binaries = find_binaries(NODE)
    sandbox = Sandbox(ControlPlane(Path(sys.argv[1]), binaries=binaries, controllers=True).start(), binaries)
    sandbox.start()
    sys.stdout.write(f"{sandbox.state}\n")
    sys.stdout.flush()
    threading.Event().wait()
