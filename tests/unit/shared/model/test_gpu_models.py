"""Models and generations of GPUs."""

from __future__ import annotations

import pytest

from shared.model.generations import capability_tenths, generation_of
from shared.model.gpu_models import MODELS, known_model


@pytest.mark.parametrize(
    ("capability", "generation"),
    [
        ("6.1", "Pascal"),
        ("7.0", "Volta"),
        ("7.5", "Turing"),
        ("8.6", "Ampere"),
        ("8.9", "Ada"),
        ("9.0", "Hopper"),
        ("10.3", "Blackwell"),
        ("12.0", "Blackwell"),
        ("3.5", ""),
        ("13.0", ""),
        ("", ""),
        ("nine", ""),
    ],
)
def test_a_capability_maps_to_a_generation_or_to_none(capability: str, generation: str) -> None:
    assert generation_of(capability) == generation


@pytest.mark.parametrize(
    ("product", "name"),
    [
        ("NVIDIA-A100-SXM4-80GB", "A100"),
        ("NVIDIA A10", "A10"),
        ("A10G", "A10G"),
        ("NVIDIA-H100-PCIe", "H100-PCIe"),
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("Tesla-V100-SXM2-32GB", "V100"),
        ("V100M32", "V100M32"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA-GH200-480GB", "GH200"),
    ],
)
def test_a_product_is_known_by_whole_words(product: str, name: str) -> None:
    model = known_model(product)
    assert model is not None
    assert model.name == name


def test_an_unknown_product_is_unknown() -> None:
    assert known_model("NVIDIA-A1000") is None


def test_every_model_is_found_by_its_own_name_and_has_a_generation() -> None:
    for model in MODELS:
        assert known_model(model.name) == model
        assert generation_of(model.capability)
        assert capability_tenths(model.capability) is not None
