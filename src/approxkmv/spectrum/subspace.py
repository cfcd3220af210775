"""Rayleigh-Ritz in a growing subspace: a few products, each of them possibly inexact."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Float = npt.NDArray[np.float64]
# x of length 1 and the error allowed in; K x, and the error it is said to have, out.
Product = Callable[[Float, float], tuple[Float, float]]


class Subspace:
    """An orthonormal basis V and the products Y = K V, from which all else is computed.

    Unlike the three-term recurrence of Lanczos this never trusts an old product to be exact: the
    projected matrix is formed from Y itself, so that errors E of the products move the Ritz value
    of Vs by at most ``|E s|`` and nothing is lost by mixing cheap and tight products.
    """

    def __init__(self, product: Product, n: int) -> None:
        self._product = product
        self.basis: Float = np.empty((n, 0))
        self.products: Float = np.empty((n, 0))
        self.errors: Float = np.empty(0)

    def add(self, direction: Float, eps: float) -> bool:
        """Multiply the part of a direction that is new; False if nothing of it is."""
        known = self.basis
        new = direction / (np.linalg.norm(direction) or 1.0)
        for _ in range(2):  # once loses half the digits where little is new
            new = new - known @ (known.T @ new)
        length = float(np.linalg.norm(new))
        if length < 1e-6:  # the rounding of float32 products
            return False
        new /= length
        y, error = self._product(new, eps)
        self.append(new, y, error)
        return True

    def append(self, vector: Float, product: Float, error: float) -> None:
        """Take in a vector, orthonormal to the basis, whose product is known already."""
        self.basis = np.column_stack([self.basis, vector])
        self.products = np.column_stack([self.products, product])
        self.errors = np.append(self.errors, error)

    def ritz(self, index: int = 0) -> tuple[float, Float, Float, float]:
        """The Ritz pair number ``index`` from the top: value, vector, its product and error."""
        projected = self.basis.T @ self.products
        values, vectors = np.linalg.eigh((projected + projected.T) / 2)
        s = vectors[:, -1 - index]
        # Products of different draws have independent errors, but draws may share a seed: add up.
        error = float(np.abs(s) @ self.errors)
        return float(values[-1 - index]), self.basis @ s, self.products @ s, error

    def residual(self, index: int = 0) -> Float:
        """What the Ritz pair number ``index`` fails by: K v - value v."""
        value, vector, product, _ = self.ritz(index)
        return product - value * vector


def lanczos(product: Product, start: Float, *, tol: float, max_products: int) -> Subspace:
    """Grow a subspace from one vector until the top Ritz pair has a residual below ``tol``.

    ``tol`` is relative to the Ritz value. With exact products this is the Lanczos method.
    """
    space = Subspace(product, len(start))
    grown = space.add(start, 0.0)
    while grown and space.basis.shape[1] < max_products:
        value, vector, y, _ = space.ritz()
        rest = y - value * vector
        if float(np.linalg.norm(rest)) <= tol * abs(value) or not math.isfinite(value):
            break
        grown = space.add(rest, 0.0)
    return space
