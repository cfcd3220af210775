"""Counter-based random words: the published answer, and NumPy's generator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from approxkmv.loops import reference
from approxkmv.loops.compiled import Compiled

WORDS = st.integers(0, 2**64 - 1)


def test_known_answer() -> None:
    """Zero key and zero counter (Salmon, Moraes, Dror, Shaw 2011, Random123's known answers)."""
    words = Compiled().philox(0, 0, 0, 1)
    assert words.dtype == np.uint64
    assert [f"{int(w):016x}" for w in words[0]] == [
        "16554d9eca36314c",
        "db20fe9d672d0fdc",
        "d7e772cee186176b",
        "7e68b68aec7ba23b",
    ]


@given(seed=WORDS, stream=WORDS, first=WORDS, n=st.integers(0, 5))
def test_against_numpy(seed: int, stream: int, first: int, n: int) -> None:
    """Any key and counter gives NumPy's words."""
    np.testing.assert_array_equal(
        Compiled().philox(seed, stream, first, n), reference.philox(seed, stream, first, n)
    )


def test_counter_carries_into_its_second_word() -> None:
    """Counting past 2^64 goes on as a 256-bit counter does."""
    first = 2**64 - 2
    np.testing.assert_array_equal(
        Compiled().philox(1, 2, first, 5), reference.philox(1, 2, first, 5)
    )


@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 10, 50, 257])
def test_a_draw_is_a_function_of_its_counter(n: int) -> None:
    """Words do not depend on where a block of draws starts or ends."""
    everything = Compiled().philox(7, 3, 100, 300)
    np.testing.assert_array_equal(Compiled().philox(7, 3, 100 + 300 - n, n), everything[300 - n :])


def test_keys_and_streams_differ() -> None:
    """Seed, stream and counter each change every word of a block."""
    base = Compiled().philox(1, 1, 1, 1)
    for other in (
        Compiled().philox(2, 1, 1, 1),
        Compiled().philox(1, 2, 1, 1),
        Compiled().philox(1, 1, 2, 1),
    ):
        assert (base != other).all()
