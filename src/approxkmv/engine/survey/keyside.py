"""What is known of the keys alone: made once, for any number of batches of queries."""

from __future__ import annotations

from dataclasses import dataclass, replace

from approxkmv.kernel.matrix import KernelMatrix, prepare
from approxkmv.loops.compiled import Compiled
from approxkmv.loops.types import Array


@dataclass(frozen=True, eq=False)
class KeySide:
    """Keys, the frame in which distances to them are computed, and their shifts.

    It knows nothing of x or of the queries, and can be pickled.
    """

    among: KernelMatrix  # the keys with themselves

    @classmethod
    def of(cls, keys: Array, bandwidth: float, backend: Compiled) -> KeySide:
        """Prepare the keys."""
        return cls(prepare(keys, keys, bandwidth, backend=backend))

    @property
    def keys(self) -> Array:
        """The keys."""
        return self.among.keys

    @property
    def bandwidth(self) -> float:
        """The bandwidth."""
        return self.among.bandwidth

    def on(self, backend: Compiled) -> KeySide:
        """The same keys, for loops that run elsewhere."""
        return replace(self, among=replace(self.among, backend=backend))

    def __len__(self) -> int:
        return len(self.keys)

    def matrix(self, queries: Array) -> KernelMatrix:
        """The kernel matrix of a batch of queries; a row of it does not depend on the others."""
        kernel = self.among
        if kernel.frame.differences:  # their scale depends on the queries too
            return kernel.between(queries, kernel.keys)
        shift = kernel.frame.shift(queries, kernel.backend)
        return replace(kernel, queries=queries, query_shift=shift)
