"""Gaussian kernel matrix-vector products with a stated error, and what is built on them."""

# ruff: noqa: E402 - the first lines are about Ctrl-C during the other imports
from approxkmv._interrupts import interrupt_deferred as _interrupt_deferred
from approxkmv._interrupts import leave_while_starting as _leave_while_starting

_leave_while_starting()

from importlib.metadata import version as _version
from typing import TYPE_CHECKING

from approxkmv._threads import register_with_threadpoolctl as _register
from approxkmv._warnings import AccuracyWarning as AccuracyWarning
from approxkmv._warnings import AssumptionWarning as AssumptionWarning
from approxkmv.attention import attention as attention
from approxkmv.functions import RationalQuadratic as RationalQuadratic
from approxkmv.info import AttentionInfo as AttentionInfo
from approxkmv.info import Plan as Plan
from approxkmv.info import ProductInfo as ProductInfo
from approxkmv.product import log_row_sums as log_row_sums
from approxkmv.product import matvec as matvec
from approxkmv.product import row_sums as row_sums

if TYPE_CHECKING:
    from approxkmv import datasets as datasets
    from approxkmv import paper as paper
    from approxkmv import sklearn as sklearn
    from approxkmv import spectrum as spectrum
    from approxkmv import stats as stats
    from approxkmv.diagnosis import Diagnosis as Diagnosis
    from approxkmv.diagnosis import diagnose as diagnose
    from approxkmv.operator import GaussianKernel as GaussianKernel
    from approxkmv.solver import SolveInfo as SolveInfo
    from approxkmv.solver import solve as solve
    from approxkmv.stats import hsic as hsic
    from approxkmv.stats import mmd as mmd

# Loaded when first used: whole parts, and names with the module they come from.
_PARTS = ("datasets", "paper", "sklearn", "spectrum", "stats")
_NAMES = {
    "Diagnosis": "diagnosis",
    "GaussianKernel": "operator",
    "SolveInfo": "solver",
    "diagnose": "diagnosis",
    "hsic": "stats",
    "mmd": "stats",
    "solve": "solver",
}

__all__ = [  # noqa: RUF022 - what is used first comes first
    "matvec",
    "GaussianKernel",
    "row_sums",
    "log_row_sums",
    "attention",
    "diagnose",
    "solve",
    "spectrum",
    "stats",
    "hsic",
    "mmd",
    "sklearn",
    "datasets",
    "paper",
    "ProductInfo",
    "AttentionInfo",
    "SolveInfo",
    "Diagnosis",
    "Plan",
    "RationalQuadratic",
    "AccuracyWarning",
    "AssumptionWarning",
]
__version__ = _version("approxkmv")
_register()


def __getattr__(name: str) -> object:
    """Load the larger parts, and SciPy's linear algebra with the operator, when first used."""
    import importlib

    if name not in _PARTS and name not in _NAMES:
        raise AttributeError(f"module 'approxkmv' has no attribute {name!r}")
    with _interrupt_deferred():
        module = importlib.import_module(f"approxkmv.{_NAMES.get(name, name)}")
    return module if name in _PARTS else getattr(module, name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
