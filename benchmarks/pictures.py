"""Pictures that are drawn twice, for light and for dark pages, on a transparent ground."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class Colours(NamedTuple):
    """Text, lines of no weight, and two that matter."""

    text: str
    faint: str
    first: str
    second: str


THEMES = {
    "light": Colours("#24292f", "#7d8590", "#1f5fa8", "#b3541e"),
    "dark": Colours("#e6edf3", "#8b949e", "#7fb3f0", "#f0a070"),
}


@contextmanager
def themed(
    theme: str, path: Path, *, size: tuple[float, float], columns: int = 1
) -> Iterator[tuple[Any, Colours]]:
    """Axes to draw on, and the colours; the picture is written at the end."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    colours = THEMES[theme]
    parameters = {
        **{f"{name}.color": colours.text for name in ("text", "xtick", "ytick")},
        "axes.labelcolor": colours.text,
        "axes.titlecolor": colours.text,
        "axes.edgecolor": colours.faint,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "font.size": 10,
        "font.family": "DejaVu Sans",
        "svg.hashsalt": path.stem,  # the same bytes for the same record
    }
    with plt.rc_context(parameters):
        figure, axes = plt.subplots(1, columns, figsize=size, layout="constrained", squeeze=False)
        yield axes[0] if columns > 1 else axes[0][0], colours
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)
