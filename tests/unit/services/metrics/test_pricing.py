"""The price file: what it may say, and what is said about one that cannot be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.metrics.pricing import PriceError, Prices, read_prices


def test_prices_are_read_from_yaml_and_json(tmp_path: Path) -> None:
    yaml, json = tmp_path / "prices.yaml", tmp_path / "prices.json"
    yaml.write_text("currency: EUR\ndefault: 1.5\nmodels:\n  NVIDIA-H200: 3\n")
    json.write_text('{"currency": "EUR", "default": 1.5, "models": {"NVIDIA-H200": 3}}')
    for path in (yaml, json):
        prices = read_prices(str(path))
        assert (prices.of("NVIDIA-H200"), prices.of("T4")) == (3.0, 1.5)
    assert read_prices("") == Prices()
    assert Prices(currency="EUR", models={"A": 1.0}).of("B") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("currency: EUR\nmodels: {A: cheap}\n", "Expected `float`, got `str` - at `$.models[...]`. It has the fields"),
        ("currency: EUR\nprice: 3\n", "contains unknown field `price`"),
        ("currency: EUR\nmodels: {A: -1}\n", "models.A is -1; a price per GPU-hour is 0 to 1e+06"),
        ("currency: EUR\ndefault: .nan\n", "default is nan; a price"),
        ("default: 2\n", "it has prices and no currency; add one, such as currency: EUR"),
        ("currency: [\n", "It has the fields currency"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_field(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(text)
    with pytest.raises(PriceError) as refused:
        read_prices(str(path))
    assert str(refused.value).startswith(f"price file {path}: ")
    assert problem in str(refused.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(PriceError, match=r"price file /nowhere\.yaml: No such file"):
        read_prices("/nowhere.yaml")
