"""Carries TCP connections with a delay in each direction: a network, where the kernel has no netem.

python -m tests.remote.delay_relay LISTEN_HOST:PORT TO_HOST:PORT DELAY_MS
"""

from __future__ import annotations

import queue
import socket
import sys
import threading
import time


def _carry(source: socket.socket, to: socket.socket, delay_s: float) -> None:
    due: queue.Queue[tuple[float, bytes]] = queue.Queue()

    def write() -> None:
        while True:
            at, data = due.get()
            if (left := at - time.monotonic()) > 0:
                time.sleep(left)
            try:
                if not data:
                    to.shutdown(socket.SHUT_WR)
                    return
                to.sendall(data)
            except OSError:
                return  # the other side has closed

    threading.Thread(target=write, daemon=True).start()
    while True:
        try:
            data = source.recv(1 << 16)
        except OSError:
            data = b""
        due.put((time.monotonic() + delay_s, data))
        if not data:
            return


def main(listen: str, to: str, delay_ms: str) -> None:
    def address(text: str) -> tuple[str, int]:
        host, port = text.rsplit(":", 1)
        return host, int(port)

    with socket.create_server(address(listen)) as listener:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(address(to))
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_carry, args=(source, target, float(delay_ms) / 1000), daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
