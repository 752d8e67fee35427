"""Charts that benches draw."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.svg import bar_chart, line_chart

SVG = "{http://www.w3.org/2000/svg}"


def texts(path: Path) -> list[str]:
    return [element.text or "" for element in ElementTree.parse(path).iter(f"{SVG}text")]


def test_a_line_chart_names_its_series_and_axes_and_has_round_ticks(tmp_path: Path) -> None:
    path = tmp_path / "plots" / "lines.svg"
    line_chart(
        path, "A < B & C", "load, %", "allocated, %", {"fgd": [(0, 0), (97, 95.2)], "kerf": [(97, 96.0), (0, 0)]}
    )
    assert {"A < B & C", "load, %", "allocated, %", "fgd", "kerf"} <= set(texts(path))
    assert [text for text in texts(path) if text.isdigit()] == ["0", "20", "40", "60", "80", "100"] * 2
    lines = [element.get("points", "").split() for element in ElementTree.parse(path).iter(f"{SVG}polyline")]
    assert lines[0][0] == lines[1][0], "points are drawn in order of x, whatever order they come in"


def test_no_tick_lies_outside_of_an_axis_with_given_ends(tmp_path: Path) -> None:
    line_chart(tmp_path / "x", "t", "x", "y", {"s": [(0, 90), (130, 96)]}, x_range=(0, 130), y_range=(85, 100))
    assert [text for text in texts(tmp_path / "x") if text.isdigit()] == ["85", "90", "95", "100", "0", "50", "100"]


def test_bars_stand_on_zero_and_are_as_high_as_their_values(tmp_path: Path) -> None:
    path = tmp_path / "bars.svg"
    bar_chart(path, "t", "x", "y", {"a": {"one": 10.0, "two": 5.0}, "b": {"two": 10.0}}, y_range=(0, 10))
    bars = [
        element for element in ElementTree.parse(path).iter(f"{SVG}rect") if element.find(f"{SVG}title") is not None
    ]
    assert [element.findtext(f"{SVG}title") for element in bars] == ["one: 10", "two: 5", "two: 10"]
    full, half, other = (float(element.get("height", "0")) for element in bars)
    assert (full, other) == (pytest.approx(2 * half, abs=0.2), full)


def test_the_same_figures_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        line_chart(tmp_path / name, "t", "x", "y", {"s": [(1, 1)]})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_chart_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no points for 'empty'"):
        line_chart(tmp_path / "x", "empty", "x", "y", {"s": []})
    with pytest.raises(ValueError, match="no bars for 'empty'"):
        bar_chart(tmp_path / "x", "empty", "x", "y", {"s": {}})
