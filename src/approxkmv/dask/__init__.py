"""Products, attention and densities of Dask arrays: lazy, on any scheduler.

Needs Dask: ``pip install "approxkmv[dask]"``; for clusters also ``distributed``, which comes with
it. Nothing here computes: every function returns a Dask array whose blocks call the functions of
:mod:`approxkmv` on NumPy arrays.
"""

from __future__ import annotations

from approxkmv._extras import needs as _needs

try:
    import dask.array as _array  # noqa: F401
except ImportError as missing:
    raise ImportError(_needs("approxkmv.dask", "Dask", "dask")) from missing

from approxkmv.blocks.combine import combine_infos as combine_infos
from approxkmv.blocks.product import BlockInfo as BlockInfo
from approxkmv.dask.attention import attention as attention
from approxkmv.dask.density import score_samples as score_samples
from approxkmv.dask.inputs import from_npy as from_npy
from approxkmv.dask.products import log_row_sums as log_row_sums
from approxkmv.dask.products import matvec as matvec
from approxkmv.dask.products import row_sums as row_sums
