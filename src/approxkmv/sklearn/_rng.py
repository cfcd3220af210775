"""scikit-learn's ``random_state`` as the package's ``rng``."""

from __future__ import annotations

from typing import Any

import numpy as np

from approxkmv import _check


def generator(random_state: Any) -> np.random.Generator:
    """A NumPy Generator from None, an integer, a Generator, or scikit-learn's RandomState."""
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    return _check.generator(random_state)
