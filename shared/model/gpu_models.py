"""What is publicly known of GPU models: NVIDIA's data sheets, dense FP16 on tensor cores where there are any.

Used where a node does not say better: for a preference by speed or cost, and for simulated nodes.
"""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec


class GpuModel(msgspec.Struct, frozen=True):
    name: str
    """Whole words of a product name: "A100" is in "NVIDIA-A100-SXM4-80GB"."""
    capability: str
    fp16_tflops: int
    memory_gb_s: int


# If one product has several forms, the longer name comes first.
MODELS: tuple[GpuModel, ...] = (
    GpuModel("GB300", "10.3", 2500, 8000),
    GpuModel("GB200", "10.0", 2500, 8000),
    GpuModel("B300", "10.3", 2250, 8000),
    GpuModel("B200", "10.0", 2250, 8000),
    GpuModel("RTX-PRO-6000", "12.0", 500, 1792),
    GpuModel("GH200", "9.0", 989, 4000),
    GpuModel("H200", "9.0", 989, 4800),
    GpuModel("H100-PCIe", "9.0", 756, 2000),
    GpuModel("H100-NVL", "9.0", 835, 3900),
    GpuModel("H100", "9.0", 989, 3350),
    GpuModel("H800", "9.0", 989, 3350),
    GpuModel("H20", "9.0", 148, 4000),
    GpuModel("L40S", "8.9", 362, 864),
    GpuModel("L40", "8.9", 181, 864),
    GpuModel("L4", "8.9", 121, 300),
    GpuModel("RTX-6000-Ada", "8.9", 364, 960),
    GpuModel("RTX-4090", "8.9", 165, 1008),
    GpuModel("A100", "8.0", 312, 1935),
    GpuModel("A800", "8.0", 312, 1935),
    GpuModel("A30", "8.0", 165, 933),
    GpuModel("A40", "8.6", 150, 696),
    GpuModel("A10G", "8.6", 70, 600),
    GpuModel("A10", "8.6", 125, 600),
    GpuModel("RTX-3090", "8.6", 71, 936),
    GpuModel("RTX-8000", "7.5", 130, 672),
    GpuModel("RTX8000", "7.5", 130, 672),
    GpuModel("T4", "7.5", 65, 320),
    GpuModel("TITAN-V", "7.0", 110, 653),
    GpuModel("V100", "7.0", 125, 900),
    GpuModel("V100M16", "7.0", 125, 900),
    GpuModel("V100M32", "7.0", 125, 900),
    GpuModel("P100", "6.0", 21, 732),
    GpuModel("P40", "6.1", 12, 346),
    GpuModel("P4", "6.1", 5, 192),
)


@lru_cache(maxsize=1024)
def known_model(product: str) -> GpuModel | None:
    """What is known of a product name, whatever its case and its separators."""
    words = f"-{re.sub(r'[^a-z0-9]+', '-', product.lower())}-"
    return next((model for model in MODELS if f"-{model.name.lower()}-" in words), None)
