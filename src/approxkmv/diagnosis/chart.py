"""Charts as SVG text, for pages that stand alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

_WIDTH, _HEIGHT = 560, 300
_LEAST_WIDTH = 500
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 16, 16, 48


def line_chart(
    x: Sequence[float],
    y: Sequence[float],
    *,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    marks: bool = False,
) -> str:
    """A curve with axes; values on hover. Points that an axis cannot show are left out."""
    across, up = _Axis(x, log_x), _Axis(y, log_y)
    points = [(a, b) for a, b in zip(x, y, strict=True) if across.shows(a) and up.shows(b)]
    if len(points) < 2:
        return '<p class="note">Too few finite values to draw.</p>'
    inner_width, inner_height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM

    def place(a: float, b: float) -> tuple[float, float]:
        return _LEFT + inner_width * across.at(a), _TOP + inner_height * (1 - up.at(b))

    parts = [_frame(across, up, x_label, y_label)]
    path = " ".join(f"{px:.1f},{py:.1f}" for px, py in (place(a, b) for a, b in points))
    parts.append(f'<polyline class="curve" points="{path}"/>')
    for a, b in points:
        px, py = place(a, b)
        tip = f"{escape(x_label)} {a:.5g}: {b:.5g}"
        radius = 4 if marks else 5
        kind = "mark" if marks else "hover"
        parts.append(
            f'<circle class="{kind}" cx="{px:.1f}" cy="{py:.1f}" r="{radius}">'
            f"<title>{tip}</title></circle>"
        )
    return _svg(parts, f"{y_label} over {x_label}", _WIDTH, _HEIGHT)


def bar_chart(names: Sequence[str], values: Sequence[float], *, label: str) -> str:
    """Horizontal bars with their values beside them."""
    step, left, right = 34, 96, 64
    height = step * len(names) + 12
    longest = max([*values, 1e-300])
    parts = []
    for i, (name, value) in enumerate(zip(names, values, strict=True)):
        y = 6 + step * i
        width = (_WIDTH - left - right) * value / longest
        parts.append(f'<text x="{left - 8}" y="{y + 19}" text-anchor="end">{escape(name)}</text>')
        parts.append(f'<rect class="bar" x="{left}" y="{y + 4}" width="{width:.1f}" height="22"/>')
        parts.append(f'<text x="{left + width + 8:.1f}" y="{y + 19}">{value:.3g}</text>')
    return _svg(parts, label, _WIDTH, height)


def heat_map(cells: dict[tuple[int, int], float], *, label: str) -> str:
    """A row for each layer, a column for each head, logarithmic shades, values on hover."""
    rows = sorted({row for row, _ in cells})
    columns = sorted({column for _, column in cells})
    size = max(14, min(40, (_WIDTH - 48) // max(1, len(columns))))
    shown = [math.log10(v) for v in cells.values() if 0 < v < math.inf]
    # Two decades below the largest are told apart; one head of 1e-6 must not darken all others.
    high = max(shown, default=1.0)
    low = max(min(shown, default=0.0), high - 2)
    parts = []
    for r, row in enumerate(rows):
        y = 24 + size * r
        parts.append(f'<text x="36" y="{y + size / 2 + 5:.0f}" text-anchor="end">{row}</text>')
        for c, column in enumerate(columns):
            if (row, column) not in cells:
                continue
            value = cells[row, column]
            shade = _shade(value, low, high)
            x = 44 + size * c
            parts.append(
                f'<rect x="{x}" y="{y}" width="{size - 1}" height="{size - 1}" fill="{shade}">'
                f"<title>layer {row}, head {column}: {value:.4g}</title></rect>"
            )
            if size >= 32:
                ink = "#fff" if _dark(value, low, high) else "#222"
                parts.append(
                    f'<text class="cell" x="{x + size / 2:.0f}" y="{y + size / 2 + 4:.0f}" '
                    f'text-anchor="middle" style="fill:{ink}">{_short(value)}</text>'
                )
    for c, column in enumerate(columns):
        parts.append(
            f'<text class="cell" x="{44 + size * (c + 0.5):.0f}" y="16" '
            f'text-anchor="middle">{column}</text>'
        )
    width, height = 52 + size * len(columns), 32 + size * len(rows)
    # Numbers in the cells would be too small to read: the page lets it scroll instead.
    return _svg(parts, label, width, height, shrinks=False)


class _Axis:
    """From values to 0..1, linear or logarithmic."""

    def __init__(self, values: Sequence[float], log: bool) -> None:
        self._log = log
        shown = [self._map(v) for v in values if self.shows(v)] or [0.0, 1.0]
        low, high = min(shown), max(shown)
        room = (high - low) * 0.06 or 0.5
        self._low, self._high = low - room, high + room

    def shows(self, value: float) -> bool:
        return math.isfinite(value) and (value > 0 or not self._log)

    def at(self, value: float) -> float:
        return (self._map(value) - self._low) / (self._high - self._low)

    def ticks(self) -> list[float]:
        """Round values, about five of them; for a logarithmic axis 1, 2, 5 times powers of 10."""
        if not self._log:
            step = _round_step((self._high - self._low) / 5)
            first = math.ceil(self._low / step)
            return [step * i for i in range(first, math.floor(self._high / step) + 1)]
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        fine = [m * 10.0**p for p in powers for m in (1, 2, 5)]
        inside = [v for v in fine if self._low <= math.log10(v) <= self._high]
        while len(inside) > 7:
            inside = inside[::3] if len(inside) > 14 else inside[::2]
        return inside

    def _map(self, value: float) -> float:
        return math.log10(value) if self._log else value


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= step)


def _frame(across: _Axis, up: _Axis, x_label: str, y_label: str) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for tick in up.ticks():
        y = _TOP + (bottom - _TOP) * (1 - up.at(tick))
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(tick)}</text>'
        )
    for tick in across.ticks():
        x = _LEFT + (right - _LEFT) * across.at(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{_short(tick)}</text>'
        )
    middle = (_LEFT + right) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>'
    )
    parts.append(
        f'<text transform="translate(16 {(_TOP + bottom) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_label)}</text>'
    )
    return "".join(parts)


def _svg(parts: list[str], label: str, width: int, height: int, *, shrinks: bool = True) -> str:
    least = "" if shrinks else f";min-width:{min(width, _LEAST_WIDTH)}px"
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(label)}" '
        f'style="max-width:{width}px{least}">{"".join(parts)}</svg>'
    )


def _short(value: float) -> str:
    """At most four characters where possible."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if abs(value) >= 10000:
        return f"{value / 1000:g}k" if abs(value) < 1e6 else f"{value:.0e}".replace("e+0", "e")
    if abs(value) >= 1000:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 0.01 else f"{value:.0e}".replace("e-0", "e-")


def _position(value: float, low: float, high: float) -> float:
    if value <= 0:
        return 0.0
    if value == math.inf:
        return 1.0
    return max(0.0, math.log10(value) - low) / (high - low) if high > low else 0.5


def _shade(value: float, low: float, high: float) -> str:
    """From pale yellow to dark blue."""
    t = _position(value, low, high)
    pale, dark = (250, 243, 200), (20, 50, 110)
    red, green, blue = (round(a + (b - a) * t) for a, b in zip(pale, dark, strict=True))
    return f"rgb({red},{green},{blue})"


def _dark(value: float, low: float, high: float) -> bool:
    return _position(value, low, high) > 0.5
