"""The binary layout of the control block, a copy of `native/interposer/control_block.h`.

A test compares both, byte by byte."""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint8, c_uint32, c_uint64

ORDERS_MAGIC, COUNTERS_MAGIC, SIGNAL_MAGIC = 0x4F46524B, 0x4346524B, 0x5346524B
VERSION = 1
MAX_GPUS, MAX_PROCESSES, MAX_PEERS, NAME_BYTES, PATH_BYTES = 16, 256, 32, 64, 256
NORMAL, LOW = 1, 2
ONE_AT_A_TIME = 1
"""As the maximum of GPU time in flight: a launch waits until those before it are done."""
LOCK_AT = 0x40000000
NO_LIMIT = (1 << 64) - 1
ACCOUNT_BYTES = (1 << 48) - 1


class GpuOrders(ctypes.LittleEndianStructure):
    _fields_ = (
        ("uuid", c_uint8 * 16),
        ("memory_limit_bytes", c_uint64),
        ("context_bytes", c_uint64),
        ("compute_milli", c_uint32),
        ("in_flight_us", c_uint32),
        ("gate", c_uint32),
        ("private_milli", c_uint32),
        ("period_ns", c_uint64),
        ("window_start_ns", c_uint64),
        ("window_ns", c_uint64),
        ("surcharge_bytes", c_uint64),
        ("shown_bytes", c_uint64),
        ("lent_milli", c_uint64),
        ("reserved", c_uint64 * 4),
    )


class Orders(ctypes.LittleEndianStructure):
    _fields_ = (
        ("magic", c_uint32),
        ("version", c_uint32),
        ("size_bytes", c_uint32),
        ("gpu_count", c_uint32),
        ("generation", c_uint64),
        ("heartbeat_ns", c_uint64),
        ("stale_after_ns", c_uint64),
        ("tier", c_uint32),
        ("paused", c_uint32),
        ("granularity_bytes", c_uint64),
        ("idle_for_ns", c_uint64),
        ("low_floor_milli", c_uint64),
        ("driver_path", ctypes.c_char * PATH_BYTES),
        ("peer_count", c_uint32),
        ("peers_held", c_uint32),
        ("peer", (ctypes.c_char * NAME_BYTES) * MAX_PEERS),
        ("pool_chunk_bytes", c_uint64),
        ("hides_others", c_uint32),
        ("moves", c_uint32),
        ("reserved", c_uint8 * (4096 - 352 - MAX_PEERS * NAME_BYTES)),
        ("gpu", GpuOrders * MAX_GPUS),
    )


class GpuCounters(ctypes.LittleEndianStructure):
    _fields_ = (
        ("account", c_uint64),
        ("peak_bytes", c_uint64),
        ("refused", c_uint64),
        ("launches", c_uint64),
        ("used_ns", c_uint64),
        ("granted_ns", c_uint64),
        ("waited_ns", c_uint64),
        ("waits", c_uint64),
        ("tokens_ns", c_int64),
        ("refilled_ns", c_uint64),
        ("busy_until_ns", c_uint64),
        ("reach_ns", c_uint64),
        ("overran_ns", c_uint64),
        ("untimed", c_uint64),
        ("busy_from_ns", c_uint64),
        ("adapted_period", c_uint64),
        ("overdue", c_uint64),
        ("lent_tokens_ns", c_int64),
        ("lent_refilled_ns", c_uint64),
        ("reserved", c_uint64 * 13),
    )


class Process(ctypes.LittleEndianStructure):
    _fields_ = (
        ("state", c_uint64),
        ("pid", c_int32),
        ("waiting", c_uint32),
        ("attached_ns", c_uint64),
        ("heard_ns", c_uint64),
        ("charged_bytes", c_uint64 * MAX_GPUS),
        ("intent_bytes", c_uint64 * MAX_GPUS),
        ("in_flight_ns", c_uint64 * MAX_GPUS),
        ("reserved", c_uint64 * 12),
    )


class Counters(ctypes.LittleEndianStructure):
    _fields_ = (
        ("magic", c_uint32),
        ("version", c_uint32),
        ("size_bytes", c_uint32),
        ("reserved0", c_uint32),
        ("attaches", c_uint64),
        ("reclaimed", c_uint64),
        ("full", c_uint64),
        ("reserved", c_uint8 * (4096 - 40)),
        ("gpu", GpuCounters * MAX_GPUS),
        ("process", Process * MAX_PROCESSES),
    )


class SignalGpu(ctypes.LittleEndianStructure):
    _fields_ = (("uuid", c_uint8 * 16), ("busy_until_ns", c_uint64), ("reserved", c_uint64 * 5))


class Signal(ctypes.LittleEndianStructure):
    _fields_ = (
        ("magic", c_uint32),
        ("version", c_uint32),
        ("size_bytes", c_uint32),
        ("gpu_count", c_uint32),
        ("gpu", SignalGpu * MAX_GPUS),
        ("reserved", c_uint8 * (4096 - 16 - MAX_GPUS * 64)),
    )


KINDS: dict[str, tuple[type[ctypes.Structure], int]] = {
    "orders": (Orders, ORDERS_MAGIC),
    "counters": (Counters, COUNTERS_MAGIC),
    "signal": (Signal, SIGNAL_MAGIC),
}
"""The structure and the magic number of each file, by file name."""


def uuid_bytes(uuid: str) -> bytes:
    """Converts NVML's "GPU-5a1c9a60-..." or "MIG-..." to the bytes that cuDeviceGetUuid returns.

    Raises ValueError if the text has another form.
    """
    digits = uuid.partition("-")[2].replace("-", "")
    try:
        found = bytes.fromhex(digits)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise ValueError(f"{uuid!r} is not a GPU UUID")
    return found
