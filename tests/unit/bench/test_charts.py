"""Charts that benches draw."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.charts import bar_chart, line_chart

SVG = "{http://www.w3.org/2000/svg}"


def texts(path: Path) -> list[str]:
    return ["".join(element.itertext()).strip() for element in ElementTree.parse(path).iter(f"{SVG}text")]


def paths(path: Path, **style: str) -> list[list[tuple[float, float]]]:
    """The corners of every path that is drawn in such a style."""
    return [
        [(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", element.get("d", ""))]
        for element in ElementTree.parse(path).iter(f"{SVG}path")
        if all(f"{name}: {value}" in element.get("style", "") for name, value in style.items())
    ]


def test_a_line_chart_names_its_series_and_axes(tmp_path: Path) -> None:
    path = tmp_path / "plots" / "lines.svg"
    line_chart(
        path, "A < B & C", "load, %", "allocated, %", {"fgd": [(0, 0), (97, 95.2)], "kerf": [(97, 96.0), (0, 0)]}
    )
    assert {"A < B & C", "load, %", "allocated, %", "fgd", "kerf", "0", "20", "80"} <= set(texts(path))


def test_points_are_drawn_in_order_of_x_whatever_order_they_come_in(tmp_path: Path) -> None:
    line_chart(tmp_path / "x", "t", "x", "y", {"s": [(2, 1), (0, 0), (1, 5)]})
    line = max(paths(tmp_path / "x", stroke="#1f6fb4"), key=len)
    assert len(line) == 3
    assert all(left[0] < right[0] for left, right in itertools.pairwise(line))


def test_axes_end_where_they_are_told_to(tmp_path: Path) -> None:
    line_chart(tmp_path / "x", "t", "x", "y", {"s": [(0, 90), (130, 96)]}, x_range=(0, 130), y_range=(80, 100))
    numbers = [float(text) for text in texts(tmp_path / "x") if re.fullmatch(r"[\d.]+", text)]
    assert {0.0, 120.0, 80.0, 100.0} <= set(numbers)
    assert max(numbers) == 120


def test_bars_stand_on_zero_and_are_as_high_as_their_values(tmp_path: Path) -> None:
    path = tmp_path / "bars.svg"
    bar_chart(path, "t", "x", "y", {"a": {"one": 10.0, "two": 5.0}, "b": {"two": 10.0}}, y_range=(0, 10))
    assert {"one", "two", "a", "b"} <= set(texts(path))
    (full, half, _), (other, _) = (paths(path, fill=colour) for colour in ("#1f6fb4", "#d95f02"))  # and the legend's

    def height(bar: list[tuple[float, float]]) -> float:
        return max(y for _, y in bar) - min(y for _, y in bar)

    assert height(full) == pytest.approx(2 * height(half)) == height(other)
    assert max(y for _, y in full) == max(y for _, y in half)


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        line_chart(tmp_path / name, "t", "x", "y", {"s": [(1, 1)]})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert b"date" not in (tmp_path / "a").read_bytes()


def test_a_chart_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no points for 'empty'"):
        line_chart(tmp_path / "x", "empty", "x", "y", {"s": []})
    with pytest.raises(ValueError, match="no bars for 'empty'"):
        bar_chart(tmp_path / "x", "empty", "x", "y", {"s": {}})
