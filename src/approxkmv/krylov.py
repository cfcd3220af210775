"""Krylov iterations for symmetric systems with several right sides: conjugate gradients, MINRES.

Both take one product and one application of the preconditioner per iteration, for all columns that
are not done yet together. Conjugate gradients need a positive definite matrix. MINRES needs a
symmetric one, and makes the residual, as the preconditioner measures it, as small as it can be.
Where the product or the step raises ``OutOfTime``, what was reached so far is the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from approxkmv._deadline import OutOfTime
from approxkmv.loops.types import Float64

Product = Callable[[Float64], Float64]
# Called after each iteration with the lengths of all residuals.
Step = Callable[[Float64], None]


def conjugate_gradients(
    product: Product, precondition: Product, b: Float64, goal: Float64, max_iter: int, step: Step
) -> Float64:
    """Columns of x whose residuals, as computed with the operator, are at most ``goal`` long."""
    x = np.zeros_like(b)
    with suppress(OutOfTime):
        _conjugate_gradients(x, product, precondition, b, goal, max_iter, step)
    return x


def _conjugate_gradients(
    x: Float64,
    product: Product,
    precondition: Product,
    b: Float64,
    goal: Float64,
    max_iter: int,
    step: Step,
) -> None:
    """Start at x = 0 and change it in place: it is as good as it was after the last iteration."""
    left = b.copy()
    z = precondition(left)
    direction, rho = z.copy(), _dots(left, z)
    active = np.linalg.norm(left, axis=0) > goal
    for _ in range(max_iter):
        if not active.any():
            break
        image = product(direction[:, active])
        curvature = _dots(direction[:, active], image)
        # An operator with errors can be indefinite: such a column has reached its noise floor.
        good = curvature > 0
        active[np.flatnonzero(active)[~good]] = False
        length = rho[active] / curvature[good]
        x[:, active] += length * direction[:, active]
        left[:, active] -= length * image[:, good]
        norms = np.linalg.norm(left, axis=0)
        step(norms)
        active &= norms > goal
        z = precondition(left[:, active])
        rho_now = _dots(left[:, active], z)
        direction[:, active] = z + (rho_now / rho[active]) * direction[:, active]
        rho[active] = rho_now


def minres(
    product: Product, precondition: Product, b: Float64, goal: Float64, max_iter: int, step: Step
) -> Float64:
    """Columns of x whose residuals, as computed with the operator, are at most ``goal`` long.

    The preconditioned Lanczos recurrence makes a tridiagonal matrix (delta on its diagonal, gamma
    beside), rotations (c, s) make that triangular, and columns w of what solves it update x. The
    images of w are kept too, so that the residual itself is known and not only its preconditioned
    length.
    """
    x = np.zeros_like(b)
    with suppress(OutOfTime):
        _minres(x, product, precondition, b, goal, max_iter, step)
    return x


def _minres(
    x: Float64,
    product: Product,
    precondition: Product,
    b: Float64,
    goal: Float64,
    max_iter: int,
    step: Step,
) -> None:
    """Start at x = 0 and change it in place: it is as good as it was after the last iteration."""
    norms = np.linalg.norm(b, axis=0)
    left = b.copy()
    active = np.flatnonzero(norms > goal)
    z = precondition(left[:, active])
    square = _dots(z, left[:, active])
    # A preconditioner with errors can be indefinite: such a column has reached its noise floor.
    active, z, gamma = active[square > 0], z[:, square > 0], np.sqrt(square[square > 0])
    v, v_before = left[:, active], np.zeros_like(left[:, active])
    gamma_before = np.ones(len(active))
    eta = gamma
    w, w_before, image, image_before = (np.zeros_like(v) for _ in range(4))
    (c, c_before), (s, s_before) = np.ones((2, len(active))), np.zeros((2, len(active)))
    for _ in range(max_iter):
        if not len(active):
            break
        z = z / gamma
        of_z = product(z)
        delta = _dots(of_z, z)
        v, v_before = of_z - (delta / gamma) * v - (gamma / gamma_before) * v_before, v
        z_next = precondition(v)
        # Rounding can turn a square that should be 0 negative: the space is exhausted.
        gamma_next = np.sqrt(np.maximum(_dots(z_next, v), 0.0))
        on_diagonal = c * delta - c_before * s * gamma
        rotated = np.hypot(on_diagonal, gamma_next)
        above, above_before = s * delta + c_before * c * gamma, s_before * gamma
        # A column that stands still, with nothing left to rotate into, has found what there is.
        moving = rotated > 0
        rotated = np.where(moving, rotated, 1.0)
        c, c_before = on_diagonal / rotated, c
        s, s_before = gamma_next / rotated, s
        w, w_before = (z - above_before * w_before - above * w) / rotated, w
        image, image_before = (of_z - above_before * image_before - above * image) / rotated, image
        x[:, active] += c * eta * w
        left[:, active] -= c * eta * image
        eta = -s * eta
        norms[active] = np.linalg.norm(left[:, active], axis=0)
        step(norms)
        kept = (norms[active] > goal[active]) & moving & (gamma_next > 0)
        active, z, gamma, gamma_before = (
            active[kept],
            z_next[:, kept],
            gamma_next[kept],
            gamma[kept],
        )
        v, v_before, w, w_before, image, image_before = (
            some[:, kept] for some in (v, v_before, w, w_before, image, image_before)
        )
        c, c_before, s, s_before, eta = (some[kept] for some in (c, c_before, s, s_before, eta))


def _dots(a: Float64, b: Float64) -> Float64:
    """Inner products of columns."""
    return np.asarray(np.einsum("ij,ij->j", a, b))
