"""Tables in files: ``.csv`` and ``.parquet``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from approxkmv.cli.main import main
from approxkmv.files import read_array

NUMBERS = np.array([[1.5, -2.0, 3e-300], [4.0, 5.0, 6.25]])


def test_csv_with_and_without_names(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("1.5,-2,3e-300\n4,5,6.25\n")
    np.testing.assert_array_equal(read_array(path), NUMBERS)
    path.write_text('a,"b",c\n1.5,-2,3e-300\n4,5,6.25\n')
    np.testing.assert_array_equal(read_array(path), NUMBERS)
    np.testing.assert_array_equal(read_array(f"{path}:b"), NUMBERS[:, 1])
    np.testing.assert_array_equal(read_array(f"{path}:c,a"), NUMBERS[:, [2, 0]])
    path.write_bytes(b"\xef\xbb\xbfx,y\r\n1,2\r\n")
    np.testing.assert_array_equal(read_array(f"{path}:x"), [1.0])
    path.write_text("1\n2\n3\n")
    assert read_array(path).shape == (3, 1)


@pytest.mark.parametrize(
    ("text", "member", "message"),
    [
        ("", "", "has no first line"),
        ("a,b\n1,2\n3\n", "", "not a table of numbers"),
        ("a,b\n1,two\n", "", "not a table of numbers"),
        ("a,b\n1,2\n", ":c", "has no column 'c'; its names are: a, b"),
        ("1,2\n", ":a", "has no column 'a'; its names are: none"),
    ],
)
def test_wrong_tables_are_one_line(tmp_path: Path, text: str, member: str, message: str) -> None:
    path = tmp_path / "data.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_array(f"{path}{member}")


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    path = tmp_path / "data.parquet"
    columns = {"a": NUMBERS[:, 0], "b": NUMBERS[:, 1], "gap": [1.0, None], "word": ["x", "y"]}
    parquet.write_table(pyarrow.table(columns), path)
    np.testing.assert_array_equal(read_array(f"{path}:b,a"), NUMBERS[:, [1, 0]])
    np.testing.assert_array_equal(read_array(f"{path}:a"), NUMBERS[:, 0])
    with pytest.raises(ValueError, match="gap: must have no missing values, has 1"):
        read_array(path)
    with pytest.raises(ValueError, match="word: expected real numbers"):
        read_array(f"{path}:word")
    with pytest.raises(ValueError, match="has no column 'z'"):
        read_array(f"{path}:z")
    path.write_bytes(b"PAR1 not at all")
    with pytest.raises(ValueError, match=r"not a readable \.parquet file"):
        read_array(path)


def test_without_pyarrow_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "data.parquet").write_bytes(b"")
    with pytest.raises(ImportError, match="pip install pyarrow"):
        read_array(tmp_path / "data.parquet")


def test_commands_take_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    points, x = rng.standard_normal((50, 2)), rng.standard_normal(50)
    rows = "\n".join(
        f"{a!r},{b!r},{c!r}" for (a, b), c in zip(points.tolist(), x.tolist(), strict=True)
    )
    Path("data.csv").write_text(f"u,v,x\n{rows}\n")
    np.save("points.npy", points)
    np.save("x.npy", x)
    arguments = ["--bandwidth=1", "--output=y.npy"]
    both = ["--queries=data.csv:u,v", "--keys=data.csv:u,v", "--x=data.csv:x"]
    assert main(["matvec", *both, *arguments]) == 0
    found = np.load("y.npy")
    plain = ["--queries=points.npy", "--keys=points.npy", "--x=x.npy"]
    assert main(["matvec", *plain, *arguments]) == 0
    np.testing.assert_array_equal(found, np.load("y.npy"))
