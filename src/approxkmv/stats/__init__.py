"""Statistics on kernel matrices too large to store: densities and tests, with SciPy's interface."""

from __future__ import annotations

from approxkmv.stats.density import gaussian_kde as gaussian_kde
from approxkmv.stats.kernel_tests import TestResult as TestResult
from approxkmv.stats.kernel_tests import hsic as hsic
from approxkmv.stats.kernel_tests import mmd as mmd
