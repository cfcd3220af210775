"""A slice of each part with fixed seeds, and the campaign's own machinery."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import approxkmv as akmv
from approxkmv.engine import products
from approxkmv.engine.trace import Refusal

from . import api, calls, engine, faults, files, heads, interrupts, oracles, soak, supervisor
from .__main__ import replay
from .families import FAMILIES
from .long_calls import LONG
from .records import Folder, Record, generator, plain
from .report import allowed_violations, into_page, markdown
from .vectors import VECTORS


def findings(part: Any, cases: list[Record]) -> list[Any]:
    return [found for case in cases for found in part.run(case)["findings"]]


# The parts


def test_api() -> None:
    """1,200 calls with arguments of every kind; most are answered, many refused."""
    tally: dict[str, int] = {}
    found = []
    for batch in (102, 104, 108):
        result = api.run({"batch": batch, "calls": 400})
        found += result["findings"]
        for name, count in result["tally"].items():
            tally[name.split()[-1]] = tally.get(name.split()[-1], 0) + count
    assert found == []
    assert tally["answered"] > 700
    assert tally["refused"] > 150


def numbers(dtype: str, shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    width = 32 if dtype == "f4" else 64
    most = 2.0**60
    return hnp.arrays(dtype, shape, elements=st.floats(-most, most, width=width, allow_nan=False))


@given(st.data())
def test_products_by_hypothesis(data: st.DataObject) -> None:
    """The same oracle with arrays that shrink."""
    dtype = data.draw(st.sampled_from(["f4", "f8"]))
    m, n = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 12))
    d, r = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 3))
    queries, keys = data.draw(numbers(dtype, (m, d))), data.draw(numbers(dtype, (n, d)))
    x = data.draw(numbers(dtype, (n, r)))
    bandwidth = data.draw(st.floats(2.0**-30, 2.0**30))
    y = akmv.matvec(queries, keys, x, bandwidth=bandwidth)
    plain = (a.astype(float) for a in (queries, keys, x))
    wanted, error = oracles.product(*plain, bandwidth, np.dtype(dtype))
    assert oracles.differs(y, wanted, error, np.dtype(dtype)) is None


ENGINE = [
    ("clusters", "gauss", 0.1),
    ("words", "t2", 0.1),
    ("two scales", "few large", 0.1),
    ("planted pairs", "signs", 0.1),
    ("gauss", "ones", 0.3),
    ("digits", "smooth", 0.3),
]


def engine_case(family: str, x: str, eps: float, **more: Any) -> Record:
    run = {"x": x, "columns": 1, "eps": eps, "relative": False, "transposed": False}
    return {
        "target": "matvec",
        "family": family,
        "n": 4096,
        "m": None,
        "d": FAMILIES[family].dims[-2 if len(FAMILIES[family].dims) > 1 else 0],
        "dtype": "float32",
        "row_sum": "1.2",
        "forced": True,
        "seed": 5,
        "runs": [{**run, "seed": seed} for seed in range(3)],
        **more,
    }


def check_runs(runs: list[Record], least: int) -> None:
    """Enough of them sampled, all below eps with these seeds, with estimates that fit."""
    used = [run for run in runs if run["sampled"]]
    assert len(used) >= least
    assert [run for run in used if not run["error"] <= run["eps"]] == []
    ratios = [run["estimate"] / run["error"] for run in used if run["error"] > 0.01 * run["eps"]]
    assert np.mean([0.5 <= ratio <= 2 for ratio in ratios]) >= 0.8


def test_engine() -> None:
    """Products of six families: 15 of 18 sampled at least, all within eps."""
    runs = []
    for family, x, eps in ENGINE:
        result = engine.run(engine_case(family, x, eps))
        assert result["findings"] == []
        runs += result["runs"]
    check_runs(runs, 15)


def test_operators_and_heads() -> None:
    operator = engine_case("clusters", "gauss", 0.1, target="operator", row_sum="5", n=8192, d=32)
    head = {
        "family": "head: bands",
        "n": 3000,
        "m": 3000,
        "d": 32,
        "dtype": "float32",
        "factor": 1.0,
        "is_causal": True,
        "forced": True,
        "target": "attention",
        "seed": 3,
        "runs": [{"eps": 0.1, "seed": seed} for seed in range(3)],
    }
    for case in (operator, head):
        result = engine.run(case)
        assert result["findings"] == []
        used = [run for run in result["runs"] if run["sampled"]]
        assert len(used) == 3
        assert all(run["error"] <= run["eps"] for run in used)


def test_interrupts() -> None:
    """Small calls, stopped in their middle."""
    kinds = ("matvec clusters", "matvec columns exact", "attention exact", "KernelDensity score")
    cases = [
        {"kind": kind, "share": share, "stage": stage, "size": 0.3}
        for kind in kinds
        for share, stage in ((0.3, None), (0.5, 0.4))
    ]
    assert findings(interrupts, cases) == []
    assert findings(interrupts, [{"command": "info", "share": 0.3}]) == []


def test_faults() -> None:
    wanted = [case for case in faults.cases() if case["what"] in ("disk", "file size", "threads")]
    kills = [{"what": "kill", "number": i, "moment": 0.3 * i} for i in range(2)]
    memory = [{"what": "memory", "kind": "matvec columns exact", "share": 0.4}]
    assert findings(faults, [*wanted, *kills, *memory]) == []


def test_soak() -> None:
    cases = [{"kind": kind, "calls": 2000} for kind in ("matvec", "attention", "errors")]
    assert findings(soak, cases) == []


def test_files() -> None:
    """A hundred and twenty damaged files."""
    result = [files.run({"batch": batch, "files": 60}) for batch in (3, 4)]
    assert [found for one in result for found in one["findings"]] == []
    read = sum(n for one in result for name, n in one["tally"].items() if name.endswith("read"))
    assert 0 < read < 120


# What the slice is for: a broken library is noticed


def broken_by(monkeypatch: pytest.MonkeyPatch, factor: float, seen: str) -> list[Record]:
    """Findings of a batch and runs of a case with a product that is off by a factor."""
    wrong = akmv.matvec

    def matvec(*args: Any, **options: Any) -> Any:
        answer = wrong(*args, **options)
        return (answer[0] * factor, answer[1]) if isinstance(answer, tuple) else answer * factor

    monkeypatch.setattr(akmv, "matvec", matvec)
    if seen == "api":
        return api.run({"batch": 102, "calls": 200})["findings"]
    return engine.run(engine_case("clusters", "gauss", 0.1))["runs"]


def test_a_wrong_product_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = broken_by(monkeypatch, 1.01, "api")
    assert [one for one in found if one["what"] == "answer"]


def test_a_biased_sample_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = broken_by(monkeypatch, 1.2, "engine")
    with pytest.raises(AssertionError):
        check_runs(runs, 1)


def test_an_engine_that_always_refuses_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "approximate", engine_refuses)
    runs = engine.run(engine_case("clusters", "gauss", 0.1))["runs"]
    with pytest.raises(AssertionError):
        check_runs(runs, 1)


def engine_refuses(*_: Any) -> NoReturn:
    raise Refusal("it always refuses")


def test_an_adjoint_is_judged_where_its_keys_lie() -> None:
    """Keys 857 bandwidths from their centre, queries near 0: rounding of 6e-11, and no more."""
    rng = np.random.default_rng([303405484, 242])
    call = calls.draw(rng)
    x, y = call.make()
    assert call.check((x, y)) is None
    assert call.check((x, y * (1 + 1e-8))) is not None


# The machinery


def test_crashes_hangs_and_errors_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with its case; the part goes on, and goes on again in the same folder."""
    monkeypatch.setitem(supervisor.PARTS, "selfcheck", (1.0, 4.0))
    folder = Folder(tmp_path)
    folder.begin(3)
    supervisor.supervise("selfcheck", 3, 60, folder)
    records = list(folder.records("selfcheck"))
    assert [record["index"] for record in records] == [0, 1, 2, 3, 4]
    what = [[one["what"] for one in record["findings"]] for record in records]
    assert what == [[], ["crash"], ["hang"], ["exception"], ["answer"]]
    assert records[1]["case"] == {"do": "abort"}
    assert folder.next_index("selfcheck") == 5
    supervisor.supervise("selfcheck", 3, 60, folder)
    assert len(list(folder.records("selfcheck"))) == 5
    text, violations = markdown([folder])
    assert violations == 4
    assert "| selfcheck | 5 | 5 | 4 |" in text
    page = (Path(__file__).parents[2] / "docs" / "reliability.md").read_text(encoding="utf-8")
    assert text.strip() in into_page(into_page(page, "an older one"), text)
    assert "an older one" not in into_page(into_page(page, "an older one"), text)
    with pytest.raises(SystemExit, match="seed 3"):
        folder.begin(4)


def test_families_are_judged_by_the_binomial_law(tmp_path: Path) -> None:
    """Of 400 runs at delta 0.05, 44 may be above (as computed elsewhere); 45 may not."""
    assert allowed_violations(400) == 44
    assert allowed_violations(0) == 0
    for above, broken in ((44, 0), (45, 2)):  # the family, and all of them together
        folder = Folder(tmp_path / str(above))
        runs = [
            {"run": i, "sampled": True, "error": 0.2 if i < above else 0.05, "eps": 0.1}
            | {"estimate": 0.1, "bound": None, "all_rows": True}
            for i in range(400)
        ]
        case = {"family": "words", "target": "matvec", "n": 1, "d": 1, "dtype": "float32"}
        case["runs"] = [{"x": "ones"}] * 400  # type: ignore[assignment]
        folder.add(
            "engine",
            {"part": "engine", "seed": 0, "index": 0, "case": case, "runs": runs, "findings": []},
        )
        assert markdown([folder])[1] == broken


def test_a_line_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    line = {"part": "api", "seed": 7, "index": 3, "call": 5}
    first, second = (replay(json.dumps(line)), capsys.readouterr().out), replay(json.dumps(line))
    assert json.loads(first[1])["count"] == 1
    assert (first[0], second) == (0, 0)


def test_every_part_draws_the_same_cases_again() -> None:
    for part in supervisor.PARTS:
        module = supervisor_module(part)
        for index in range(5):
            drawn = [module.case(generator(7, part, index), index) for _ in range(2)]
            assert drawn[0] == drawn[1]
            assert json.loads(json.dumps(plain(drawn[0]))) == plain(drawn[0])


def supervisor_module(part: str) -> Any:
    from .worker import module_of

    return module_of(part)


@pytest.mark.parametrize("family", FAMILIES)
def test_families_have_their_shape(family: str) -> None:
    """Both types, queries of their own or not; at least two dozen families in all."""
    from .families import data

    d = FAMILIES[family].dims[0]
    for m, dtype in ((None, "float32"), (70, "float64")):
        drawn = data(family, 300, m, d, dtype, "5", np.random.default_rng(0))
        assert drawn.all_keys.shape[0] == 300
        assert (drawn.keys is None) == (m is None)
        assert drawn.queries.dtype == dtype
        assert np.isfinite(drawn.queries).all()
        assert drawn.bandwidth > 0
        assert math.isfinite(drawn.bandwidth)
        for kind in VECTORS:
            x = VECTORS[kind](drawn, 300, np.random.default_rng(1))
            assert x.shape == (300,)
            assert np.isfinite(x).all()
    assert len(FAMILIES) >= 24


def test_heads_and_long_calls_are_finite() -> None:
    for make in heads.HEADS.values():
        q, k, v = make(20, 30, 8, np.random.default_rng(0))
        assert (q.shape, k.shape, v.shape) == ((20, 8), (30, 8), (30, 8))
        assert all(np.isfinite(a).all() for a in (q, k, v))
    assert len(LONG) >= 20
