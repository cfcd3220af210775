r"""Attention as a Gaussian kernel (Lemma 4.1, with the prefactors of its proof).

Append √(M - ‖k_j‖²), M = max ‖k_j‖², to the keys and 0 to the queries. Then all keys lie on one
sphere and

.. math:: e^{s \langle q_i, k_j\rangle} = e^{s(\|q_i\|^2 + M)/2} \, e^{-s\|q'_i - k'_j\|^2/2},

a Gaussian kernel of bandwidth :math:`s^{-1/2}`: :math:`d^{1/4}` at the usual scale :math:`s =
d^{-1/2}`. The lemma prints the prefactor without the :math:`s/2` (docs/errata.md E2).

The paper compares it with the reduction of KDEformer (Zandieh et al., 2023), which lays the vector
into the points: :func:`weighted_attention_to_gaussian`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from approxkmv.kernel import matrix as exact

Array = npt.NDArray[np.floating]
Float = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class GaussianInstance:
    """Points, bandwidth and row factors with A = diag(exp(log_prefactor)) K.

    Attributes
    ----------
    queries, keys : ndarray of shape (n_queries, n_dims + 1), (n_keys, n_dims + 1)
    bandwidth : float
    log_prefactor : ndarray of shape (n_queries,)
        In the log domain: at BERT's norms the prefactor itself overflows.
    """

    queries: Array
    keys: Array
    bandwidth: float
    log_prefactor: Float


def attention_to_gaussian(
    query: Array, key: Array, scale: float | None = None, *, as_printed: bool = False
) -> GaussianInstance:
    r"""Points whose Gaussian kernel is the attention matrix up to a factor per row.

    Done once per matrix, whatever vectors it is multiplied with later.

    Parameters
    ----------
    query, key : ndarray of shape (n_queries, n_dims), (n_keys, n_dims)
    scale : float, optional
        Of the scores; default :math:`d^{-1/2}`. Positive.
    as_printed : bool
        Use the prefactor that the lemma prints, :math:`e^{\|q_i\|^2} e^{M}`, which is wrong.

    Returns
    -------
    GaussianInstance

    Examples
    --------
    >>> import numpy as np
    >>> g = attention_to_gaussian(np.array([[1.0, 2.0]]), np.array([[3.0, 0.0], [0.0, 1.0]]))
    >>> K = exact.gaussian_kernel(g.queries, g.keys, g.bandwidth)
    >>> A = np.exp(g.log_prefactor)[:, None] * K
    >>> np.allclose(A, np.exp(np.array([[3.0, 2.0]]) / np.sqrt(2)))
    True
    """
    scale = query.shape[1] ** -0.5 if scale is None else scale
    query_norm = np.einsum("ij,ij->i", query, query, dtype=np.float64)
    key_norm = np.einsum("ij,ij->i", key, key, dtype=np.float64)
    largest = key_norm.max()
    # The longest key may come out a rounding error below 0; its coordinate is 0.
    lift = np.sqrt(np.maximum(largest - key_norm, 0.0)).astype(key.dtype)
    half = 1.0 if as_printed else scale / 2
    return GaussianInstance(
        queries=np.column_stack([query, np.zeros(len(query), query.dtype)]),
        keys=np.column_stack([key, lift]),
        bandwidth=float(scale**-0.5),
        log_prefactor=half * (query_norm + largest),
    )


def weighted_attention_to_gaussian(
    query: Array, key: Array, weights: Float, scale: float | None = None
) -> GaussianInstance:
    r"""Points whose Gaussian kernel is the attention matrix times a diagonal of positive weights.

    With :math:`L_j = \|k_j\|^2 + \frac2s \ln w_j` and :math:`M = \max_j L_j`, append
    :math:`\sqrt{M - L_j}` to the keys: then :math:`e^{s\langle q_i, k_j\rangle} w_j =
    e^{s(\|q_i\|^2 + M)/2} K_{ij}`, and sums of K are densities.

    This is a reconstruction of how KDEformer reduces its weighted densities, from what the paper
    says of it. Next to Lemma 4.1: it depends on the vector, so there is one for each of them; it
    takes positive weights only, so a vector of both signs needs two, whose errors are relative to
    sums without cancellation; and K is smaller by :math:`w_j / \max w` where keys are equally
    long, so a density structure needs a floor lower by :math:`\bar w / \max w`.

    Parameters
    ----------
    query, key : ndarray of shape (n_queries, n_dims), (n_keys, n_dims)
    weights : ndarray of shape (n_keys,)
        Positive.
    scale : float, optional
        Of the scores; default :math:`d^{-1/2}`. Positive.

    Returns
    -------
    GaussianInstance

    Examples
    --------
    >>> import numpy as np
    >>> q, k, w = np.array([[1.0]]), np.array([[2.0], [0.5]]), np.array([0.1, 3.0])
    >>> g = weighted_attention_to_gaussian(q, k, w)
    >>> row = np.exp(g.log_prefactor) * exact.gaussian_kernel(g.queries, g.keys, g.bandwidth)
    >>> np.allclose(row, w * np.exp([2.0, 0.5]))
    True
    """
    if not (weights > 0).all():
        raise ValueError("weights must be positive: this reduction takes their logarithms.")
    scale = query.shape[1] ** -0.5 if scale is None else scale
    query_norm = np.einsum("ij,ij->i", query, query, dtype=np.float64)
    key_norm = np.einsum("ij,ij->i", key, key, dtype=np.float64)
    length = key_norm + 2 / scale * np.log(weights)
    largest = length.max()
    lift = np.sqrt(np.maximum(largest - length, 0.0)).astype(key.dtype)
    return GaussianInstance(
        queries=np.column_stack([query, np.zeros(len(query), query.dtype)]),
        keys=np.column_stack([key, lift]),
        bandwidth=float(scale**-0.5),
        log_prefactor=scale / 2 * (query_norm + largest),
    )


def attention_product(
    query: Array,
    key: Array,
    x: Array,
    scale: float | None = None,
    *,
    product: Callable[[Array, Array, Array, float], Array] = exact.product,
    as_printed: bool = False,
) -> tuple[Float, Float]:
    r"""Multiply :math:`A = \exp(s\,QK^T)` with x by a Gaussian product.

    Parameters
    ----------
    query, key : ndarray of shape (n_queries, n_dims), (n_keys, n_dims)
    x : ndarray of shape (n_keys,) or (n_keys, r)
    scale : float, optional
    product : callable
        Any Gaussian product ``product(queries, keys, x, bandwidth)``.
    as_printed : bool
        See :func:`attention_to_gaussian`.

    Returns
    -------
    y : ndarray
        The Gaussian product.
    log_prefactor : ndarray of shape (n_queries,)
        Row i of A x is ``exp(log_prefactor[i]) * y[i]``. In D⁻¹A x the factor cancels.

    Examples
    --------
    >>> import numpy as np
    >>> q = k = np.eye(2)
    >>> y, log_prefactor = attention_product(q, k, np.ones(2))
    >>> np.allclose(np.exp(log_prefactor) * y, np.exp(2**-0.5) + 1)
    True
    """
    g = attention_to_gaussian(query, key, scale, as_printed=as_printed)
    return np.asarray(product(g.queries, g.keys, x, g.bandwidth), np.float64), g.log_prefactor
