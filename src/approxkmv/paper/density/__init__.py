"""Kernel density structures (Theorem 2.2): three behind one protocol, and the exact density."""

from __future__ import annotations

from approxkmv.paper.density.exact import ExactDensity
from approxkmv.paper.density.hashing_based import HashingBasedEstimator
from approxkmv.paper.density.level_sets import LevelSets
from approxkmv.paper.density.protocol import (
    DensityEstimate,
    DensityFactory,
    DensityStructure,
    squared_kernel_bandwidth,
)
from approxkmv.paper.density.uniform import UniformSampling

__all__ = [
    "DensityEstimate",
    "DensityFactory",
    "DensityStructure",
    "ExactDensity",
    "HashingBasedEstimator",
    "LevelSets",
    "UniformSampling",
    "squared_kernel_bandwidth",
]
