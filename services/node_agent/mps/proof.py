"""Proves MPS on the device: a daemon, and probes as its clients whose limits hold.

What is proven with this driver: a client sees the multiprocessors of its percentage and no more, which also shows that
it is one; the server knows it; the pinned memory limit is refused along the allocation paths; and the interposer holds
the memory of a slice under MPS as without. The canary proves the rest of the interposer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from services.node_agent.canary import verdict
from services.node_agent.canary.run import CHUNK_KIB, LIMIT_BYTES, MAX_PROBE_MIB, Canary, CanaryError
from services.node_agent.mps.daemon import Daemon, MpsError
from services.node_agent.processes import child
from services.node_agent.strategies.mps import client_environment
from services.node_agent.strategies.slices import Part
from shared.formats import UNREADABLE
from shared.model.units import MIB

PERCENT = 50
SMALL_MIB = 64
TIMEOUT_S = 60.0


class MpsProof(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The last result on this host, kept beside the agent's checkpoint."""

    driver_version: str
    library: str
    """The digest of the interposer library."""
    ok: bool
    sentence: str = ""
    """Why it failed."""
    at_ms: int = 0
    gpu: str = ""
    processors: int = 0
    """Multiprocessors without MPS."""
    client_processors: int = 0
    """As a client with PERCENT of them has seen them."""


class MpsProver:
    def __init__(self, canary: Canary) -> None:
        """`canary`: whose probes, with and without the interposer, are clients of the daemon."""
        self._canary = canary

    async def prove(self, daemon: Daemon, driver_version: str, library: str, at_ms: int) -> MpsProof:
        """Tries MPS on the daemon's GPU, and leaves nothing behind.

        Raises MpsError or CanaryError where it could not be tried: then nothing is proven, and nothing disproven.
        """
        wrong, seen = await self._wrong(daemon)
        return MpsProof(
            driver_version=driver_version,
            library=library,
            ok=not wrong,
            sentence=wrong,
            at_ms=at_ms,
            gpu=daemon.uuid,
            processors=seen[0],
            client_processors=seen[1],
        )

    async def _wrong(self, daemon: Daemon) -> tuple[str, tuple[int, int]]:
        everything = await self._lines(["processors", str(SMALL_MIB)], {"CUDA_VISIBLE_DEVICES": daemon.uuid})
        processors = int(everything[-1]["processors"])
        found = ("", (0, 0))
        try:
            await daemon.start()
            found = await self._as_client(daemon, processors)
        finally:
            try:
                await daemon.remove()
            except MpsError:
                if not found[0]:  # what is disproven counts, whatever is left behind
                    raise
        return found

    async def _as_client(self, daemon: Daemon, processors: int) -> tuple[str, tuple[int, int]]:
        part = Part(uuid=daemon.uuid, memory_mib=LIMIT_BYTES // MIB, compute_milli=PERCENT * 10)
        client = dict(line.split("=", 1) for line in client_environment(part, str(daemon.pipe)))
        shm = daemon.with_shm
        lines = await self._lines(["processors", str(SMALL_MIB)], client, prefix=shm)
        found = int(lines[-1]["processors"])
        seen = processors, found
        if lines[-1]["result"]:
            return f"a client of MPS could not allocate {SMALL_MIB} MiB: error {lines[-1]['result']}", seen
        if not 1 <= found <= -(-processors * PERCENT // 100) or found == processors:
            return (
                f"a client with {PERCENT} % of {processors} multiprocessors sees {found}: the percentage does not "
                "hold, or the program was no client of the daemon"
            ), seen
        wrong = await self._is_listed(daemon, client)
        if wrong:
            return wrong, seen
        limited = await self._lines(["limit", str(CHUNK_KIB), str(MAX_PROBE_MIB)], client, prefix=shm)
        state, why = verdict.of_driver_limit(limited, LIMIT_BYTES, CHUNK_KIB << 10)
        if state == "fails":
            return f"the pinned memory limit of a client does not hold: {why}", seen
        why, _, _ = await self._canary.memory(daemon.uuid, client | {"CUDA_VISIBLE_DEVICES": "0"}, shm)
        return (f"under MPS the interposer's limit does not hold: {why}" if why else ""), seen

    async def _is_listed(self, daemon: Daemon, client: Mapping[str, str]) -> str:
        async def listed(process: asyncio.subprocess.Process) -> bytes:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            line = await process.stdout.readline()
            clients = await daemon.clients()
            if process.pid not in clients:
                raise MpsError(f"the server's clients are {sorted(clients)}, and the probe {process.pid} is none")
            return line + (await process.communicate(b""))[0]  # the end of its input ends it

        try:
            await self._lines(["hold", str(SMALL_MIB)], client, listed, daemon.with_shm)
        except MpsError as error:
            return str(error)
        return ""

    async def _lines(
        self,
        what: Sequence[str],
        environment: Mapping[str, str],
        run: Callable[[asyncio.subprocess.Process], Awaitable[bytes]] | None = None,
        prefix: Sequence[str] = (),
    ) -> list[dict[str, Any]]:
        """Runs the probe and returns the lines that it prints. Raises CanaryError."""
        process = await asyncio.create_subprocess_exec(
            *prefix,
            *self._canary.program,
            *what,
            env=os.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"} | dict(environment),
            stdin=asyncio.subprocess.DEVNULL if run is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None  # noqa: S101 - it is a pipe
        try:
            async with asyncio.timeout(TIMEOUT_S):
                out = await run(process) if run is not None else (await process.communicate())[0]
        except TimeoutError:
            raise CanaryError(f"the probe `{what[0]}` of MPS has not ended within {TIMEOUT_S:g} s") from None
        finally:
            if process.returncode is None:
                await child.end(process)
        if process.returncode:
            raise CanaryError(f"the probe `{what[0]}` of MPS ended with status {process.returncode}")
        try:
            return [msgspec.json.decode(line, type=dict[str, Any]) for line in out.splitlines()]
        except UNREADABLE as error:
            raise CanaryError(f"the probe `{what[0]}` of MPS printed invalid JSON: {error}") from error
