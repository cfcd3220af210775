"""``approxkmv demo`` and ``approxkmv bench``: their tables, on small sizes."""

from __future__ import annotations

import pytest

from approxkmv.cli.main import main


def table_rows(out: str) -> dict[str, list[str]]:
    """Return the rows below the dashes, by their first column."""
    lines = out.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("---")) + 1
    width = len(lines[start - 1].split()[0])
    return {line[:width].strip(): line[width:].split() for line in lines[start:] if line}


def test_demo_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Below the size at which sampling pays everything is exact; trivial answers are far off.

    float32 rounds at 6e-8; distances of 130 bandwidths² at most leave errors below 1e-4 in any
    summation order. |Kx| is at least about |x| here, so 0 has an error near 1.
    """
    assert main(["demo", "--n", "1000", "--d", "16", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("1,000 queries and 1,000 keys in 16 dimensions")
    rows = table_rows(out)
    for name in ("eps = 0.3", "eps = 0.1", "eps = 0.03", "exact"):
        method, seconds, quotient, error, estimated, pairs = rows[name]
        assert (method, pairs) == ("exact", "100.00%")
        assert 0 <= float(seconds) < 30
        assert float(quotient) > 0
        assert 0 <= float(error) < 1e-4  # below the limit for sampling the same product
        assert 0 < float(estimated) < 1e-4
    assert float(rows["exact"][3]) > 0
    assert rows["exact"][2] == "1.00"
    assert len(rows["NumPy, in blocks"]) == 4
    for name in ("y = 0", "y = diagonal", "y = mean"):
        assert 0.3 < float(rows[name][-1]) < 10


def test_demo_samples_where_it_pays(capsys: pytest.CaptureFixture[str]) -> None:
    """At 32,768 points fewer pairs are computed, and the error is the one allowed, or less.

    A failure has probability delta = 0.05 over seeds; the seed is fixed and the same bits come from
    any number of threads.
    """
    assert main(["demo", "--n", "32768", "--eps", "0.3"]) == 0
    rows = table_rows(capsys.readouterr().out)
    method, _, _, error, estimated, pairs = rows["eps = 0.3"]
    assert method == "sampled"
    assert 0.01 < float(error) < 0.3
    assert 0.01 < float(estimated) < 0.3
    assert float(pairs.rstrip("%")) < 50


@pytest.mark.parametrize("n", [1, 2, 17])
def test_demo_of_any_size(n: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--n", str(n), "--d", "2"]) == 0
    assert "y = 0" in capsys.readouterr().out


def test_demo_is_reproducible(capsys: pytest.CaptureFixture[str]) -> None:
    """The same seed gives the same bandwidth and errors; another seed another bandwidth."""

    def errors(seed: int) -> tuple[str, list[str]]:
        assert main(["demo", "--n", "500", "--d", "8", "--seed", str(seed)]) == 0
        out = capsys.readouterr().out
        rows = table_rows(out)
        return out.splitlines()[1], [rows[name][3] for name in ("eps = 0.1", "exact")]

    assert errors(1) == errors(1)
    assert errors(1)[0] != errors(2)[0]


def test_bench_table(capsys: pytest.CaptureFixture[str]) -> None:
    """Six cases, each with time, share of the peak, ratio, and both errors beside."""
    assert main(["bench", "--n", "300", "--repetitions", "1", "--threads", "1"]) == 0
    out = capsys.readouterr().out
    rows = table_rows(out)
    assert list(rows) == [f"{t}, d = {d}" for t in ("float32", "float64") for d in (16, 64, 128)]
    for name, (_, share, _, _, ours, numpy) in rows.items():
        assert share.endswith("%")
        assert max(float(ours), float(numpy)) < (1e-4 if "32" in name else 1e-12)
