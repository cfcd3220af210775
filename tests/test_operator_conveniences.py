"""Entries, diagonals, shifts and files of ``GaussianKernel``; reports as JSON and HTML."""

from __future__ import annotations

import functools
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import coo_array, csr_matrix, diags_array, eye_array
from scipy.sparse.linalg import aslinearoperator, cg, eigsh

import approxkmv as akmv
from approxkmv import _saved
from approxkmv.datasets import clusters
from approxkmv.files import write_arrays
from approxkmv.info import ADVICE
from approxkmv.kernel.matrix import gaussian_kernel

N, M, BANDWIDTH = 70, 90, 1.5
RNG = np.random.default_rng(0)
QUERIES, KEYS = RNG.standard_normal((N, 4)), RNG.standard_normal((M, 4))
K = akmv.GaussianKernel(QUERIES, KEYS, bandwidth=BANDWIDTH)
DENSE = gaussian_kernel(QUERIES, KEYS, BANDWIDTH)
S = akmv.GaussianKernel(QUERIES, bandwidth=BANDWIDTH)
DENSE_S = gaussian_kernel(QUERIES, QUERIES, BANDWIDTH)

INDICES: list[Any] = [
    3,
    -1,
    np.int64(4),
    (3, 5),
    (-1, -2),
    (slice(2, 9), 5),
    (3, slice(None, None, 7)),
    (slice(None), slice(80, 20, -3)),
    slice(5, 5),
    ([1, 5, 5], [0, 3, 89]),
    ([1, 5], 3),
    ([[1], [5]], [[0, 3, 7]]),
    np.ix_([4, 1], [0, 80, 2]),
    ([1, 5], slice(None)),
    (slice(None), [0, 0, 4]),
    (np.arange(N) % 3 == 0, slice(0, 4)),
    ...,
    (..., 2),
    (1, ...),
]


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_entries_are_those_of_the_dense_matrix(index: Any) -> None:
    """By NumPy's rules, for the operator and its transpose."""
    for ours, dense in ((K[index], DENSE[index]), (K.T.H[index], DENSE[index])):
        assert np.shape(ours) == np.shape(dense)
        np.testing.assert_allclose(ours, dense, rtol=0, atol=1e-12)


def test_entries_of_transposed_and_single_precision() -> None:
    np.testing.assert_allclose(K.T[3, [1, 2]], DENSE.T[3, [1, 2]], rtol=1e-12)
    single = akmv.GaussianKernel(QUERIES.astype(np.float32), bandwidth=BANDWIDTH)
    assert single[1, 2].dtype == single[1].dtype == np.float32
    np.testing.assert_allclose(single[1], DENSE_S[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ((N, 0), f"row {N} is out of bounds: there are {N} rows"),
        ((0, -M - 1), "column -91 is out of bounds"),
        (1.5, "rows must be integers, slices or masks"),
        ((0, 0, 0), "two dimensions, got 3 indices"),
        ((np.ones(3, bool), 0), "a mask of rows must have shape"),
    ],
)
def test_wrong_indices_say_what_is_wrong(index: Any, message: str) -> None:
    with pytest.raises(IndexError, match=message):
        K[index]


def test_a_long_block_is_cut() -> None:
    """More columns than a product takes at once."""
    np.testing.assert_allclose(K[:, :], DENSE, rtol=0, atol=1e-12)
    np.testing.assert_allclose(K.T[:, :], DENSE.T, rtol=0, atol=1e-12)


def test_diagonal() -> None:
    np.testing.assert_allclose(K.diagonal(), DENSE.diagonal(), rtol=1e-12)
    assert (S.diagonal() == 1).all()
    assert len(S.diagonal()) == N


@pytest.mark.parametrize(
    "identity",
    [eye_array(N), eye_array(N).tocsr(), csr_matrix(np.eye(N)), aslinearoperator(eye_array(N))],
)
def test_a_sum_with_the_identity_is_seen_through(identity: Any) -> None:
    """From both sides; solvers get K and the noise apart."""
    sums = [S + identity, S + identity + 2 * eye_array(N)]
    if not hasattr(identity, "matvec"):
        sums.append(identity + S)
    for A, noise in zip(sums, (1.0, 3.0, 1.0), strict=False):
        assert A.operator is S
        assert A.noise == noise
        np.testing.assert_allclose(A @ KEYS[:N], (DENSE_S + noise * np.eye(N)) @ KEYS[:N])
        np.testing.assert_allclose(A.T @ KEYS[:N, 0], A @ KEYS[:N, 0], rtol=1e-12)
    np.testing.assert_allclose(sums[0].diagonal(), 2.0)


def test_other_sums_are_scipys() -> None:
    off = coo_array(([1.0], ([0], [1])), shape=(N, N))
    both = S + aslinearoperator(off)
    np.testing.assert_allclose(both @ np.ones(N), (DENSE_S + off.toarray()) @ np.ones(N))
    with pytest.raises(TypeError, match=r"K \+ 0.1 is not defined"):
        S + 0.1
    with pytest.raises(ValueError, match="must be square"):
        K.shifted(0.1)


def test_solvers_take_sums() -> None:
    """``solve`` preconditions K and gets the same x as with ``noise=``; SciPy's see a matrix."""
    noise = RNG.uniform(0.5, 2.0, N)
    A = S + diags_array(noise)
    b = KEYS[:N, 0]
    exact = np.linalg.solve(DENSE_S + np.diag(noise), b)
    x, info = akmv.solve(A, b, rng=0, return_info=True)
    assert info.independent
    assert info.rank > 0
    np.testing.assert_array_equal(x, akmv.solve(S, b, noise=noise, rng=0))
    np.testing.assert_allclose(x, exact, atol=1e-4)
    np.testing.assert_allclose(cg(A, b, rtol=1e-10)[0], exact, atol=1e-8)
    top = eigsh(S.shifted(0.5), k=1, return_eigenvectors=False)[0]
    assert abs(top - np.linalg.eigvalsh(DENSE_S)[-1] - 0.5) < 1e-8
    with pytest.raises(ValueError, match="noise must be None"):
        akmv.solve(A, b, noise=1.0)
    with pytest.raises(TypeError, match="noise is missing"):
        akmv.solve(S, b)


@functools.cache
def sampled_operator(symmetric: bool) -> akmv.GaussianKernel:
    """An operator whose products are sampled."""
    data = clusters(8192, 64, rng=0)
    some = data.queries[np.random.default_rng(1).permutation(8192)[:4096]]
    queries, keys = (data.queries, None) if symmetric else (some + np.float32(0.05), data.queries)
    options = {"eps": 0.1, "method": "sampled", "rng": 0}
    return akmv.GaussianKernel(queries, keys, bandwidth=data.bandwidth, **options)


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_sampled_operator_comes_back_with_its_bits(symmetric: bool, tmp_path: Path) -> None:
    sampled = sampled_operator(symmetric)
    assert sampled.info.method == "sampled"
    sampled.save(tmp_path / "kernel.npz")
    again = akmv.GaussianKernel.load(tmp_path / "kernel.npz")
    x = np.random.default_rng(1).standard_normal((sampled.shape[1], 2))
    np.testing.assert_array_equal(again @ x, sampled @ x)
    z = np.random.default_rng(2).standard_normal(sampled.shape[0])
    np.testing.assert_array_equal(again.T @ z, sampled.T @ z)
    assert (again.queries is again.keys) == symmetric
    assert again.info.error_estimate == sampled.info.error_estimate
    assert again.info.plan.reason == sampled.info.plan.reason
    assert again.eps == 0.1
    again.save(tmp_path / "twice.npz")
    assert (tmp_path / "twice.npz").read_bytes() == (tmp_path / "kernel.npz").read_bytes()


def test_files_that_are_not_ours_or_damaged_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "kernel.npz"
    K.save(path)
    header, arrays = _saved.read(path, "GaussianKernel")
    np.testing.assert_array_equal(akmv.GaussianKernel.load(path) @ KEYS, K @ KEYS)

    write_arrays(path, {"queries": QUERIES})
    with pytest.raises(ValueError, match="was not written by approxkmv"):
        akmv.GaussianKernel.load(path)
    _saved.write(path, "KernelDensity", {}, arrays)
    with pytest.raises(ValueError, match="expected a GaussianKernel, got 'KernelDensity'"):
        akmv.GaussianKernel.load(path)
    text = json.dumps(header | {"format": _saved.FORMAT + 1})
    write_arrays(path, {"approxkmv": np.frombuffer(text.encode(), np.uint8), **arrays})
    with pytest.raises(ValueError, match="version 3 of the format, and this approxkmv reads 2"):
        akmv.GaussianKernel.load(path)
    header = {k: v for k, v in header.items() if k not in ("kind", "format", "eps")}
    _saved.write(path, "GaussianKernel", header, arrays)
    with pytest.raises(ValueError, match="is damaged"):
        akmv.GaussianKernel.load(path)
    with pytest.raises(ValueError, match="must not be a transpose"):
        K.T.save(path)


@pytest.mark.usefixtures("any_size")
def test_indices_that_lead_out_of_the_matrix_are_refused(tmp_path: Path) -> None:
    """A changed file must not make compiled loops read elsewhere."""
    sampled = sampled_operator(True)
    path = tmp_path / "kernel.npz"
    sampled.save(path)
    header, arrays = _saved.read(path, "GaussianKernel")
    header = {k: v for k, v in header.items() if k not in ("kind", "format")}
    for name in ("matrix_near_indices", "matrix_drawn_indices", "matrix_query_order"):
        wrong = arrays[name].copy()
        wrong[0] = sampled.shape[0] + 5
        _saved.write(path, "GaussianKernel", header, arrays | {name: wrong})
        with pytest.raises(ValueError, match="is damaged"):
            akmv.GaussianKernel.load(path)


class Tags(HTMLParser):
    """Fails where tags are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def reports() -> dict[str, Any]:
    _, product = akmv.matvec(QUERIES, KEYS, np.ones(M), bandwidth=1.0, return_info=True)
    heads = RNG.standard_normal((2, 20, 4))
    _, attention = akmv.attention(heads, heads, heads, return_info=True)
    _, solved = akmv.solve(S, np.ones(N), noise=1.0, return_info=True)
    diagnosis = akmv.diagnose(QUERIES, bandwidth=1.0)
    return {
        "product": product,
        "attention": attention,
        "solve": solved,
        "diagnosis": diagnosis,
        "plan": product.plan,
        "operator": K,
    }


@pytest.mark.parametrize("name", list(reports()))
def test_reports_are_json_and_html(name: str) -> None:
    report = reports()[name]
    page = Tags()
    page.feed(report._repr_html_())
    assert not page.open
    assert "exact" in page.text or name == "solve"
    if name != "operator":
        content = json.loads(report.to_json())
        assert content
        if name == "product":
            assert content["pairs"] == N * M
            assert content["plan"]["method"] == "exact"
            assert content["product_norm"] == report.product_norm


def test_reasons_say_what_could_be_changed() -> None:
    """Every advice belongs to a reason that the engine gives; its text would be lost otherwise."""
    source = "".join(p.read_text() for p in Path(akmv.__file__).parent.rglob("*.py"))
    for words, advice in ADVICE.items():
        assert source.count(words) >= 2, words  # the table and at least one reason
        assert akmv.Plan("exact", f"so: {words}.").advice == advice
    _, info = akmv.matvec(QUERIES, KEYS, np.ones(M), bandwidth=1.0, return_info=True)
    assert "what helps    nothing: computing every pair is the fastest" in str(info)
    assert "what helps: nothing" in info.explain()
    exact = akmv.GaussianKernel(QUERIES, bandwidth=1.0, eps=0)
    assert "eps > 0" in str(exact.info)
    assert akmv.Plan("sampled", "sampling is cheaper").advice == ""


def test_texts_in_html_are_escaped_and_json_has_no_nan() -> None:
    plan = akmv.Plan("exact", "<script>alert(1)</script>", {"a<b": float("nan"), "n": np.int64(3)})
    assert "<script>" not in plan._repr_html_()
    assert "&lt;script&gt;" in plan._repr_html_()
    assert json.loads(plan.to_json())["numbers"] == {"a<b": None, "n": 3}


def test_an_exact_report_says_all_pairs_and_no_empty_line() -> None:
    assert "70 x 90" in K._repr_html_()
    assert f"{N * M:,} of {N * M:,} (all)" in str(K.info)
    assert "time" not in str(K.info)


def test_the_diagnosis_leads_with_what_to_expect() -> None:
    report = reports()["diagnosis"]
    assert str(report).splitlines()[0].startswith("expect")
    assert "every pair is computed" in report.expectation
    assert "What to expect" in report.to_html()


def test_dir_shows_public_names_only() -> None:
    names = dir(akmv)
    assert set(names) == {*akmv.__all__, "__version__"}
    assert not {"TYPE_CHECKING", "frame", "rounding", "krylov"} & set(names)
    for name in names:
        assert getattr(akmv, name) is not None
