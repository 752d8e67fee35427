"""Classifies XIDs by NVIDIA's catalogue: may this GPU take new work?

Source: NVIDIA, "Xid Errors", Xid Catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html). The comments
name its immediate action. An XID that is not listed makes the GPU suspect for a while, because it may be the first sign
of more.
"""

from __future__ import annotations

from typing import Literal

Verdict = Literal["harmless", "suspect", "reset", "reboot"]
"""harmless: caused by the application, or only information. suspect: it passes by itself. reset: the GPU takes no new
slices until it was reset or its driver reloaded. reboot: until the node was rebooted."""

_HARMLESS: dict[int, str] = {
    # RESTART_APP: errors of the application.
    8: "GPU stopped processing",
    11: "invalid or corrupted push buffer stream",
    13: "graphics engine exception",
    25: "invalid or illegal push buffer stream",
    31: "GPU memory page fault",
    32: "invalid or corrupted push buffer stream",
    39: "copy engine exception",
    40: "copy engine exception",
    41: "copy engine exception",
    68: "video processor exception",
    69: "graphics engine class error",
    80: "corrupted data sent to GPU",
    94: "contained memory error",  # only its application is affected; what remains shows as a pending row remapping
    # IGNORE
    43: "GPU stopped processing",
    45: "preemptive cleanup after an earlier error",
    63: "a memory row was remapped",
    92: "high rate of corrected ECC errors",
    93: "InfoROM written too often",
    106: "test message",
    107: "test message",
    108: "NVLink remote translation error",
    121: "corrected C2C link error",
    137: "NVLink access error of an application",
    141: "fast path error",
    154: "the driver's recovery action has changed",  # which is also polled
    # RESET_GPU from Ampere on. NVIDIA's own device plugin counts it as the application's error, and drivers since r570
    # report by their recovery action whether a reset is needed.
    109: "context switch time-out",
}
_CODECS = (*range(82, 87), 88, 89, *range(96, 106), *range(126, 136), 139)
"""Video, JPEG, optical flow and copy engines: RESTART_APP."""

_SUSPECT: dict[int, str] = {
    # WORKFLOW_NVLINK5_ERR: most are harmless; the recovery action shows which are not.
    144: "NVLink error",
    145: "NVLink error",
    146: "NVLink error",
    147: "NVLink error",
    148: "NVLink error",
    149: "NVLink error",
    150: "NVLink error",
    # New, with no action in the catalogue.
    167: "PCIe fatal time-out",
    168: "less memory than there should be",
    171: "uncorrectable error in DRAM",
    172: "uncorrectable error in SRAM",
}

_RESET: dict[int, str] = {
    # RESET_GPU
    46: "GPU stopped processing",
    62: "internal micro-controller halt",
    64: "a memory row could not be remapped",
    95: "uncontained memory error",
    110: "security fault",
    119: "GSP does not answer",
    120: "GSP error",
    136: "NVLink training failed",
    140: "unrecovered ECC error",
    143: "GPU initialisation error",
    155: "NVLink error",
    156: "a resource was retired",
    158: "GPU fatal time-out",
    48: "double-bit ECC error",  # WORKFLOW_XID_48: reset, with 63 or 64 after draining
    74: "NVLink error",  # WORKFLOW_NVLINK_ERR: reset or reboot
    54: "auxiliary power is not connected",  # CHECK_MECHANICALS
}
_REBOOT: dict[int, str] = {
    79: "GPU has fallen off the bus",  # RESTART_BM
    151: "key rotation error",  # RESTART_VM
}

_CATALOGUE: dict[int, tuple[Verdict, str]] = {
    **{number: ("harmless", text) for number, text in _HARMLESS.items()},
    **dict.fromkeys(_CODECS, ("harmless", "engine exception")),
    **{number: ("suspect", text) for number, text in _SUSPECT.items()},
    **{number: ("reset", text) for number, text in _RESET.items()},
    **{number: ("reboot", text) for number, text in _REBOOT.items()},
}


def classify(number: int) -> tuple[Verdict, str]:
    """The verdict on an XID and its description: "Xid 79: GPU has fallen off the bus"."""
    verdict, text = _CATALOGUE.get(number, ("suspect", "not in the catalogue"))
    return verdict, f"Xid {number}: {text}"
