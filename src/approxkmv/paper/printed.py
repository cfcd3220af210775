"""Which formulae to run as they are printed, where the paper needs a correction.

``as_printed=True`` runs all of them as printed, ``as_printed={"E7"}`` only that one, so that its
effect can be seen alone. The numbers are those of docs/errata.md.
"""

from __future__ import annotations

from collections.abc import Collection

PRINTED = {
    "E4": "heavy sets over all keys, so that large entries of x are counted twice",
    "E5": "tiny entries of x dropped at any eps",
    "E6": "t_i as the plain sum of the densities of the buckets",
    "E7": "heavy keys subtracted from t_i with unrounded squares",
    "E8": "s_i = t_i - heavy + n^-beta t_i, which may be too small or negative",
    "E9": "nothing added to s_i for buckets below their floor",
    "E10": "buckets closed at both ends",
    "E15": "a coin per key and repetition, and no limit to the repetitions",
}


def printed_formulae(as_printed: bool | Collection[str]) -> frozenset[str]:
    """Names of the formulae to run as printed.

    Examples
    --------
    >>> sorted(printed_formulae({"E7"})), len(printed_formulae(True)), len(printed_formulae(False))
    (['E7'], 8, 0)
    """
    if isinstance(as_printed, bool):
        return frozenset(PRINTED) if as_printed else frozenset()
    names = frozenset({as_printed} if isinstance(as_printed, str) else as_printed)
    if not names <= PRINTED.keys():
        raise ValueError(f"as_printed must name some of {sorted(PRINTED)}, got {sorted(names)}.")
    return names
