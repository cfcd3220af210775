"""Pictures of spectra, with matplotlib, where that is installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from approxkmv._extras import needs
from approxkmv.spectrum.density import SpectralDensity
from approxkmv.spectrum.extremes import Eigenvalues, SingularValues


def plot_spectrum(result: Eigenvalues | SingularValues | SpectralDensity, ax: Any = None) -> Any:
    """Draw a spectrum: values with error bars, or how many eigenvalues lie above a value.

    Parameters
    ----------
    result : Eigenvalues, SingularValues or SpectralDensity
    ax : matplotlib.axes.Axes, optional
        Where to draw; default: the axes of a new figure.

    Returns
    -------
    matplotlib.axes.Axes

    Examples
    --------
    >>> import numpy as np, approxkmv as akmv
    >>> K = akmv.GaussianKernel(np.random.default_rng(0).random((100, 2)), bandwidth=0.3)
    >>> ax = akmv.spectrum.plot_spectrum(akmv.spectrum.eigenvalues(K, 5, rng=0))
    >>> ax.get_xlabel()
    'index'
    """
    if not isinstance(result, Eigenvalues | SingularValues | SpectralDensity):
        raise TypeError(
            "result must be Eigenvalues, SingularValues or a SpectralDensity, "
            f"got {type(result).__name__}."
        )
    axes = _new_axes() if ax is None else ax
    if isinstance(result, SpectralDensity):
        _draw_density(axes, result)
    else:
        _draw_values(axes, result)
    return axes


def _draw_values(ax: Any, result: Eigenvalues | SingularValues) -> None:
    index = np.arange(1, len(result.values) + 1)
    # On a logarithmic axis a bar must not reach 0.
    below = np.minimum(result.errors, 0.999 * np.abs(result.values))
    ax.errorbar(index, result.values, yerr=[below, result.errors], fmt="o-", capsize=3)
    if (result.values > 0).all():
        ax.set_yscale("log")
    name = "eigenvalue" if isinstance(result, Eigenvalues) else "singular value"
    ax.set(xlabel="index", ylabel=name)


def _draw_density(ax: Any, result: SpectralDensity) -> None:
    nodes, weights = result.nodes.ravel(), result.weights.ravel()
    largest = float(nodes[weights > 0].max())
    # A kernel matrix has many eigenvalues near 0 that differ by rounding only.
    edges = np.geomspace(1e-6 * largest, largest * (1 + 1e-9), 100)
    above = [result.counts([edge, np.inf]) for edge in edges]
    value, error = (np.array(column).ravel() for column in zip(*above, strict=True))
    ax.plot(edges, value, drawstyle="steps-post")
    ax.fill_between(edges, value - error, value + error, alpha=0.3, step="post", lw=0)
    ax.set(xlabel="t", ylabel="eigenvalues of at least t", xscale="log", ylim=(0, None))


def _new_axes() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(needs("plot_spectrum()", "matplotlib", "plot")) from None
    # A figure of its own, known to no global list: nothing to close, no window, any thread.
    return Figure(layout="constrained").subplots()
