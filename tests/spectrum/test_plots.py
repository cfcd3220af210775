"""Pictures show the numbers they are given."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from spectrum_cases import CASES

import approxkmv as akmv
from approxkmv.spectrum import eigenvalues, plot_spectrum, singular_values, spectral_density


def kernel() -> akmv.GaussianKernel:
    return akmv.GaussianKernel(CASES["normal"](80), bandwidth=1.0)


@pytest.mark.parametrize("find", [eigenvalues, singular_values])
def test_values_with_error_bars(find: object) -> None:
    found = find(kernel(), 4, rng=0)  # type: ignore[operator]
    ax = plot_spectrum(found)
    line = ax.get_lines()[0]
    np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3, 4])
    np.testing.assert_array_equal(line.get_ydata(), found.values)
    ax.figure.savefig(io.BytesIO())


def test_density_counts_down_from_all_to_none() -> None:
    ax = plot_spectrum(spectral_density(kernel(), rng=0))
    counts = ax.get_lines()[0].get_ydata()
    assert (np.diff(counts) <= 1e-9).all()
    assert 0 < counts[0] <= 80 + 1e-9
    ax.figure.savefig(io.BytesIO())


def test_draws_where_it_is_told() -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert plot_spectrum(eigenvalues(kernel(), 2, rng=0), ax) is ax


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    found = eigenvalues(kernel(), 2, rng=0)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r'pip install "approxkmv\[plot\]"'):
        plot_spectrum(found)


def test_other_things_are_refused() -> None:
    with pytest.raises(TypeError, match=r"result must be .* got list"):
        plot_spectrum([1, 2])  # type: ignore[arg-type]
