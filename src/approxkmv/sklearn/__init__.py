"""Estimators with the interface of scikit-learn.

Needs scikit-learn: ``pip install "approxkmv[sklearn]"``.
"""

from __future__ import annotations

from approxkmv._extras import needs as _needs

try:
    import sklearn as _sklearn  # noqa: F401
except ImportError as error:
    raise ImportError(_needs("approxkmv.sklearn", "scikit-learn", "sklearn")) from error

from approxkmv.sklearn.density import KernelDensity as KernelDensity
from approxkmv.sklearn.ridge import GaussianProcessRegressor as GaussianProcessRegressor
from approxkmv.sklearn.ridge import KernelRidge as KernelRidge
from approxkmv.sklearn.spectral import SpectralClustering as SpectralClustering
from approxkmv.sklearn.spectral import spectral_embedding as spectral_embedding
