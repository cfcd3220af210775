"""Heatmaps and curves as SVG, without any plotting package.

Every value is also the ``<title>`` of what shows it, so that a browser tells it on hover.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

COLOURS = ("#1f5fa8", "#c4571a", "#2b7d4f", "#7b4fa0", "#8a6d1b", "#5b6770")
_FONT = 'font-family="system-ui, sans-serif"'


def number(value: float) -> str:
    """Three significant digits, without exponents where they can be avoided.

    Examples
    --------
    >>> number(0.012345), number(12.3456), number(1234.5), number(2.5e7), number(float("nan"))
    ('0.0123', '12.3', '1,234', '2.5e+07', '–')
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞"
    if 1000 <= abs(value) < 1e6:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def heatmap(
    values: Float,
    title: str,
    *,
    limit: float | None = None,
    rows: str = "layer",
    columns: str = "head",
) -> str:
    """One coloured cell with its value for each layer and head, darker for larger (logarithmic).

    Cells above ``limit`` have a red frame.
    """
    n_rows, n_columns = values.shape
    width, height, left, top = 44, 22, 54, 62
    low, high = _log_range(values)
    cells = []
    for i, j in np.ndindex(n_rows, n_columns):
        value = float(values[i, j])
        share = (math.log(max(value, 1e-300)) - low) / (high - low) if value > 0 else 0.0
        over = limit is not None and value > limit
        x, y = left + j * width, top + i * height
        ink = "#ffffff" if share > 0.55 else "#1b2733"
        frame = ' stroke="#c62828" stroke-width="2"' if over else ""
        label = f"{rows} {i}, {columns} {j}: {number(value)}"
        cells.append(
            f'<g class="cell" data-value="{escape(label)}"><title>{escape(label)}</title>'
            f'<rect x="{x + 1}" y="{y + 1}" width="{width - 2}" height="{height - 2}" '
            f'fill="{_shade(share)}"{frame}/>'
            f'<text x="{x + width / 2:g}" y="{y + 15}" text-anchor="middle" font-size="11" '
            f'fill="{ink}">{_short(value)}</text></g>'
        )
    marks = [
        f'<text x="{left - 6}" y="{top + i * height + 15}" text-anchor="end">{i}</text>'
        for i in range(n_rows)
    ]
    marks += [
        f'<text x="{left + j * width + width / 2:g}" y="{top - 6}" text-anchor="middle">{j}</text>'
        for j in range(n_columns)
    ]
    middle = left + n_columns * width / 2
    marks.append(
        f'<text x="{middle:g}" y="{top - 22}" text-anchor="middle">{escape(columns)}</text>'
    )
    marks.append(f'<text x="8" y="{top + n_rows * height / 2:g}">{escape(rows)}</text>')
    size = (left + n_columns * width + 8, top + n_rows * height + 8)
    return _picture(size, title, [*marks, *cells])


def _short(value: float) -> str:
    """What fits into a cell."""
    return "&lt;0.01" if 0 < value < 0.01 else number(value)


def _log_range(values: Float) -> tuple[float, float]:
    """From the 5% smallest on: one head with a tiny value must not make all others dark."""
    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive) == 0:
        return 0.0, 1.0
    low, high = math.log(np.quantile(positive, 0.05)), math.log(positive.max())
    return (low, high) if high > low else (low - 1, high + 1)


def _shade(share: float) -> str:
    """From pale to dark blue."""
    share = min(max(share, 0.0), 1.0)
    pale, dark = (234, 242, 250), (9, 48, 102)
    mixed = (round(a + (b - a) * share) for a, b in zip(pale, dark, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)


@dataclass(frozen=True)
class Series:
    """A curve: points, and if given the half length of a bar at each."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    dashed: bool = False


def curves(
    series: Sequence[Series],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    lines: Sequence[tuple[str, float]] = (),
) -> str:
    """Curves with points, bars where there is a spread, and horizontal lines with names."""
    width, height, left, top, bottom = 640, 330, 64, 40, 48
    legend = 18 * (len(series) + len(lines))
    xs = [x for one in series for x in one.x]
    ys = [y for one in series for y in _ends(one)] + [y for _, y in lines]
    across = _Axis(xs, log_x, left, width - 16)
    up = _Axis(ys, log_y, height - bottom, top, zero=not log_y)
    parts = []
    for tick in across.ticks():
        x = across(tick)
        parts.append(f'<path d="M{x:.1f} {top}V{height - bottom}" stroke="#e3e8ee"/>')
        label = f'y="{height - bottom + 16}" text-anchor="middle">{number(tick)}'
        parts.append(f'<text x="{x:.1f}" {label}</text>')
    for tick in up.ticks():
        y = up(tick)
        parts.append(f'<path d="M{left} {y:.1f}H{width - 16}" stroke="#e3e8ee"/>')
        parts.append(
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>'
        )
    parts.append(
        f'<text x="{(left + width) / 2:g}" y="{height - 10}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    parts.append(f'<text x="8" y="{top - 8}">{escape(y_label)}</text>')
    names: list[tuple[str, str, bool]] = []
    for i, one in enumerate(series):
        colour = COLOURS[i % len(COLOURS)]
        parts += _curve(one, colour, across, up)
        names.append((one.name, colour, one.dashed))
    for i, (name, y) in enumerate(lines):
        colour = COLOURS[(len(series) + i) % len(COLOURS)]
        parts.append(
            f'<path d="M{left} {up(y):.1f}H{width - 16}" stroke="{colour}" stroke-dasharray="2 4" '
            f'stroke-width="1.5"><title>{escape(f"{name}: {number(y)}")}</title></path>'
        )
        names.append((name, colour, True))
    for i, (name, colour, dashed) in enumerate(names):
        y = height + 12 + 18 * i
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        parts.append(f'<path d="M{left} {y - 4}h22" stroke="{colour}" stroke-width="2"{dash}/>')
        parts.append(f'<text x="{left + 28}" y="{y}">{escape(name)}</text>')
    return _picture((width, height + legend + 8), title, parts)


def _ends(one: Series) -> list[float]:
    spread = one.spread or [0.0] * len(one.y)
    return [y + sign * s for y, s in zip(one.y, spread, strict=True) for sign in (-1, 1)]


def _curve(
    one: Series, colour: str, across: Callable[[float], float], up: Callable[[float], float]
) -> list[str]:
    points = [(across(x), up(y)) for x, y in zip(one.x, one.y, strict=True)]
    dash = ' stroke-dasharray="5 4"' if one.dashed else ""
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    parts = [f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>']
    for i, (x, y) in enumerate(points):
        label = f"{one.name}, {number(one.x[i])}: {number(one.y[i])}"
        if one.spread is not None:
            label += f" ± {number(one.spread[i])}"
            ends = up(one.y[i] - one.spread[i]), up(one.y[i] + one.spread[i])
            parts.append(f'<path d="M{x:.1f} {ends[0]:.1f}V{ends[1]:.1f}" stroke="{colour}"/>')
        parts.append(
            f'<g class="cell" data-value="{escape(label)}"><title>{escape(label)}</title>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="{colour}" fill-opacity="0"/></g>'
        )
    return parts


class _Axis:
    """Maps values to positions between two ends."""

    def __init__(
        self, values: Sequence[float], log: bool, start: float, end: float, zero: bool = False
    ) -> None:
        finite = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [1.0]
        self._log = log
        low, high = min(finite), max(finite)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        if low == high:
            low, high = (low / 2, high * 2) if log else (low - 1, high + 1)
        self._low, self._high = self._scaled(low), self._scaled(high)
        pad = 0.04 * (self._high - self._low)
        self._low -= 0.0 if zero and low == 0 else pad
        self._high += pad
        self._start, self._end = start, end

    def _scaled(self, value: float) -> float:
        return math.log(value) if self._log else value

    def __call__(self, value: float) -> float:
        if (self._log and value <= 0) or not math.isfinite(value):
            return self._start
        share = (self._scaled(value) - self._low) / (self._high - self._low)
        return self._start + min(max(share, 0.0), 1.0) * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Round numbers inside: 1, 2, 5 times powers of ten."""
        if not self._log:
            return _round_steps(self._low, self._high)
        low, high = math.exp(self._low), math.exp(self._high)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = (1, 2, 5) if len(powers) <= 4 else (1,)
        return [s * 10.0**p for p in powers for s in steps if low <= s * 10.0**p <= high]


def _round_steps(low: float, high: float) -> list[float]:
    raw = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def _picture(size: tuple[float, float], title: str, parts: Sequence[str]) -> str:
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" role="img" aria-label="{escape(title)}" {_FONT} '
        f'font-size="12" fill="#1b2733">'
        f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>'
        f'<text x="8" y="18" font-size="14" font-weight="600">{escape(title)}</text>'
        + "".join(parts)
        + "</svg>"
    )
