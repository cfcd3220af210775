r"""Adaptive budgets, one of the paper's main ideas, next to others at the same cost.

Rows differ in the variance :math:`V_i` of one draw for their light keys. With :math:`m_i` draws the
squared error of row i is :math:`V_i / m_i`. At a given number of draws for all rows together,

- equal :math:`m_i` and :math:`m_i \propto V_i`, the paper's :math:`s_i`, have **the same** total
  squared error; the second makes all rows equally good, which Lemma 3.5 asks for: its largest error
  of a row is the least there is;
- :math:`m_i \propto \sqrt{V_i}` (Neyman) has the least total, by the factor :math:`1 + CV^2` of the
  :math:`\sqrt{V_i}`;
- 1.5 times the draws for rows above the mean variance (the paper's runtime experiment) is between.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]

_SHARES: dict[str, Callable[[Float], Float]] = {
    "uniform": np.ones_like,
    "proportional": lambda v: v,
    "one and a half": lambda v: np.where(v > v.mean(), 1.5, 1.0),
    "Neyman": np.sqrt,
}
POLICIES = tuple(_SHARES)


def budgets(policy: str, variances: Float, n_draws: float) -> Float:
    """Draws of each row, not rounded, ``n_draws`` of them together; none for rows without variance.

    Examples
    --------
    >>> [budgets(policy, np.array([1.0, 4.0]), 10).round(2).tolist() for policy in POLICIES]
    [[5.0, 5.0], [2.0, 8.0], [4.0, 6.0], [3.33, 6.67]]
    """
    shares = np.where(variances > 0, _SHARES[policy](variances), 0.0)
    return np.asarray(n_draws * shares / shares.sum())


def squared_errors(variances: Float, draws: Float) -> Float:
    """Expected squared error of each row.

    Examples
    --------
    >>> squared_errors(np.array([1.0, 4.0, 0.0]), np.array([2.0, 8.0, 0.0])).tolist()
    [0.5, 0.5, 0.0]
    """
    return np.divide(variances, draws, out=np.zeros_like(variances), where=variances > 0)


def attention_variances(
    query: Float, key: Float, value: Float, scale: float, *, heavy: float
) -> Float:
    r"""Variance of one uniform draw for each row of attention, linearised in the row sum.

    :math:`V_i = n \sum_{L_i} P_{ij}^2 \|v_j - o_i\|^2 - \|\sum_{L_i} P_{ij} (v_j - o_i)\|^2`, where
    :math:`L_i` are the keys with :math:`P_{ij}` below ``heavy`` and the others are computed.

    Examples
    --------
    >>> q = k = np.zeros((1, 1)), np.zeros((2, 1))
    >>> attention_variances(q[0], k[1], np.array([[1.0], [-1.0]]), 1.0, heavy=2.0).tolist()
    [1.0]
    """
    logs = scale * (query @ key.T)
    P = np.exp(logs - logs.max(axis=1, keepdims=True))
    P /= P.sum(axis=1, keepdims=True)
    output = P @ value
    light = np.where(heavy > P, P, 0.0)
    # |v_j - o_i|^2 without an array of rows x keys x columns
    norms = (value**2).sum(axis=1) - 2 * output @ value.T + (output**2).sum(axis=1)[:, None]
    missing = light @ value - light.sum(axis=1, keepdims=True) * output
    second = len(key) * np.einsum("ij,ij->i", light**2, np.maximum(norms, 0.0))
    return np.asarray(np.maximum(second - (missing**2).sum(axis=1), 0.0))
