"""The costs of products on clusters are those of the graphs that are really made."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest

from approxkmv import dask as akda
from approxkmv.blocks import cut
from approxkmv.dask import inputs, products
from benchmarks import cluster


def sparse_file(path: Path, n: int, d: int) -> Path:
    """A file of zeros that takes no space: nothing in it is ever read."""
    np.lib.format.open_memmap(path, "w+", np.float32, (n, d))  # type: ignore[no-untyped-call]
    return path


def graph(path: Path, one: cluster.Costs) -> Any:
    q = akda.from_npy(path, rows=one.rows)
    return akda.matvec(q, path, np.broadcast_to(np.float32(1), one.n), bandwidth=1.0, rng=0)


def test_sizes_are_those_of_the_package() -> None:
    assert inputs._KEY_BYTES == cluster.KEY_BYTES
    assert cut._MERGED_BYTES == cluster.BYTES_AT_ONCE
    assert products._AT_ONCE == cluster.ADDED_AT_ONCE
    assert cut._BYTES_OF_A_POINT == cluster.BYTES_OF_A_POINT


@pytest.mark.parametrize("n", [2**20 + 5, 10**8])
def test_tasks_are_counted(n: int, tmp_path: Path) -> None:
    """A hundred million points of 64 coordinates: 26 GB that are not there."""
    one = cluster.costs(n)
    y = graph(sparse_file(tmp_path / "p.npy", n, 64), one)
    names = Counter(dask.base.key_split(key) for key in dict(y.dask))
    found = {name: names[name] for name in one.tasks}
    assert found == {**one.tasks}
    # Nothing else: no task that merges or splits, and x in as many pieces as there are keys.
    assert sum(names.values()) == sum(one.tasks.values())
    assert y.numblocks == (one.grid[0],)


@pytest.mark.parametrize("n_workers", [1, 3])
def test_bytes_moved_are_bounded(n_workers: int, tmp_path: Path) -> None:
    """A schedule that forgets all: every task on a worker drawn at random."""
    one = cluster.Costs(1000, 8, 4, 70, 30)
    points = np.zeros((one.n, one.n_dims), np.float32)
    q = da.from_array(points, chunks=(one.rows, -1))
    k = da.from_array(points, chunks=(one.keys, -1))
    y = akda.matvec(q, k, np.ones(one.n, np.float32), bandwidth=1.0, eps=0)
    tasks = dict(y.dask)
    on = {key: int(np.random.default_rng(i).integers(n_workers)) for i, key in enumerate(tasks)}
    sizes = {
        ("kernel_block", "array"): one.rows * one.n_dims * 4,
        ("kernel_product", "kernel_block"): one.rows * 4,
        ("part_of_kernel_product", "kernel_block"): one.rows * 4,
    }
    there: set[Any] = {(key, worker) for key, worker in on.items()}  # what a worker has is kept
    moved: Counter[str] = Counter()
    for key, needs in dask.core.get_deps(tasks)[0].items():
        for need in needs:
            kinds = dask.base.key_split(key), dask.base.key_split(need)
            if (need, on[key]) not in there and kinds in sizes:
                there.add((need, on[key]))
                moved[kinds[1]] += sizes[kinds]
    bound = one.moved(n_workers)
    assert moved["array"] <= bound["queries to blocks"]
    assert moved["kernel_block"] <= 1.1 * bound["blocks to sums"]
    if n_workers > 1:  # and not by far
        assert moved["array"] >= 0.8 * bound["queries to blocks"]
        assert moved["kernel_block"] >= 0.5 * bound["blocks to sums"]


def test_times_scale_with_workers() -> None:
    one, block = cluster.costs(10**9), cluster.Block(2**18, 2**20, 10.0, 1e-9)
    few, many = (one.seconds(block, n)["computing"][0] for n in (100, 1000))
    assert few / many == pytest.approx(10, rel=0.01)
    assert one.seconds(block, 100)["computing exactly"][0] == pytest.approx(
        1e18 * 1e-9 / 100, rel=0.02
    )
    assert math.prod(one.grid) == one.tasks["kernel_block"]
    assert one.memory() < 8e9


def test_page_has_the_table(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """Every number of the table is what the command prints now."""
    monkeypatch.setattr("sys.argv", ["cluster"])
    cluster.main()
    printed = capsys.readouterr().out.splitlines()[2:]
    page = (Path(__file__).parent.parent / "docs/scale_costs.md").read_text(encoding="utf-8")
    table = page.split("<!-- begin cluster -->")[1].split("<!-- end cluster -->")[0]
    rows = [line for line in table.splitlines() if line.startswith("| 1e")]
    assert [" ".join(row.replace("|", " ").split()) for row in rows] == [
        " ".join(line.split()) for line in printed
    ]
