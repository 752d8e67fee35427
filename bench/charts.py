"""Charts of the benches as SVG files, drawn by matplotlib. The same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

Points = Sequence[tuple[float, float]]

_STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be searched and read out
    "svg.hashsalt": "kerf",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#dddddd",
}
_COLOURS = ("#1f6fb4", "#d95f02", "#1b9e77", "#7b52ab", "#c2357f", "#8a6d1f", "#444444")
_DASHES = ("-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 3)))
_MAX_LEVEL_GROUPS = 8
"""From more groups on their names are slanted."""


def line_chart(
    path: Path | str,
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Points],
    *,
    x_range: tuple[float, float] | None = None,
    y_range: tuple[float, float] | None = None,
) -> None:
    """Draws one line for each series, in the order given; axes run over the ranges, or over what the points span.

    Raises ValueError if there is no point at all.
    """
    if not any(series.values()):
        raise ValueError(f"no points for {title!r}")
    with rc_context(_STYLE):
        figure, axes = _axes(title, x_label, y_label)
        for number, (name, points) in enumerate(series.items()):
            xs, ys = zip(*sorted(points), strict=True) if points else ((), ())
            axes.plot(
                xs, ys, label=name, color=_COLOURS[number % len(_COLOURS)], linestyle=_DASHES[number % len(_DASHES)]
            )
        if x_range is not None:
            axes.set_xlim(x_range)
        if y_range is not None:
            axes.set_ylim(y_range)
        _write(figure, axes, path)


def bar_chart(
    path: Path | str,
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Mapping[str, float]],
    *,
    y_range: tuple[float, float] | None = None,
) -> None:
    """Draws groups of bars; `series` maps each series to its value by group.

    A group is drawn if any series names it. Raises ValueError if there is no value at all.
    """
    groups = list(dict.fromkeys(group for values in series.values() for group in values))
    if not groups:
        raise ValueError(f"no bars for {title!r}")
    width = 0.8 / len(series)
    with rc_context(_STYLE):
        figure, axes = _axes(title, x_label, y_label)
        for number, (name, values) in enumerate(series.items()):
            left = np.array([groups.index(group) for group in values]) - 0.4 + number * width
            axes.bar(left, list(values.values()), width, label=name, align="edge", color=_COLOURS[number])
        axes.set_xticks(range(len(groups)), groups)
        if len(groups) > _MAX_LEVEL_GROUPS or max(map(len, groups)) * len(groups) > 90:
            axes.tick_params(axis="x", labelrotation=40)
            for label in axes.get_xticklabels():
                label.set_horizontalalignment("right")
                label.set_rotation_mode("anchor")
        if y_range is not None:
            axes.set_ylim(y_range)
        _write(figure, axes, path)


def _axes(title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, loc="left", fontsize=11, fontweight="bold", pad=24)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    return figure, axes


def _write(figure: Figure, axes: Axes, path: Path | str) -> None:
    """Adds the legend between title and axes and writes the file, without a date."""
    names = axes.get_legend_handles_labels()[1]
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(names), frameon=False, borderaxespad=0.2)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasSVG(figure).print_svg(target, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
