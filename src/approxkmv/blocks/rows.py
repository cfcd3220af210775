"""Rows of an array in a file, read piece by piece: what travels between processes is the path."""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from approxkmv import _check
from approxkmv.files import read_array


@dataclass(frozen=True)
class FileRows:
    """Consecutive rows of a C-ordered array in a file.

    Attributes
    ----------
    path : str
        The file, which every process that reads must see under this name.
    offset : int
        Bytes before the first row.
    dtype : dtype
        As stored.
    shape : tuple of int
        Number of rows, then the shape of a row.
    """

    path: str
    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def piece(self, start: int, stop: int) -> FileRows:
        """Rows ``start`` to ``stop`` of these, still in the file."""
        rows = max(0, min(stop, len(self)) - start)
        offset = self.offset + start * self.row_bytes
        return replace(self, offset=offset, shape=(rows, *self.shape[1:]))

    def read(self) -> npt.NDArray[Any]:
        """Read the rows into memory; nothing of the file stays mapped."""
        size = math.prod(self.shape)
        flat = np.fromfile(self.path, self.dtype, size, offset=self.offset)
        if len(flat) != size:
            raise ValueError(f"{self.path}: the file became shorter while it was in use")
        return flat.reshape(self.shape)

    def map(self) -> npt.NDArray[Any]:
        """Map the rows read-only: processes of one machine share their memory."""
        if math.prod(self.shape) == 0:  # an empty region cannot be mapped
            return np.empty(self.shape, self.dtype)
        return np.memmap(self.path, self.dtype, "r", self.offset, self.shape)


def as_rows(value: Any, name: str) -> FileRows | npt.NDArray[Any]:
    """Rows in a file for a path to a ``.npy`` file or an array mapped from one; else an array.

    Fortran order, other formats and private (copy-on-write) maps are arrays in memory.
    """
    if isinstance(value, str | os.PathLike):
        value = read_array(value, memory_map=True)
    found = _mapped(value) if isinstance(value, np.memmap) else None
    return np.asarray(_check.plain(value, name)) if found is None else found


def _mapped(array: np.memmap[Any, Any]) -> FileRows | None:
    """Where in its file a mapped array, or a view of one, begins."""
    region: Any = getattr(array, "_mmap", None)
    usable = region is not None and array.filename is not None and array.mode != "c"
    if not usable or not array.flags.c_contiguous or array.ndim == 0 or array.size == 0:
        return None
    # The map begins at a whole page of the file, the array where its own address says.
    page = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    begin = np.frombuffer(region, np.uint8).ctypes.data
    offset = page + array.ctypes.data - begin
    return FileRows(os.path.abspath(str(array.filename)), offset, array.dtype, array.shape)
