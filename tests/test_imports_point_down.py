"""Imports point down: faces, flow, leaves; and optional packages are imported only when used."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import approxkmv

ROOT = Path(approxkmv.__file__).parent

# From the top down. A module may import from lower layers and, within a package, its neighbours.
LAYERS: list[list[str]] = [
    ["approxkmv.__main__"],
    ["approxkmv.cli"],
    ["approxkmv.experiments"],
    ["approxkmv"],
    ["approxkmv.gpytorch", "approxkmv.spectrum", "approxkmv.stats"],
    ["approxkmv.sklearn"],
    ["approxkmv.dask", "approxkmv.streaming"],
    ["approxkmv.blocks"],
    ["approxkmv.solver"],
    ["approxkmv.nystroem", "approxkmv.krylov"],
    ["approxkmv.huggingface"],
    ["approxkmv._calibration"],
    ["approxkmv._transformers"],
    ["approxkmv.operator", "approxkmv.torch"],
    ["approxkmv._torch_product", "approxkmv._sensitivity"],
    ["approxkmv._saved", "approxkmv._entries", "approxkmv._shifted"],
    ["approxkmv.attention"],
    ["approxkmv.product"],
    ["approxkmv.diagnosis"],
    ["approxkmv.engine"],
    ["approxkmv.paper"],
    ["approxkmv.datasets", "approxkmv.capture"],
    ["approxkmv.files", "approxkmv.exact"],
    ["approxkmv.kernel"],
    ["approxkmv._check", "approxkmv._heads"],
    ["approxkmv.loops"],
    ["approxkmv._threads"],
    [
        "approxkmv._core",
        "approxkmv.functions",
        "approxkmv.info",
        "approxkmv._warnings",
        "approxkmv._tensors",
    ],
    [
        "approxkmv._extras",
        "approxkmv._shown",
        "approxkmv._deadline",
        "approxkmv._interrupts",
        "approxkmv._lazy",
        "approxkmv._table",
    ],
]
# The only modules of ours these may know.
ONLY = {
    "approxkmv.loops.reference": {
        "approxkmv.functions",
        "approxkmv.loops.compiled",
        "approxkmv.loops.types",
    },
    "approxkmv._check": {
        "approxkmv._tensors",
        "approxkmv.functions",
        "approxkmv.loops.compiled",
        "approxkmv.loops.types",
    },
    "approxkmv.loops.compiled": {
        "approxkmv._core",
        "approxkmv._threads",
        "approxkmv.functions",
        "approxkmv.loops.types",
    },
    "approxkmv.functions": set(),
    "approxkmv.loops.types": {"approxkmv.functions"},
    "approxkmv._threads": {"approxkmv._core"},
    "approxkmv._interrupts": set(),
    "approxkmv.info": {"approxkmv._shown"},
    "approxkmv._warnings": set(),
}
# Inside the engine, from the top down: data flow from the last line to the first.
STAGES = [
    ["products", "heads"],
    ["schemes.frozen_pairs", "schemes.frozen_low_rank", "report"],
    ["planner", "request"],
    ["schemes.drawn_keys", "schemes.shared_keys", "schemes.attention_keys"],
    ["survey.attention_common"],
    ["survey.attention_pilot", "survey.shared_draw"],
    [
        "survey.attention_rates",
        "survey.attention_order",
        "schemes.mean_of_values",
        "schemes.attention_in_time",
        "schemes.cells",
        "schemes.few_coordinates",
        "schemes.low_rank",
        "schemes.in_time",
        "schemes.bernoulli",
    ],
    ["schemes.frozen_matrix", "exact_rows", "progress"],
    ["neighbours.schedule", "refine"],
    ["neighbours.missing", "neighbours.isolated", "neighbours.expand", "survey.survey"],
    ["neighbours.whole"],
    ["neighbours.search", "survey.forecast", "neighbours.cells", "result"],
    ["neighbours.sketch", "survey.control_variate", "survey.rates", "survey.calibration"],
    ["survey.pilot", "survey.ranks", "survey.spatial"],
    ["survey.span"],
    ["head", "survey.keyside", "survey.pivots"],
    ["survey.thin", "survey.order", "survey.moments", "problem"],
    ["cost", "policy", "trace", "statistics"],
    ["survey", "neighbours", "schemes"],
]
# Faces of another package: importing one asks for that package, and says how to install it.
FACES = {
    "approxkmv.dask": {"dask"},
    "approxkmv.gpytorch": {"gpytorch", "linear_operator", "torch"},
    "approxkmv.sklearn": {"sklearn"},
    "approxkmv.torch": {"torch"},
    "approxkmv._torch_product": {"torch"},
}
ALWAYS_THERE = {"numpy", "scipy", "approxkmv", *sys.stdlib_module_names}


def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ["approxkmv", *path.relative_to(ROOT).with_suffix("").parts]
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text())
    return found


MODULES = modules()


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names imported anywhere below a node."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute here"
            assert node.module is not None
            yield from (resolved(node.module, alias.name) for alias in node.names)


def resolved(module: str, name: str) -> str:
    """``from module import name``: the module ``module.name`` if there is one, else ``module``."""
    full = f"{module}.{name}"
    return full if full in MODULES or full == "approxkmv._core" else module


def module_level(tree: ast.Module) -> Iterator[str]:
    """Names imported when the module is imported: not inside functions, nor for type checkers."""
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(node)


def ours(names: Iterator[str]) -> set[str]:
    return {name for name in names if name.split(".")[0] == "approxkmv"}


def layer(module: str) -> int:
    """Index of the layer of a module or of the package it is in."""
    part = ".".join(module.split(".")[:2])
    for index, names in enumerate(LAYERS):
        if part in names:
            return index
    raise AssertionError(f"{module} has no layer: add it to LAYERS and to ARCHITECTURE.md")


def same_package(a: str, b: str) -> bool:
    """In the same sub-package, such as ``approxkmv.paper``."""
    return a.split(".")[:2] == b.split(".")[:2]


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    """Nothing imports from its own layer or above, except inside a sub-package."""
    for target in ours(imported(MODULES[module])):
        if not same_package(module, target):
            assert layer(target) > layer(module), f"{module} imports {target}"


def test_stages_of_the_engine_point_down() -> None:
    """A stage knows earlier stages only; every file of the engine is a stage."""
    place = {f"approxkmv.engine.{name}": i for i, names in enumerate(STAGES) for name in names}
    engine = {name for name in MODULES if name.startswith("approxkmv.engine.")}
    assert engine == set(place)
    for module in engine:
        for target in ours(imported(MODULES[module])) & engine:
            assert place[target] > place[module], f"{module} imports {target}"


@pytest.mark.parametrize("module", ONLY)
def test_leaves_know_little(module: str) -> None:
    assert ours(imported(MODULES[module])) <= ONLY[module]


def test_no_cycles() -> None:
    """Module-level imports can be sorted, also inside the sub-packages."""
    graph = {
        name: {t for t in ours(module_level(tree)) if t in MODULES and t != name}
        for name, tree in MODULES.items()
    }
    # A package names what is in it; what is in it may name the package's other files.
    list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("module", MODULES)
def test_optional_packages_are_imported_when_used(module: str) -> None:
    """At module level only the standard library, NumPy, SciPy and ourselves; in a face, its own."""
    allowed = ALWAYS_THERE | FACES.get(".".join(module.split(".")[:2]), set())
    assert {name.split(".")[0] for name in module_level(MODULES[module])} <= allowed


def test_the_test_sees_the_package() -> None:
    """The modules named in the layers exist, so that a renamed one does not go unseen."""
    known = set(MODULES) | {"approxkmv._core"}
    assert {name for names in LAYERS for name in names} <= known
    assert "approxkmv.loops.compiled" in ours(imported(MODULES["approxkmv.kernel.frame"]))
