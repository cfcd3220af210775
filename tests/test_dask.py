"""Products of Dask arrays: lazy, right on every scheduler, same bits whoever computes them."""

from __future__ import annotations

import math
import os
import pickle
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster

import approxkmv as akmv
from approxkmv import dask as akda
from approxkmv.datasets import clusters


@pytest.fixture(scope="module")
def small() -> tuple[Any, Any, Any]:
    """Queries, keys and x of a product that is always exact."""
    rng = np.random.default_rng(3)
    return rng.standard_normal((70, 5)), rng.standard_normal((50, 5)), rng.standard_normal(50)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            host="127.0.0.1",
        ) as cluster,
        Client(cluster) as connected,
    ):
        yield connected


@pytest.fixture(scope="module")
def sampled() -> tuple[Any, Any, Any, float]:
    """A product of two by two blocks, each just large enough to be sampled."""
    queries, keys, bandwidth = clusters(131072, n_queries=32768, rng=0)
    x = np.random.default_rng(1).standard_normal(131072).astype(np.float32)
    return queries, keys, x, 0.8 * bandwidth


def lazy(problem: tuple[Any, Any, Any, float], **options: Any) -> Any:
    queries, keys, x, bandwidth = problem
    return akda.matvec(
        da.from_array(queries, chunks=(16384, -1)),
        da.from_array(keys, chunks=(65536, -1)),
        x,
        bandwidth=bandwidth,
        rng=5,
        merge_chunks=False,
        **options,
    )


def key_forms(keys: Any, folder: Path) -> dict[str, Any]:
    np.save(folder / "keys.npy", keys)
    mapped = np.load(folder / "keys.npy", mmap_mode="r")
    return {
        "array": keys,
        "path": folder / "keys.npy",
        "mapped": mapped,
        "delayed": dask.delayed(keys),
        "chunks": da.from_array(keys, chunks=(20, 2)).rechunk({1: -1}),
    }


@pytest.mark.parametrize("columns", [None, 1, 3])
@pytest.mark.parametrize("form", ["array", "path", "mapped", "delayed", "chunks"])
def test_forms_of_the_keys(
    small: tuple[Any, Any, Any], form: str, columns: int | None, tmp_path: Path
) -> None:
    """All are lazy, with the chunks of the queries, and give the product."""
    queries, keys, x = small
    x = x if columns is None else np.outer(x, np.arange(1.0, columns + 1))
    expected = akmv.matvec(queries, keys, x, bandwidth=1.3, method="exact")
    q = da.from_array(queries, chunks=((30, 0, 40), -1))
    y = akda.matvec(q, key_forms(keys, tmp_path)[form], x, bandwidth=1.3)
    assert isinstance(y, da.Array)
    assert y.chunks[0] == (30, 0, 40)
    assert y.dtype == y._meta.dtype == np.float64
    assert y._meta.ndim == y.ndim == expected.ndim
    found = y.compute(scheduler="synchronous")
    assert found.dtype == y.dtype
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13 * np.abs(expected).max())
    # Parts of it are computed from the blocks they need.
    np.testing.assert_array_equal(y[35:40].compute(scheduler="synchronous"), found[35:40])


@pytest.mark.parametrize("form", ["array", "path", "mapped", "delayed", "chunks"])
def test_forms_of_x(small: tuple[Any, Any, Any], form: str, tmp_path: Path) -> None:
    queries, keys, x = small
    np.save(tmp_path / "x.npy", x)
    forms = {
        "array": x.tolist(),
        "path": str(tmp_path / "x.npy"),
        "mapped": np.load(tmp_path / "x.npy", mmap_mode="r"),
        "delayed": dask.delayed(x),
        "chunks": da.from_array(x, chunks=7),
    }
    parts = keys if form == "delayed" else da.from_array(keys, chunks=(20, -1))
    q = da.from_array(queries, chunks=(40, -1))
    y = akda.matvec(q, parts, forms[form], bandwidth=1.3, eps=0)
    expected = akmv.matvec(queries, keys, x, bandwidth=1.3, eps=0)
    np.testing.assert_allclose(y.compute(scheduler="synchronous"), expected, atol=1e-13)


@pytest.mark.parametrize(
    "types", [(np.float32, np.float32), (np.float32, np.float64), (np.float16, np.int64)]
)
def test_types_are_those_of_matvec(small: tuple[Any, Any, Any], types: tuple[Any, Any]) -> None:
    queries, keys, x = small[0].astype(types[0]), small[1].astype(types[1]), small[2]
    y = akda.matvec(da.from_array(queries, chunks=(40, -1)), keys, x, bandwidth=1.3)
    expected = akmv.matvec(queries, keys, x, bandwidth=1.3)
    found = y.compute(scheduler="synchronous")
    assert y.dtype == found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_nothing_is_computed_and_no_client_is_needed(
    small: tuple[Any, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way to compute is broken while the arrays are made."""
    queries, keys, _ = small
    touched = da.from_array(queries, chunks=(40, -1)).map_blocks(_fail, dtype=np.float64)
    monkeypatch.setattr(da.Array, "compute", _fail)
    monkeypatch.setattr(dask, "compute", _fail)
    for keys_as in (keys, None):
        n = 70 if keys_as is None else 50
        akda.matvec(touched, keys_as, np.ones(n), bandwidth=1.0)
        akda.row_sums(touched, keys_as, bandwidth=1.0)
        akda.log_row_sums(touched, keys_as, bandwidth=1.0)


def _fail(*_: Any, **__: Any) -> None:
    raise AssertionError("something was computed")


@pytest.mark.parametrize("chunk", [None, 20])
def test_row_sums(small: tuple[Any, Any, Any], chunk: int | None) -> None:
    """Sums and their logarithms, weighted or not, over keys in one chunk or in several."""
    queries, keys, x = small
    q = da.from_array(queries, chunks=(40, -1))
    k = keys if chunk is None else da.from_array(keys, chunks=(chunk, -1))
    with dask.config.set(scheduler="synchronous"):
        sums = akda.row_sums(q, k, bandwidth=0.7).compute()
        logs = akda.log_row_sums(q, k, bandwidth=0.7, weights=np.abs(x)).compute()
        plain = akda.log_row_sums(q, k, bandwidth=1e-3).compute()
    np.testing.assert_allclose(sums, akmv.row_sums(queries, keys, bandwidth=0.7), rtol=1e-12)
    expected = akmv.log_row_sums(queries, keys, bandwidth=0.7, weights=np.abs(x))
    np.testing.assert_allclose(logs, expected, rtol=1e-12)
    assert np.isfinite(plain).all()  # every kernel value underflows
    np.testing.assert_allclose(plain, akmv.log_row_sums(queries, keys, bandwidth=1e-3), rtol=1e-12)


def test_many_key_chunks_are_added_in_order(small: tuple[Any, Any, Any]) -> None:
    """More than one task adds at once: still the same numbers, and the same bits every time."""
    queries, keys, x = small
    q = da.from_array(queries, chunks=(40, -1))
    y = akda.matvec(q, da.from_array(keys, chunks=(1, -1)), x, bandwidth=1.3)
    once, again = (y.compute(scheduler=s) for s in ("synchronous", "threads"))
    assert once.tobytes() == again.tobytes()
    np.testing.assert_allclose(once, akmv.matvec(queries, keys, x, bandwidth=1.3), atol=1e-12)


def test_same_bits_on_every_scheduler_within_eps(
    sampled: tuple[Any, Any, Any, float], client: Client
) -> None:
    """One thread and two, one process and two; and the answer is a sampled one within eps."""
    queries, keys, x, bandwidth = sampled
    y, infos = lazy(sampled, eps=0.15, return_info=True)
    first, records = dask.compute(y, infos, scheduler="synchronous")
    info = akda.combine_infos(records)
    assert info.method == "sampled"
    assert info.plan.numbers["blocks_sampled"] == 4
    rows = slice(None, None, 8)
    exact = akmv.matvec(queries[rows], keys, x, bandwidth=bandwidth, method="exact")
    error = float(math.sqrt(8) * np.linalg.norm(first[rows] - exact) / np.linalg.norm(x))
    assert 1e-4 < error <= 0.15
    # The estimate is of a root mean square; one draw of thousands of keys is close to it.
    assert info.error_estimate is not None
    assert error / 2 < info.error_estimate <= 0.15
    assert info.error_bound is not None
    assert info.error_bound >= info.error_estimate
    for scheduler in ("threads", client):
        assert y.compute(scheduler=scheduler).tobytes() == first.tobytes()


def test_same_bits_after_a_worker_was_killed(
    sampled: tuple[Any, Any, Any, float], client: Client
) -> None:
    """One of two workers is killed while it computes: its tasks run again, with the same bits."""
    y = lazy(sampled, eps=0.15)
    want = y.compute(scheduler="synchronous").tobytes()
    future = client.compute(y)
    victim, end = None, time.monotonic() + 60
    while victim is None:
        assert time.monotonic() < end
        assert not future.done()
        busy = [worker for worker, tasks in client.processing().items() if tasks]
        victim = busy[0] if busy else None
    pid = client.run(os.getpid, workers=[victim])[victim]
    os.kill(pid, signal.SIGKILL)
    assert future.result(timeout=120).tobytes() == want
    assert pid not in client.run(os.getpid).values()


def test_seed_says_everything(small: tuple[Any, Any, Any]) -> None:
    """The graph's names depend on the seed, and None draws one when the array is made."""
    q = da.from_array(small[0], chunks=(40, -1))

    def name(rng: Any) -> str:
        return str(akda.matvec(q, small[1], small[2], bandwidth=1.0, rng=rng).name)

    assert name(1) == name(1) != name(2)
    assert name(None) != name(None)
    assert name(np.random.default_rng(1)) == name(np.random.default_rng(1))


def test_keys_are_prepared_once(small: tuple[Any, Any, Any]) -> None:
    """One task for each chunk of keys, whatever the number of chunks of queries."""
    queries, keys, x = small
    q = da.from_array(queries, chunks=(5, -1))
    y = akda.matvec(q, da.from_array(keys, chunks=(25, -1)), x, bandwidth=1.0, eps=0)
    names = [dask.base.key_split(key) for key in dict(y.dask)]
    assert names.count("key_side") == 2
    assert names.count("kernel_block") == 28
    assert names.count("kernel_product") == 14


def test_chunks_are_merged_where_an_error_is_allowed(small: tuple[Any, Any, Any]) -> None:
    """Fewer blocks, the chunks of the queries in the answer, and one report of each block."""
    queries, keys, x = small
    q, k = da.from_array(queries, chunks=(5, -1)), da.from_array(keys, chunks=(25, -1))
    expected = akmv.matvec(queries, keys, x, bandwidth=1.0)
    for eps, merge, shape in ((0.1, True, (2, 1)), (0.1, False, (14, 2)), (0, True, (14, 2))):
        y, infos = akda.matvec(
            q, k, x, bandwidth=1.0, eps=eps, merge_chunks=merge, return_info=True
        )
        assert infos.shape == shape
        assert y.chunks == q.chunks[:1]
        found, records = dask.compute(y, infos, scheduler="synchronous")
        np.testing.assert_allclose(found, expected, atol=1e-13)
        assert [record.n_queries for record in records[:, 0]] == [70 // shape[0]] * shape[0]


def test_keys_are_not_read_again_when_a_block_is_tried_again(
    small: tuple[Any, Any, Any], tmp_path: Path
) -> None:
    """A chunk of queries fails at first; what is known of the keys is there when it runs again."""
    queries, keys, x = small

    def reading() -> Any:
        with open(tmp_path / "read", "a") as file:
            file.write("once ")
        return keys

    def failing(chunk: Any) -> Any:
        if not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise OSError("the file is not there yet")
        return chunk

    q = da.from_array(queries, chunks=(10, -1)).map_blocks(failing, dtype=float, meta=queries[:0])
    y = akda.matvec(q, dask.delayed(reading)(), x, bandwidth=1.0)
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None}
    with LocalCluster(processes=False, **options) as cluster, Client(cluster) as own:
        found = own.compute(y, retries=3).result(timeout=60)
    np.testing.assert_allclose(found, akmv.matvec(queries, keys, x, bandwidth=1.0), atol=1e-13)
    assert (tmp_path / "failed").exists()
    assert (tmp_path / "read").read_text() == "once "


def test_files_travel_as_paths(small: tuple[Any, Any, Any], tmp_path: Path) -> None:
    """Queries and keys of two megabytes: the graph has a few kilobytes for each task."""
    points = np.random.default_rng(0).standard_normal((65536, 4)).astype(np.float32)
    np.save(tmp_path / "p.npy", points)
    q = akda.from_npy(tmp_path / "p.npy", rows=16384)
    assert q.chunks == ((16384,) * 4, (4,))
    y = akda.row_sums(q, np.load(tmp_path / "p.npy", mmap_mode="r")[100:], bandwidth=0.1)
    assert len(pickle.dumps(dict(y.dask))) < 20_000
    found = y[:10].compute(scheduler="synchronous")
    expected = akmv.row_sums(points[:10], points[100:], bandwidth=0.1)
    assert found.tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"queries": np.ones((3, 2))}, TypeError, "from_array"),
        ({"queries": da.ones((4, 2), chunks=(2, 1))}, ValueError, r"rechunk\(\{1: -1\}\)"),
        ({"queries": da.ones(4, chunks=2)}, ValueError, "two dimensions"),
        ({"queries": da.ones((4, 2), chunks=(2, -1), dtype=complex)}, TypeError, "real numbers"),
        ({"keys": da.ones((6, 2), chunks=(3, 1))}, ValueError, "keys must have its columns in one"),
        ({"keys": np.ones((6, 3))}, ValueError, "keys must have 2 columns"),
        ({"keys": np.ones(6)}, ValueError, "two dimensions"),
        ({"x": np.ones(5)}, ValueError, "one entry per key"),
        ({"x": da.ones(5, chunks=2)}, ValueError, "one entry per key"),
        ({"bandwidth": 0}, ValueError, "bandwidth"),
        ({"eps": -1}, ValueError, "eps"),
        ({"delta": 2}, ValueError, "delta"),
        ({"method": "paper"}, ValueError, "method"),
        ({"n_threads": 0}, ValueError, "n_threads"),
        ({"rng": -1}, ValueError, "rng"),
    ],
)
def test_mistakes_are_found_at_once(change: Any, kind: type[Exception], message: str) -> None:
    q = da.ones((4, 2), chunks=(2, -1))
    options = {"queries": q, "keys": np.ones((6, 2)), "x": np.ones(6), "bandwidth": 1.0} | change
    with pytest.raises(kind, match=message):
        akda.matvec(options.pop("queries"), options.pop("keys"), options.pop("x"), **options)


def test_unknown_chunks_are_refused() -> None:
    q = da.ones((4, 2), chunks=(2, -1))
    with pytest.raises(ValueError, match="compute_chunk_sizes"):
        akda.row_sums(q[q[:, 0] > 0], bandwidth=1.0)


@pytest.mark.parametrize("where", ["queries", "keys", "x"])
def test_bad_entries_are_named_with_their_chunk(small: tuple[Any, Any, Any], where: str) -> None:
    arrays = dict(zip(("queries", "keys", "x"), (a.copy() for a in small), strict=True))
    arrays[where].reshape(len(arrays[where]), -1)[45, 0] = np.nan
    q = da.from_array(arrays["queries"], chunks=(40, -1))
    k = da.from_array(arrays["keys"], chunks=(40, -1))
    y = akda.matvec(q, k, arrays["x"], bandwidth=1.0, eps=0)
    with pytest.raises(ValueError, match=rf"chunk 1: {where} must be finite, but {where}\[5"):
        y.compute(scheduler="synchronous")
    through = akda.matvec(q, k, arrays["x"], bandwidth=1.0, check_finite=False)
    bad = np.isnan(through.compute(scheduler="synchronous"))
    assert bad.sum() == (1 if where == "queries" else 70)


def test_dask_arrays_are_never_loaded_behind_the_back(small: tuple[Any, Any, Any]) -> None:
    queries, keys, x = small
    q = da.from_array(queries, chunks=(40, -1))
    for call in (
        lambda: akmv.matvec(q, keys, x, bandwidth=1.0),
        lambda: akmv.matvec(queries, keys, da.from_array(x), bandwidth=1.0),
        lambda: akmv.row_sums(queries, dask.delayed(keys), bandwidth=1.0),
        lambda: akmv.attention(q, keys, keys),
        lambda: akmv.GaussianKernel(q, bandwidth=1.0),
    ):
        with pytest.raises(TypeError, match=r"approxkmv\.dask"):
            call()


def test_shares_of_the_error_add_up() -> None:
    """Over chunks of any sizes the squares of the shares are the square of eps."""
    from approxkmv.blocks.product import checked_request

    request = checked_request(bandwidth=1.0, eps=0.1, rng=0, n_queries=1000, n_blocks=6)
    total = math.hypot(*(request.share(n) for n in (1, 0, 299, 700)))
    assert total == pytest.approx(0.1, rel=1e-12)


def test_generators_are_those_of_the_counter() -> None:
    """Every block has its own stream, and the same one each time."""
    from approxkmv.blocks.product import checked_request

    request = checked_request(bandwidth=1.0, rng=7, n_queries=10, n_blocks=9)
    places = [(i, b) for i in range(3) for b in range(3)]
    draws = [request.generator(*place).bytes(16) for place in places]
    assert len(set(draws)) == 9
    assert draws == [request.generator(*place).bytes(16) for place in places]


@pytest.mark.parametrize(
    ("sizes", "keys", "expected"),
    [
        ((10,) * 8, 80, (40, 40)),  # half as many queries as keys
        ((10,) * 8, 1000, (80,)),
        ((10,) * 8, 20, (10,) * 8),  # as they are
        ((70, 5, 5), 100, (80,)),
        ((5, 0, 70, 5), 0, (5, 0, 70, 5)),
        ((), 10, ()),
    ],
)
def test_merged_queries(sizes: tuple[int, ...], keys: int, expected: tuple[int, ...]) -> None:
    """Neighbours are put together evenly."""
    from approxkmv.blocks.cut import merged_queries

    assert merged_queries(sizes, 256, keys) == expected


def test_merged_chunks_are_bounded() -> None:
    """Never more than 256 MB, unless a chunk was larger before; every row stays in its place."""
    from approxkmv.blocks.cut import merged_keys, merged_queries

    for rng in map(np.random.default_rng, range(50)):
        sizes = tuple(rng.integers(0, 1000, rng.integers(1, 40)).tolist())
        row_bytes = int(rng.integers(2**17, 2**22))
        for merged in (merged_keys(sizes, row_bytes), merged_queries(sizes, row_bytes, 10**6)):
            ends, before = np.cumsum(merged), np.cumsum(sizes)
            assert set(ends) <= set(before)
            assert ends[-1] == before[-1]
            assert max(merged) <= 2 * max(2**28 / row_bytes, max(sizes))
