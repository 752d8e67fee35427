"""Receives XIDs as they happen, in a thread that waits for NVML's events, instead of at the next poll."""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml
import structlog

from services.node_agent.nvml_calls import NO_DRIVER, text

log = structlog.get_logger("nvml")

WAIT_MS = 1000
RETRY_S = 5.0
FAILED_AGAIN_S = 60.0
"""How often a GPU that could not be registered is tried again while others are."""
_WANTED = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
DOUBLE_BIT_XID = 48
"""The XID of a double-bit ECC event."""


class Events:
    """Calls `on_xid(uuid, xid)` in the event loop; the UUID is "" if the GPU cannot be named."""

    def __init__(self, on_xid: Callable[[str, int], None]) -> None:
        self._on_xid = on_xid
        self._loop = asyncio.get_running_loop()
        self._failed: dict[int, str] = {}
        """The last error of each GPU, by index, that could not be registered."""
        self._stopped, self._register_again = threading.Event(), threading.Event()
        # A daemon thread: a call into a wedged driver may never return.
        threading.Thread(target=self._run, name="nvml-events", daemon=True).start()

    def register_again(self) -> None:
        """Registers for events again: the driver was reloaded or GPUs were added, so the old registrations are
        invalid."""
        self._register_again.set()

    def stop(self) -> None:
        """Returns at once; the thread ends within a second if NVML responds."""
        self._stopped.set()
        self._register_again.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._register_again.clear()
            try:
                self._listen()
            except pynvml.NVMLError as error:
                # The driver is gone, or a GPU was lost, which ends every wait. The polls notice it, too.
                log.warning("nvml_events_lost", error=str(error))
            self._register_again.wait(RETRY_S)

    def _listen(self) -> None:
        pynvml.nvmlInit()  # NVML counts calls to nvmlInit: this one is the thread's own
        try:
            events = pynvml.nvmlEventSetCreate()
            try:
                uuids = dict(self._registered(index, events) for index in range(pynvml.nvmlDeviceGetCount()))
                tried_s = time.monotonic()
                while any(uuids.values()) and not self._register_again.is_set():
                    self._wait(events, uuids)
                    if self._failed and time.monotonic() - tried_s >= FAILED_AGAIN_S:
                        uuids.update(self._registered(index, events) for index in tuple(self._failed))
                        tried_s = time.monotonic()
            finally:
                pynvml.nvmlEventSetFree(events)
        finally:
            pynvml.nvmlShutdown()

    def _wait(self, events: Any, uuids: dict[int, str]) -> None:
        try:
            event = pynvml.nvmlEventSetWait_v2(events, WAIT_MS)
        except pynvml.NVMLError_Timeout:
            return
        number = DOUBLE_BIT_XID if event.eventType == pynvml.nvmlEventTypeDoubleBitEccError else int(event.eventData)
        uuid = uuids.get(_address(event.device), "")
        log.warning("xid", gpu=uuid, xid=number)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._on_xid, uuid, number)

    def _registered(self, index: int, events: Any) -> tuple[int, str]:
        """Registers a GPU for events.

        Returns its handle and UUID, because a GPU off the bus no longer reports its name. The UUID is "" if the GPU
        sends no events.
        """
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            kinds = pynvml.nvmlDeviceGetSupportedEventTypes(handle) & _WANTED
            if kinds:
                pynvml.nvmlDeviceRegisterEvents(handle, kinds, events)
                self._failed.pop(index, None)
                return _address(handle), text(pynvml.nvmlDeviceGetUUID(handle))
        except NO_DRIVER:
            raise
        except pynvml.NVMLError as error:
            if self._failed.get(index) != str(error):
                self._failed[index] = str(error)
                log.warning("gpu_tells_no_events", index=index, error=str(error))
        return -1 - index, ""


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
