"""Spectral embedding and clustering where the kernel matrix is not stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import validate_data

from approxkmv import _check
from approxkmv.loops.types import Float64
from approxkmv.operator import GaussianKernel
from approxkmv.sklearn._rng import generator


def spectral_embedding(
    K: GaussianKernel | LinearOperator,
    n_components: int = 8,
    *,
    drop_first: bool = True,
    random_state: Any = None,
) -> Float64:
    r"""Coordinates from the largest eigenvectors of the normalised kernel matrix.

    What :func:`sklearn.manifold.spectral_embedding` gives for the dense matrix, up to signs.

    Parameters
    ----------
    K : GaussianKernel or LinearOperator, shape (n, n)
        Symmetric, with entries >= 0. The diagonal counts as 0, as in scikit-learn.
    n_components : int
        Coordinates.
    drop_first : bool
        Leave out the first eigenvector, which is constant; for clustering it is kept.
    random_state : None, int, Generator or RandomState
        Seed of the first vector of the iterations.

    Returns
    -------
    ndarray, shape (n, n_components)

    Examples
    --------
    >>> import numpy as np, approxkmv as akmv
    >>> from sklearn.cluster import KMeans
    >>> from approxkmv.sklearn import spectral_embedding
    >>> rng = np.random.default_rng(0)
    >>> points = np.concatenate([rng.normal(0, 1, (100, 2)), rng.normal(6, 1, (100, 2))])
    >>> K = akmv.GaussianKernel(points, bandwidth=1.0)
    >>> coordinates = spectral_embedding(K, 2, drop_first=False, random_state=0)
    >>> labels = KMeans(2, n_init=10, random_state=0).fit_predict(coordinates)
    >>> len(set(labels[:100])), len(set(labels[100:])), bool(labels[0] != labels[-1])
    (1, 1, True)
    """
    _check.square(K)
    n = K.shape[0]
    wanted = _check.count(n_components, "n_components") + bool(drop_first)
    if wanted >= n:
        raise ValueError(f"n_components must be below the number of points, {n}.")
    diagonal = K.diagonal() if hasattr(K, "diagonal") else np.zeros(n)
    degrees = np.asarray(K @ np.ones(n), dtype=np.float64) - diagonal
    # A point without neighbours has no edge: scikit-learn counts its degree as 1. A sampled
    # operator may make a small sum negative.
    alone = degrees <= 0
    root = np.sqrt(np.where(alone, 1.0, degrees))

    def normalised(x: Float64) -> Float64:
        z = x.reshape(n, -1) / root[:, None]
        y = np.asarray(K @ z, dtype=np.float64) - diagonal[:, None] * z
        # Shifted by one, so that the largest eigenvalues are the largest in size as well.
        return np.asarray((y / root[:, None] + x.reshape(n, -1)).reshape(x.shape))

    matrix = LinearOperator((n, n), matvec=normalised, matmat=normalised, dtype=np.float64)
    start = generator(random_state).uniform(-1, 1, n)
    values, vectors = eigsh(matrix, k=wanted, which="LA", v0=start)
    vectors = vectors[:, np.argsort(-values)] / root[:, None]
    largest = vectors[np.argmax(np.abs(vectors), axis=0), np.arange(wanted)]
    vectors *= np.where(largest < 0, -1.0, 1.0)
    return np.ascontiguousarray(vectors[:, 1:] if drop_first else vectors)


class SpectralClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]
    r"""Spectral clustering with the Gaussian kernel, whose matrix is never stored.

    Like :class:`sklearn.cluster.SpectralClustering` with ``affinity="rbf"``, for more points.

    Parameters
    ----------
    n_clusters : int
    bandwidth : float or array_like, shape (n_features,)
        :math:`\sigma`; scikit-learn's ``gamma`` is :math:`1/(2\sigma^2)`.
    gamma : float or None
        In the place of ``bandwidth``.
    n_components : int or None
        Coordinates of the embedding; None: ``n_clusters``.
    assign_labels : {"kmeans", "cluster_qr"}
        How points of the embedding are put into clusters.
    eps : float
        Error allowed to products, see :class:`approxkmv.GaussianKernel`; 0 for exact ones.
    random_state : None, int, Generator or RandomState
    n_threads : int or None
        None: all cores, or the limit set through threadpoolctl.

    Attributes
    ----------
    labels_ : ndarray, shape (n_samples,)
    embedding_ : ndarray, shape (n_samples, n_components)
    n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from approxkmv.sklearn import SpectralClustering
    >>> rng = np.random.default_rng(0)
    >>> points = np.concatenate([rng.normal(0, 1, (100, 2)), rng.normal(6, 1, (100, 2))])
    >>> labels = SpectralClustering(2, bandwidth=1.0, random_state=0).fit_predict(points)
    >>> len(set(labels[:100])), len(set(labels[100:]))
    (1, 1)
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        bandwidth: float | npt.ArrayLike = 1.0,
        gamma: float | None = None,
        n_components: int | None = None,
        assign_labels: str = "kmeans",
        eps: float = 0.0,
        random_state: Any = None,
        n_threads: int | None = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.bandwidth = bandwidth
        self.gamma = gamma
        self.n_components = n_components
        self.assign_labels = assign_labels
        self.eps = eps
        self.random_state = random_state
        self.n_threads = n_threads

    def fit(self, X: npt.ArrayLike, y: object = None) -> SpectralClustering:
        """Embed the points and cluster them.

        Parameters
        ----------
        X : array_like, shape (n_samples, n_features)
        y : ignored
        """
        from sklearn.cluster import KMeans
        from sklearn.cluster._spectral import cluster_qr

        points = validate_data(
            self, _check.plain(X, "X"), dtype=[np.float64, np.float32], order="C",
            ensure_min_samples=2,
        )  # fmt: skip
        assign = _check.one_of(self.assign_labels, "assign_labels", ("kmeans", "cluster_qr"))
        n_clusters = _check.count(self.n_clusters, "n_clusters")
        bandwidth = self.bandwidth
        if self.gamma is not None:
            bandwidth = (2 * _check.positive(self.gamma, "gamma")) ** -0.5
        rng = generator(self.random_state)
        K = GaussianKernel(
            points, bandwidth=bandwidth, eps=self.eps, rng=rng, n_threads=self.n_threads
        )
        n_components = self.n_components or n_clusters
        self.embedding_ = spectral_embedding(
            K, min(n_components, len(points) - 1), drop_first=False, random_state=rng
        )
        if assign == "cluster_qr":
            self.labels_ = cluster_qr(self.embedding_)
        else:
            seed = int(rng.integers(2**31))
            means = KMeans(n_clusters, n_init=10, random_state=seed)
            self.labels_ = means.fit_predict(self.embedding_)
        return self
