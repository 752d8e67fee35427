"""A program that gives its GPU memory back by itself: by vLLM's endpoints (POST /sleep?level=1, POST /wake_up, GET
/is_sleeping; vllm/entrypoints/serve/sleep/api_router.py), or by SIGUSR1 and a file.

    python sleeper.py LIBCUDA http PORT MIB [stubborn]
    python sleeper.py LIBCUDA signal FILE MIB [stubborn]

`stubborn`: it says that it sleeps, and keeps its memory.
"""

from __future__ import annotations

import ctypes
import signal
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

cuda = ctypes.CDLL(sys.argv[1])
how, where, mib, stubborn = sys.argv[2], sys.argv[3], int(sys.argv[4]), "stubborn" in sys.argv
pointer, context = ctypes.c_uint64(), ctypes.c_void_p()
sleeps = False


def take() -> None:
    assert cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib << 20)) == 0


def change(*, asleep: bool) -> None:
    global sleeps  # noqa: PLW0603 - one program, one state
    if asleep != sleeps and not stubborn:
        if asleep:
            assert cuda.cuMemFree_v2(pointer) == 0
        else:
            take()
    sleeps = asleep


class Server(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        known = {"/sleep?level=1": True, "/wake_up": False}
        if self.path in known:
            change(asleep=known[self.path])
        self.send_response(200 if self.path in known else 404)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"is_sleeping":true}' if sleeps else b'{"is_sleeping":false}')

    def log_message(self, *words: object) -> None:
        """Nothing."""


def turn(number: int, frame: object) -> None:
    change(asleep=not sleeps)
    if sleeps:
        Path(where).touch()
    else:
        Path(where).unlink()


assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
take()
if how == "http":
    server = HTTPServer(("127.0.0.1", int(where)), Server)
    print(server.server_port, flush=True)  # noqa: T201 - to the test
    server.serve_forever()
signal.signal(signal.SIGUSR1, turn)
print("begun", flush=True)  # noqa: T201 - to the test
while True:
    signal.pause()
