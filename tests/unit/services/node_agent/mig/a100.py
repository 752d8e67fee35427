"""An A100 of 40 GB in MIG mode, as the fake NVML describes it.

Profiles, their ids, memory and placements are those of `nvidia-smi mig -lgip` and `-lgipp` in NVIDIA's MIG User Guide
("Getting Started with MIG", "List GPU Instance Profiles").
"""

from __future__ import annotations

GPU = "gpu 0 GPU-a NVIDIA_A100-SXM4-40GB 40960 00000000:01:00.0 0 8 0 1 0\n"
PROFILES = (
    "profile 0 0 19 1g.5gb 1 4864 1 7f\n"
    "profile 0 7 20 1g.5gb+me 1 4864 1 7f\n"
    "profile 0 9 15 1g.10gb 1 9856 2 55\n"
    "profile 0 1 14 2g.10gb 2 9856 2 15\n"
    "profile 0 2 9 3g.20gb 3 19968 4 11\n"
    "profile 0 3 5 4g.20gb 4 19968 4 1\n"
    "profile 0 4 0 7g.40gb 7 40192 8 1\n"
)
DRIVER = "580.95.05"
A100 = f"driver {DRIVER}\ncuda 13000\n{GPU}{PROFILES}"
