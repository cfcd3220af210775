"""Attention, densities and tables of other packages as Dask arrays."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

import approxkmv as akmv
from approxkmv import dask as akda
from approxkmv.datasets import clusters
from approxkmv.engine.policy import SharedDraw
from approxkmv.engine.survey.shared_draw import SumsProblem
from approxkmv.sklearn import KernelDensity


@pytest.fixture(scope="module")
def heads() -> tuple[Any, Any, Any]:
    """Two texts, four heads of the query, 30 tokens."""
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal((2, 4, 30, c)) for c in (8, 8, 5))  # type: ignore[return-value]


@pytest.mark.parametrize("chunks", [(1, 2, -1, -1), (2, 1, 10, -1), ((1, 1), (3, 1), (7, 23), -1)])
def test_attention_of_chunks_is_attention(heads: tuple[Any, Any, Any], chunks: Any) -> None:
    """Lazy, with the chunks and the type of the query; keys and values in memory or in chunks."""
    query, key, value = heads
    q = da.from_array(query.astype(np.float32), chunks=chunks)
    for k, v in ((key, value), (da.from_array(key, (1, 2, -1, -1)), da.from_array(value))):
        output, infos = akda.attention(q, k, v, return_info=True)
        assert isinstance(output, da.Array)
        assert output.chunks == (*q.chunks[:-1], (5,))
        assert output.dtype == output._meta.dtype == np.float64
        assert infos.shape == q.numblocks[:-1]
        found, records = dask.compute(output, infos, scheduler="synchronous")
        np.testing.assert_allclose(found, akmv.attention(query, key, value), atol=1e-6)
        assert {record.method for record in records.flat} == {"exact"}


def test_grouped_causal_and_masked_attention(heads: tuple[Any, Any, Any]) -> None:
    query, key, value = heads
    q = da.from_array(query, chunks=(1, 2, -1, -1))
    grouped = {"enable_gqa": True, "is_causal": True}
    few = key[:, :2], value[:, :2]
    found = akda.attention(q, *few, **grouped).compute(scheduler="synchronous")
    np.testing.assert_allclose(found, akmv.attention(query, *few, **grouped), atol=1e-14)
    rows = da.from_array(query, chunks=(1, 4, 10, -1))
    for shape in ((30, 30), (2, 1, 30, 30), (4, 1, 30)):
        mask = np.random.default_rng(1).random(shape) < 0.7
        for given in (mask, da.from_array(mask, chunks=7)):
            found = akda.attention(rows, key, value, attn_mask=given).compute()
            expected = akmv.attention(query, key, value, attn_mask=mask)
            np.testing.assert_allclose(found, expected, atol=1e-14)


def test_leading_dimensions_broadcast(heads: tuple[Any, Any, Any]) -> None:
    query, key, value = heads
    for q, k, v in (
        (query[:1], key, value),
        (query[0], key, value),
        (query, key[:, :1], value[0, 0]),
    ):
        lazy = akda.attention(da.from_array(q, chunks=1).rechunk({-2: 10, -1: -1}), k, v)
        expected = akmv.attention(q, k, v)
        assert lazy.shape == expected.shape
        np.testing.assert_allclose(lazy.compute(scheduler="synchronous"), expected, atol=1e-14)


def test_sampled_attention_has_the_same_bits_and_meets_eps() -> None:
    """Two chunks of the queries of a head: shares of its error add up in squares."""
    rng = np.random.default_rng(3)
    query, key, value = (rng.standard_normal((1, 12288, c)).astype(np.float32) for c in (16, 16, 8))
    lazy, infos = akda.attention(
        da.from_array(query, chunks=(1, 6144, -1)), key, value, eps=0.02, rng=1, return_info=True
    )
    found, records = dask.compute(lazy, infos, scheduler="synchronous")
    assert {info.method for info in records.flat} == {"sampled"}
    exact = akmv.attention(query, key, value, method="exact")
    error = np.linalg.norm(found - exact) / np.linalg.norm(value)
    assert 0 < error <= 0.02
    estimate = math.hypot(*(info.error_estimate for info in records.flat))
    assert error / 2 < estimate <= 0.02
    assert lazy.compute(scheduler="threads").tobytes() == found.tobytes()
    assert found[0, :6144].tobytes() != found[0, 6144:].tobytes()


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"query": np.ones((1, 6, 4))}, TypeError, "query must be a Dask array"),
        ({"query": da.ones((1, 6, 4), chunks=2)}, ValueError, r"rechunk\(\{-1: -1\}\)"),
        ({"key": da.ones((1, 9, 4), chunks=3)}, ValueError, r"rechunk\(\{-2: -1, -1: -1\}\)"),
        ({"key": np.ones((1, 9, 3))}, ValueError, "key must have 4 columns"),
        ({"value": np.ones((1, 8, 3))}, ValueError, "value must have 9 rows"),
        ({"value": np.ones((3, 9, 3))}, ValueError, "must broadcast"),
        ({"attn_mask": np.ones((5, 9), bool)}, ValueError, "attn_mask must broadcast"),
        ({"is_causal": True}, ValueError, "one chunk where is_causal"),
        ({"method": "paper"}, ValueError, "method"),
        ({"eps": -1}, ValueError, "eps"),
        ({"key": dask.delayed(np.ones)((1, 9, 4))}, TypeError, "key must be an array"),
    ],
)
def test_mistakes_in_attention(change: Any, kind: type[Exception], message: str) -> None:
    arrays = {
        "query": da.ones((2, 6, 4), chunks=(1, 3, -1)),
        "key": np.ones((2, 9, 4)),
        "value": np.ones((2, 9, 3)),
    } | change
    with pytest.raises(kind, match=message):
        akda.attention(arrays.pop("query"), arrays.pop("key"), arrays.pop("value"), **arrays)


def test_groups_are_not_cut(heads: tuple[Any, Any, Any]) -> None:
    query, key, value = heads
    q = da.from_array(query, chunks=(1, 1, -1, -1))
    with pytest.raises(ValueError, match="whole groups"):
        akda.attention(q, key[:, :2], value[:, :2], enable_gqa=True)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("sampled", [False, True])
def test_densities_of_a_dask_array(sampled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lazy, and the bits of one call: a row does not depend on the others."""
    monkeypatch.setattr(SumsProblem, "settings", SharedDraw(worth=3.0))
    points = clusters(4096, 64, rng=0)[1]
    model = KernelDensity(2.1, method="auto" if sampled else "exact", random_state=0).fit(points)
    assert model.method_ == ("sampled" if sampled else "exact")
    some = clusters(200, 64, rng=0)[0]
    lazy = model.score_samples(da.from_array(some, chunks=((70, 0, 130), -1)))
    assert isinstance(lazy, da.Array)
    assert lazy.chunks == ((70, 0, 130),)
    assert lazy.dtype == lazy._meta.dtype == np.float64
    expected = model.score_samples(some)
    for scheduler in ("synchronous", "threads", "processes"):
        assert lazy.compute(scheduler=scheduler).tobytes() == expected.tobytes()
    assert sum(dask.base.key_split(key) == "density" for key in dict(lazy.dask)) == 1


def test_densities_refuse_what_they_cannot_compute() -> None:
    model = KernelDensity().fit(np.zeros((3, 2)))
    with pytest.raises(ValueError, match="X must have 2 columns"):
        model.score_samples(da.ones((4, 3), chunks=(2, -1)))
    with pytest.raises(ValueError, match="columns in one chunk"):
        model.score_samples(da.ones((4, 2), chunks=(2, 1)))


def test_pandas_polars_and_xarray() -> None:
    """Tables are arrays of their columns; xarray maps over its blocks, lazily."""
    import pandas
    import polars
    import xarray

    rng = np.random.default_rng(0)
    queries, keys, x = rng.standard_normal((40, 3)), rng.standard_normal((30, 3)), np.ones(30)
    expected = akmv.matvec(queries, keys, x, bandwidth=1.0)
    columns = ["a", "b", "c"]
    q = da.from_array(queries, chunks=(10, -1))
    for table, entries in (
        (pandas.DataFrame(keys, columns=columns), pandas.Series(x)),
        (polars.DataFrame(keys, schema=columns), polars.Series(x)),
        (xarray.DataArray(keys, dims=("key", "d")), xarray.DataArray(x, dims="key")),
    ):
        np.testing.assert_array_equal(akmv.matvec(queries, table, entries, bandwidth=1.0), expected)
        lazy = akda.matvec(q, table, entries, bandwidth=1.0)
        np.testing.assert_allclose(lazy.compute(scheduler="synchronous"), expected, atol=1e-13)
    given = xarray.DataArray(q, dims=("query", "d"), coords={"query": np.arange(40) / 4})
    found = xarray.apply_ufunc(
        lambda points: akmv.matvec(points, keys, x, bandwidth=1.0, method="exact"),
        given,
        input_core_dims=[["d"]],
        dask="parallelized",
        output_dtypes=[float],
    )
    assert isinstance(found.data, da.Array)
    assert found.dims == ("query",)
    np.testing.assert_allclose(found.compute(), expected, atol=1e-13)
    np.testing.assert_array_equal(found["query"], np.arange(40) / 4)
    with pytest.raises(TypeError, match=r"its Dask array \(.data"):
        akda.matvec(q, given, np.ones(40), bandwidth=1.0)


def test_a_file_of_queries(tmp_path: Path) -> None:
    """Densities of points in a file, read by the tasks."""
    points = np.random.default_rng(0).standard_normal((50, 2))
    np.save(tmp_path / "p.npy", points)
    model = KernelDensity(bandwidth=0.5).fit(points)
    lazy = model.score_samples(akda.from_npy(tmp_path / "p.npy", rows=20))
    np.testing.assert_array_equal(lazy.compute(), model.score_samples(points))
