"""Kubernetes quantities as integers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.model.units import QuantityError, format_cpu, format_mib, mib, mib_down, milli, quantity, whole


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("2", 2),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("1.", 1),
        ("+3", 3),
        ("-3", -3),
        ("16Gi", 16 * 2**30),
        ("0.5Gi", 2**29),
        ("1k", 1000),
        ("1Ki", 1024),
        ("1E", 10**18),
        ("1Ei", 2**60),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e-3", Fraction(1, 1000)),
        ("100n", Fraction(1, 10**7)),
        ("250u", Fraction(1, 4000)),
    ],
)
def test_a_quantity_has_its_exact_value(text: str, value: Fraction) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "m",
        "Gi",
        "1 Gi",
        " 1",
        "1GB",
        "1gi",
        "1/2",
        "1_0",
        "0x10",
        "nan",
        "inf",
        "1e",
        "1e3Gi",
        "1e999999999",
        "--1",
        "٣",
        "1.2.3",
        "9" * 200,
    ],
)
def test_an_invalid_quantity_is_refused_with_valid_examples(text: str) -> None:
    """And quickly: an exponent of nine digits must not be computed first."""
    with pytest.raises(QuantityError, match="write a number such as 2, 500m or 16Gi"):
        quantity(text)


def test_requests_are_rounded_up_and_capacity_is_rounded_down() -> None:
    assert (milli("1.0001"), whole("1.5"), mib("1"), mib(1024 * 1024 + 1)) == (1001, 2, 1, 2)
    assert (mib_down("1Mi"), mib_down(2 * 1024 * 1024 - 1)) == (1, 1)


def test_plain_integers_pass_as_they_are() -> None:
    assert (milli(2), whole(7), mib(1024 * 1024)) == (2000, 7, 1)


@given(st.integers(0, 2**45))
def test_mib_is_never_less_than_the_request(amount: int) -> None:
    assert mib_down(amount) * 1024 * 1024 <= amount <= mib(amount) * 1024 * 1024


@given(st.integers(0, 10**9), st.sampled_from(["", "k", "M", "Ki", "Mi", "Gi"]))
def test_a_written_number_is_read_back(number: int, suffix: str) -> None:
    factor = {"": 1, "k": 10**3, "M": 10**6, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}[suffix]
    assert quantity(f"{number}{suffix}") == number * factor


@pytest.mark.parametrize(
    ("amount", "text"), [(16384, "16 GiB"), (1500, "1500 MiB"), (0, "0 MiB"), (143_771, "140.4 GiB")]
)
def test_whole_and_large_amounts_are_shown_in_gib(amount: int, text: str) -> None:
    assert format_mib(amount) == text


@given(st.integers(0, 10**7))
def test_what_is_shown_as_free_is_there_and_what_is_shown_as_needed_is_enough(amount: int) -> None:
    shown = [format_mib(amount, up=up).split() for up in (False, True)]
    free, needed = (float(number) * (1024 if unit == "GiB" else 1) for number, unit in shown)
    assert free <= amount <= needed


@pytest.mark.parametrize(
    ("amount", "text"), [(400_000, "400"), (1500, "1.5"), (100, "100m"), (0, "0"), (64_001, "64.001")]
)
def test_cpu_is_shown_as_people_write_it(amount: int, text: str) -> None:
    assert format_cpu(amount) == text
