r"""The kernels: functions of the squared distance, the one place in Python that says what each is.

Everything else knows of a kernel what is written here: its value where the exponent of the Gaussian
is :math:`t=-r^2/(2\sigma^2)`, how steep it is, and what it can do. The compiled loops have the same
formulas in ``cpp/kernel_function.hpp``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]

_BISECTIONS = 200  # of the logarithm of an exponent, from 1e300 to 1e-300: to the last few digits


@dataclass(frozen=True)
class KernelFunction:
    """A positive function that is 1 at distance 0 and falls with the distance.

    A new one has a formula in NumPy here and one in ``cpp/kernel_function.hpp``.
    """

    name: ClassVar[str]
    family: ClassVar[int]  # its number in cpp/kernel_function.hpp
    # Whether the value of a sum of squared distances is the product of the values. What takes a
    # kernel apart is for such a one only: polynomials of inner products, means over cells of
    # points, pairs looked at in a few of their coordinates first.
    factorises: ClassVar[bool] = False
    # Whether it falls to the smallest number before squared distances overflow.
    vanishes: ClassVar[bool] = True

    @property
    def parameter(self) -> float:
        """What the formula depends on besides the distance; 0 where there is nothing."""
        return 0.0

    @property
    def shown(self) -> str:
        """Name and parameter."""
        return f"{self.name}, alpha={self.parameter:g}" if self.parameter else self.name

    def value(self, exponents: Float64) -> Float64:
        """Values where the exponents of the Gaussian are these, at most 0."""
        raise NotImplementedError

    def steepness(self, exponents: Float64) -> Float64:
        """By how much, relative to the value, a small change of these exponents is magnified.

        It falls with the distance; infinite at 0 means a kink there.
        """
        raise NotImplementedError

    @property
    def slope(self) -> Slope:
        """The derivative with respect to the exponent of the Gaussian, which is such a function."""
        raise NotImplementedError

    @property
    def steepest(self) -> float:
        """The steepness at distance 0, the largest."""
        return float(self.steepness(np.zeros(1))[0])

    def exponent_at(self, value: float) -> float:
        """The exponent of the Gaussian at which this kernel has a value; at least -1e300."""
        if value >= 1:
            return 0.0
        least, most = -1e300, -1e-300
        for _ in range(_BISECTIONS):
            middle = -math.sqrt(-least) * math.sqrt(-most)
            if float(self.value(np.array([middle]))[0]) >= value:
                most = middle
            else:
                least = middle
        return most


class Slope(NamedTuple):
    """``factor`` times a kernel whose bandwidth is ``width`` times as wide."""

    factor: float
    function: KernelFunction
    width: float = 1.0


@dataclass(frozen=True)
class Gaussian(KernelFunction):
    r""":math:`\exp(-r^2/(2\sigma^2))`, the default: ``kernel="gaussian"``."""

    name: ClassVar[str] = "gaussian"
    family: ClassVar[int] = 0
    factorises: ClassVar[bool] = True

    def value(self, exponents: Float64) -> Float64:  # noqa: D102
        return np.asarray(np.exp(exponents))

    def steepness(self, exponents: Float64) -> Float64:  # noqa: D102
        return np.ones_like(exponents)

    @property
    def slope(self) -> Slope:  # noqa: D102
        return Slope(1.0, self)

    def exponent_at(self, value: float) -> float:  # noqa: D102
        return math.log(value)


@dataclass(frozen=True)
class Laplacian(KernelFunction):
    r""":math:`\exp(-r/\sigma)`, r the Euclidean distance: ``kernel="laplacian"`` or ``"matern12"``.

    The "laplacian" of scikit-learn has the sum of absolute differences in the place of r.
    """

    name: ClassVar[str] = "laplacian"
    family: ClassVar[int] = 1

    def value(self, exponents: Float64) -> Float64:  # noqa: D102
        return np.asarray(np.exp(-_length(exponents, 1)))

    def steepness(self, exponents: Float64) -> Float64:  # noqa: D102
        with np.errstate(divide="ignore"):
            return np.asarray(1 / _length(exponents, 1))

    @property
    def slope(self) -> Slope:  # noqa: D102
        return Slope(1.0, LaplacianSlope())


@dataclass(frozen=True)
class LaplacianSlope(KernelFunction):
    r""":math:`e^{-r/\sigma}\sigma/r`, and 0 at distance 0: for gradients, not a kernel itself."""

    name: ClassVar[str] = "slope of the laplacian"
    family: ClassVar[int] = 5

    def value(self, exponents: Float64) -> Float64:  # noqa: D102
        r = _length(exponents, 1)
        return np.divide(np.exp(-r), r, out=np.zeros_like(r), where=r > 0)

    def steepness(self, exponents: Float64) -> Float64:  # noqa: D102
        r = _length(exponents, 1)
        with np.errstate(divide="ignore"):
            return np.asarray((1 + 1 / r) / r)


@dataclass(frozen=True)
class Matern32(KernelFunction):
    r""":math:`(1+a)e^{-a}` with :math:`a=\sqrt3r/\sigma`: ``kernel="matern32"``."""

    name: ClassVar[str] = "matern32"
    family: ClassVar[int] = 2

    def value(self, exponents: Float64) -> Float64:  # noqa: D102
        a = _length(exponents, 3)
        return np.asarray((1 + a) * np.exp(-a))

    def steepness(self, exponents: Float64) -> Float64:  # noqa: D102
        return np.asarray(3 / (1 + _length(exponents, 3)))

    @property
    def slope(self) -> Slope:  # noqa: D102
        return Slope(3.0, Laplacian(), 3**-0.5)


@dataclass(frozen=True)
class Matern52(KernelFunction):
    r""":math:`(1+a+a^2/3)e^{-a}` with :math:`a=\sqrt5r/\sigma`: ``kernel="matern52"``."""

    name: ClassVar[str] = "matern52"
    family: ClassVar[int] = 3

    def value(self, exponents: Float64) -> Float64:  # noqa: D102
        a = _length(exponents, 5)
        return np.asarray((1 + a + a * a / 3) * np.exp(-a))

    def steepness(self, exponents: Float64) -> Float64:  # noqa: D102
        a = _length(exponents, 5)
        return np.asarray(5 / 3 * (1 + a) / (1 + a + a * a / 3))

    @property
    def slope(self) -> Slope:  # noqa: D102
        return Slope(5 / 3, Matern32(), (3 / 5) ** 0.5)


@dataclass(frozen=True)
class RationalQuadratic(KernelFunction):
    r""":math:`(1+r^2/(2\alpha\sigma^2))^{-\alpha}`: ``kernel=RationalQuadratic(alpha=...)``.

    A mean of Gaussians of many bandwidths, the more alike the larger :math:`\alpha` is; it falls
    like a power of the distance. ``kernel="rational_quadratic"`` has :math:`\alpha=1`.

    Parameters
    ----------
    alpha : float
        Positive.

    Examples
    --------
    >>> import approxkmv as akmv
    >>> kernel = akmv.RationalQuadratic(alpha=2.0)
    >>> akmv.row_sums([[0.0], [2.0]], [[0.0]], bandwidth=1.0, kernel=kernel)
    array([1.  , 0.25])
    """

    name: ClassVar[str] = "rational_quadratic"
    family: ClassVar[int] = 4
    vanishes: ClassVar[bool] = False

    alpha: float = 1.0

    def __post_init__(self) -> None:
        alpha = self.alpha
        if isinstance(alpha, bool) or not isinstance(alpha, int | float | np.number):
            raise TypeError(f"alpha must be a number, got {type(alpha).__name__}.")
        if not (_LEAST_ALPHA <= alpha <= _MOST_ALPHA):
            raise ValueError(
                f"alpha must be from {_LEAST_ALPHA:g} to {_MOST_ALPHA:g}, got {alpha!r}."
            )

    @property
    def parameter(self) -> float:  # noqa: D102
        return float(self.alpha)

    def value(self, exponents: Float64) -> Float64:  # noqa: D102
        return np.asarray(np.exp(-self.parameter * np.log1p(-exponents / self.parameter)))

    def steepness(self, exponents: Float64) -> Float64:  # noqa: D102
        return np.asarray(1 / (1 - exponents / self.parameter))

    @property
    def slope(self) -> Slope:  # noqa: D102
        more = self.parameter + 1
        return Slope(1.0, RationalQuadratic(more), (self.parameter / more) ** 0.5)


# Below, the kernel is 1 at all distances a float can hold; above, it is the Gaussian to the digit.
_LEAST_ALPHA, _MOST_ALPHA = 1e-3, 1e12

GAUSSIAN = Gaussian()
# What ``kernel=`` takes besides these objects.
NAMED: dict[str, KernelFunction] = {
    "gaussian": GAUSSIAN,
    "laplacian": Laplacian(),
    "matern12": Laplacian(),
    "matern32": Matern32(),
    "matern52": Matern52(),
    "rational_quadratic": RationalQuadratic(),
}


def restored(name: str, parameter: float) -> KernelFunction:
    """The kernel of this name and parameter."""
    if name == RationalQuadratic.name:
        return RationalQuadratic(parameter)
    return NAMED[name]


def _length(exponents: Float64, factor: float) -> Float64:
    """Root of a factor times the squared distance in bandwidths."""
    return np.asarray(np.sqrt(2.0 * factor * np.abs(exponents)))
