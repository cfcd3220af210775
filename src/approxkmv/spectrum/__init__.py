"""Spectra of kernel and attention matrices that are never stored.

:func:`top_eigenvalue` takes a few products; :func:`eigenvalues` and :func:`singular_values` find
several with SciPy's solvers; :func:`spectral_density`, :func:`trace` and :func:`logdet` estimate
what depends on all eigenvalues from random vectors; :func:`attention_singular_values` looks at the
attention matrices of a model, head by head. Every answer says how far it may be off, and
``docs/spectrum.md`` says what that assumes.
"""

from approxkmv.spectrum.attention import AttentionMatrix, attention_singular_values
from approxkmv.spectrum.density import (
    SpectralDensity,
    TraceEstimate,
    logdet,
    spectral_density,
    trace,
)
from approxkmv.spectrum.extremes import Eigenvalues, SingularValues, eigenvalues, singular_values
from approxkmv.spectrum.plots import plot_spectrum
from approxkmv.spectrum.top import TopEigenvalue, top_eigenvalue

__all__ = [
    "AttentionMatrix",
    "Eigenvalues",
    "SingularValues",
    "SpectralDensity",
    "TopEigenvalue",
    "TraceEstimate",
    "attention_singular_values",
    "eigenvalues",
    "logdet",
    "plot_spectrum",
    "singular_values",
    "spectral_density",
    "top_eigenvalue",
    "trace",
]
