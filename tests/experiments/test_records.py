"""Records survive what cuts them short, and say where they are broken."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from approxkmv.experiments.records import Records, rounded


def test_come_back_in_order(tmp_path):
    records = Records(tmp_path / "deep" / "a.jsonl")
    assert list(records) == []
    kept = [{"text": "ä\n</script>", "c": [1.5, None]}, {"text": "b"}]
    for record in kept:
        records.append(record)
    assert list(records) == kept


@pytest.mark.parametrize("cut", [1, 5, 11])
def test_a_line_cut_short_is_dropped_and_replaced(tmp_path, cut):
    """As after a power failure: all whole lines count, and the next one starts a line."""
    records = Records(tmp_path / "a.jsonl")
    records.append({"a": 1})
    whole = records.path.read_bytes()
    records.path.write_bytes(whole + b'{"b": "22222'[:cut])
    assert list(records) == [{"a": 1}]
    records.append({"c": 3})
    assert list(records) == [{"a": 1}, {"c": 3}]


def test_a_first_line_cut_short(tmp_path):
    records = Records(tmp_path / "a.jsonl")
    records.path.write_bytes(b'{"b": ' + b"2" * 100_000)
    assert list(records) == []
    records.append({"c": 3})
    assert list(records) == [{"c": 3}]


def test_records_that_were_put_away_come_first(tmp_path):
    """What gzip made of a file is read as before, and new records go to a file beside it."""
    records = Records(tmp_path / "a.jsonl")
    for number in range(3):
        records.append({"number": number})
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        file.write(records.path.read_bytes())
    records.path.unlink()
    assert list(records) == [{"number": number} for number in range(3)]
    records.append({"number": 3})
    assert [record["number"] for record in records] == [0, 1, 2, 3]
    assert records.path.read_bytes() == b'{"number": 3}\n'


@pytest.mark.parametrize("line", [b"{]\n", b"[1]\n"])
def test_a_broken_line_inside_is_an_error(tmp_path, line):
    """Nothing of ours leaves one, so it is no record to pass over."""
    records = Records(tmp_path / "a.jsonl")
    records.path.write_bytes(b'{"a": 1}\n' + line + b'{"c": 3}\n')
    with pytest.raises(ValueError, match="line 2: not a record"):
        list(records)


def test_infinity_is_not_json(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        Records(tmp_path / "a.jsonl").append({"c": float("inf")})
    assert rounded(np.array([[np.inf, 1 / 3]]), 2) == [[None, 0.33]]
