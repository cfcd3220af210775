"""Rounding error of the exact product, for points far from the origin and far from each other.

    python docs/measure_offsets.py

prints the two tables of docs/numerics.md. Errors are |y - Kx| / |Kx| with x = 1; Kx comes from
direct differences of the same stored points in long double (80 bits on x86; where it is only a
double, errors below 1e-15 are the rounding of the comparison itself).
"""

from __future__ import annotations

import numpy as np

import approxkmv as akmv

N_QUERIES, N_KEYS, N_DIMS = 300, 2000, 64


def relative_error(y: np.ndarray, exact: np.ndarray) -> float:
    """Length of the error relative to the length of the exact product."""
    return float(np.linalg.norm(y - exact) / np.linalg.norm(exact))


def by_differences(queries: np.ndarray, keys: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Direct differences with every step in the type of the points, bandwidth 1."""
    rows = [np.exp(-0.5 * ((q - keys) ** 2).sum(axis=1)) @ x for q in queries]
    return np.array(rows)


def exact_product(queries: np.ndarray, keys: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The same, every step in long double."""
    return by_differences(*(np.asarray(a, dtype=np.longdouble) for a in (queries, keys, x)))


def by_expansion(queries: np.ndarray, keys: np.ndarray, x: np.ndarray) -> np.ndarray:
    """|q|^2 + |k|^2 - 2 <q, k> about the origin, cut at 0: the usual fast formula."""
    norms = (queries**2).sum(axis=1)[:, None] + (keys**2).sum(axis=1)
    return np.exp(-0.5 * np.maximum(norms - 2 * (queries @ keys.T), 0)) @ x


def main() -> None:
    """Print both tables."""
    rng = np.random.default_rng(0)
    # Distances are about 1 bandwidth.
    spread = 1 / np.sqrt(2 * N_DIMS)
    q, k = (spread * rng.standard_normal((n, N_DIMS)) for n in (N_QUERIES, N_KEYS))
    ones = np.ones(N_KEYS)

    print("| type | offset | approxkmv | direct differences | inner products, not centred |")
    print("| --- | --- | --- | --- | --- |")
    for dtype in (np.float32, np.float64):
        for offset in (0, 1, 10, 100, 1000):
            queries, keys = (q + offset).astype(dtype), (k + offset).astype(dtype)
            x = ones.astype(dtype)
            exact = exact_product(queries, keys, ones)
            errors = [
                relative_error(akmv.matvec(queries, keys, x, bandwidth=1.0), exact),
                relative_error(by_differences(queries, keys, x), exact),
                relative_error(by_expansion(queries, keys, x), exact),
            ]
            cells = " | ".join(f"{error:.1e}" for error in errors)
            print(f"| {np.dtype(dtype).name} | {offset} | {cells} |")

    print("\n| type | radius in bandwidths | form chosen | approxkmv |")
    print("| --- | --- | --- | --- |")
    for dtype in (np.float32, np.float64):
        for distance in (1, 10, 40, 50, 1000, 3000):
            # Half of the points at each end of a segment around the origin.
            ends = distance * np.eye(1, N_DIMS)
            queries, keys = (
                (p + np.where(np.arange(len(p)) % 2, 1, -1)[:, None] * ends).astype(dtype)
                for p in (q, k)
            )
            y, info = akmv.matvec(
                queries, keys, ones.astype(dtype), bandwidth=1.0, return_info=True
            )
            error = relative_error(y, exact_product(queries, keys, ones))
            numbers = info.plan.numbers
            radius = numbers["key_radius_in_bandwidths"]
            print(f"| {np.dtype(dtype).name} | {radius:.0f} | {numbers['form']} | {error:.1e} |")


if __name__ == "__main__":
    main()
