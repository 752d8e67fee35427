"""Charts as SVG text, for the plots that benches draw: one file each, readable on light and dark pages, no library.

The same figures give the same bytes, so a plot in the repository changes only with what it shows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 46, 58
_COLOURS = ("#1f6fb4", "#d95f02", "#1b9e77", "#7b52ab", "#c2357f", "#8a6d1f", "#444444")
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "", "7 4", "2 3")
_LEGEND_LINE = 17
_TEXT_WIDTH = 6.8
"""Of a letter at 12 px, about: enough to wrap a legend."""


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
    """One line a series, in the order given. Axes run over `x_range` and `y_range`, or over what the points span.

    Raises ValueError where there is no point at all.
    """
    points = [p for line in series.values() for p in line]
    if not points:
        raise ValueError(f"no points for {title!r}")
    x_ticks = _ticks([x for x, _ in points], x_range)
    y_ticks = _ticks([y for _, y in points], y_range)
    canvas = _Canvas(
        title,
        x_label,
        y_label,
        list(series),
        x_range or (x_ticks[0], x_ticks[-1]),
        y_range or (y_ticks[0], y_ticks[-1]),
    )
    canvas.grid(y_ticks)
    for tick in x_ticks:
        canvas.x_tick(canvas.x(tick), _number(tick, x_ticks))
    for index, line in enumerate(series.values()):
        colour, dash = _style(index)
        path_points = " ".join(f"{canvas.x(x):.1f},{canvas.y(y):.1f}" for x, y in sorted(line))
        canvas.add(
            f'<polyline points="{path_points}" fill="none" stroke="{colour}" stroke-width="2"{dash} '
            'clip-path="url(#plot)"/>'
        )
    canvas.write(path)


def bar_chart(
    path: Path | str,
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Mapping[str, float]],
    *,
    y_range: tuple[float, float] | None = None,
) -> None:
    """Groups of bars: `series` maps each series to its value by group. A group is drawn where any series names it.

    Group names are slanted where there are many. Raises ValueError where there is no value at all.
    """
    groups = list(dict.fromkeys(group for values in series.values() for group in values))
    if not groups:
        raise ValueError(f"no bars for {title!r}")
    values = [value for each in series.values() for value in each.values()]
    ticks = _ticks([0.0, *values], y_range)
    slanted = len(groups) > 8 or max(map(len, groups)) * _TEXT_WIDTH > (_WIDTH - _LEFT - _RIGHT) / len(groups)
    extra = int(max(map(len, groups)) * _TEXT_WIDTH * 0.92) if slanted else 0
    canvas = _Canvas(title, x_label, y_label, list(series), (0, len(groups)), y_range or (ticks[0], ticks[-1]), extra)
    canvas.grid(ticks)
    bar = 0.8 / len(series)
    for place, group in enumerate(groups):
        canvas.x_tick(canvas.x(place + 0.5), group, slanted=slanted)
        for index, each in enumerate(series.values()):
            if group not in each:
                continue
            left, right = canvas.x(place + 0.1 + index * bar), canvas.x(place + 0.1 + (index + 1) * bar)
            top, foot = sorted((canvas.y(each[group]), canvas.y(max(0.0, canvas.y_low))))
            canvas.add(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{foot - top:.1f}" '
                f'fill="{_style(index)[0]}" '
                f'clip-path="url(#plot)"><title>{escape(group)}: {each[group]:g}</title></rect>'
            )
    canvas.write(path, bars=True)


class _Canvas:
    """Frame, axes and legend, and the way from data to pixels."""

    def __init__(
        self,
        title: str,
        x_label: str,
        y_label: str,
        legend: list[str],
        xs: tuple[float, float],
        ys: tuple[float, float],
        extra: int = 0,
    ) -> None:
        self.title, self.x_label, self.y_label, self.legend = title, x_label, y_label, legend
        (self.x_low, self.x_high), (self.y_low, self.y_high) = xs, ys
        self.keys = _legend_lines(legend)
        self.top = _TOP + _LEGEND_LINE * len(self.keys)
        self.foot = self.top + _HEIGHT - _TOP - _BOTTOM - _LEGEND_LINE
        self.height = self.foot + _BOTTOM + extra
        self.parts: list[str] = []

    def add(self, part: str) -> None:
        self.parts.append(part)

    def x(self, value: float) -> float:
        return _LEFT + (value - self.x_low) / ((self.x_high - self.x_low) or 1) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        return self.foot - (value - self.y_low) / ((self.y_high - self.y_low) or 1) * (self.foot - self.top)

    def grid(self, ticks: list[float]) -> None:
        for tick in ticks:
            y = self.y(tick)
            self.add(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" stroke="#dddddd"/>')
            self.add(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_number(tick, ticks)}</text>')

    def x_tick(self, x: float, text: str, *, slanted: bool = False) -> None:
        y = self.foot + 18
        turn = f' transform="rotate(-65 {x:.1f} {y})"' if slanted else ""
        self.add(
            f'<text x="{x:.1f}" y="{y}" text-anchor="{"end" if slanted else "middle"}"{turn}>{escape(text)}</text>'
        )

    def write(self, path: Path | str, *, bars: bool = False) -> None:
        middle = (self.top + self.foot) / 2
        head = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {self.height}" font-family="DejaVu '
            'Sans, Helvetica, Arial, sans-serif" font-size="12" fill="#222222">',
            f"<title>{escape(self.title)}</title>",
            f'<rect width="{_WIDTH}" height="{self.height}" fill="#ffffff"/>',
            f'<clipPath id="plot"><rect x="{_LEFT}" y="{self.top}" width="{_WIDTH - _LEFT - _RIGHT}" '
            f'height="{self.foot - self.top}"/></clipPath>',
            f'<text x="{_LEFT}" y="22" font-size="15" font-weight="bold">{escape(self.title)}</text>',
            *self._keys(bars),
        ]
        tail = [
            f'<line x1="{_LEFT}" y1="{self.foot}" x2="{_WIDTH - _RIGHT}" y2="{self.foot}" stroke="#222222"/>',
            f'<line x1="{_LEFT}" y1="{self.top}" x2="{_LEFT}" y2="{self.foot}" stroke="#222222"/>',
            f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{self.height - 12}" '
            f'text-anchor="middle">{escape(self.x_label)}</text>',
            f'<text x="16" y="{middle}" text-anchor="middle" transform="rotate(-90 16 '
            f'{middle})">{escape(self.y_label)}</text>',
            "</svg>",
        ]
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join([*head, *self.parts, *tail]) + "\n")

    def _keys(self, bars: bool) -> list[str]:
        made, index = [], 0
        for line, names in enumerate(self.keys):
            x, y = float(_LEFT), 42 + line * _LEGEND_LINE
            for name in names:
                colour, dash = _style(index)
                made.append(
                    f'<rect x="{x:.1f}" y="{y - 9}" width="14" height="10" fill="{colour}"/>'
                    if bars
                    else f'<line x1="{x:.1f}" y1="{y - 4}" x2="{x + 24:.1f}" y2="{y - 4}" stroke="{colour}" '
                    f'stroke-width="2"{dash}/>'
                )
                made.append(f'<text x="{x + 30:.1f}" y="{y}">{escape(name)}</text>')
                x += _key_width(name)
                index += 1
        return made


def _style(index: int) -> tuple[str, str]:
    dash = _DASHES[index % len(_DASHES)]
    return _COLOURS[index % len(_COLOURS)], f' stroke-dasharray="{dash}"' if dash else ""


def _key_width(name: str) -> float:
    return 46 + len(name) * _TEXT_WIDTH


def _legend_lines(names: list[str]) -> list[list[str]]:
    lines: list[list[str]] = [[]]
    used = 0.0
    for name in names:
        if lines[-1] and used + _key_width(name) > _WIDTH - _LEFT - _RIGHT:
            lines.append([])
            used = 0.0
        lines[-1].append(name)
        used += _key_width(name)
    return lines


def _ticks(values: list[float], limits: tuple[float, float] | None) -> list[float]:
    """About six round numbers (1, 2 or 5 times a power of ten): those within the limits, or that enclose the values."""
    low, high = limits or (min(values), max(values))
    if high <= low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 5
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)
    if limits:
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    else:
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [step * n for n in range(first, last + 1)]


def _number(value: float, ticks: list[float]) -> str:
    step = ticks[1] - ticks[0]
    return f"{value:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"
