"""Builds the core with sanitizers and runs the tests of the compiled loops with it.

``python -m tests.sanitizers address`` (AddressSanitizer and UndefinedBehaviorSanitizer) or
``python -m tests.sanitizers thread`` (ThreadSanitizer), from the root of the repository. The build
goes to ``build/sanitizers``; the installed package stays what it is. Needs GCC, CMake and nanobind.

First, mistakes planted in this build alone must be reported; then the tests must pass without any
report. A report ends a process at once with ``address``; with ``thread`` all of them are collected.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
LONGEST = (  # begun first: two run at a time
    "loops/test_tile.py",
    "loops/test_sampled_product.py",
    "loops/test_reduced_product.py",
    "test_threads.py",
    "loops/test_attention_draws.py",
)
OTHERS = ("test_interrupts.py", "engine/neighbours/test_search.py", "engine/test_draws.py")

# What cannot work under a sanitizer at all, and why.
NOT_RUN = {
    "address": {
        "test_out_of_memory": "limits the address space, which the sanitizer's shadow fills",
        "test_memory_of_attention_is_kept": "counts pages of the C library's allocator",
    },
}
NOT_RUN["thread"] = NOT_RUN["address"] | {
    "test_fork_after_use": "ThreadSanitizer allows no new threads after a fork of several",
    "test_forks_while_eight_threads_call": "as test_fork_after_use",
}


class Tool(NamedTuple):
    flags: str  # for -fsanitize
    library: str  # loaded before Python, which is not instrumented
    options: dict[str, str]
    planted: dict[str, str]  # function: what its report says


TOOLS = {
    "address": Tool(
        "address,undefined",
        "libasan.so",
        # Python keeps memory until it ends: leaks are not looked for.
        {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"},
        {
            "planted_read_past_the_end": "heap-buffer-overflow",
            "planted_signed_overflow": "signed integer overflow",
        },
    ),
    "thread": Tool(
        "thread",
        "libtsan.so",
        {"TSAN_OPTIONS": "halt_on_error=0 exitcode=66 history_size=4"},
        {"planted_race": "data race"},
    ),
}

# The editable install of scikit-build-core looks before PYTHONPATH does.
SITECUSTOMIZE = """
import sys
sys.meta_path[:] = [f for f in sys.meta_path if "ScikitBuild" not in type(f).__name__]
"""
PLUGIN = """
from pathlib import Path
def pytest_configure():
    from approxkmv import _core
    assert Path(_core.__file__).parent == Path(__file__).parent / "approxkmv", _core.__file__
    assert hasattr(_core, "planted_race")
"""


def files_of_loops() -> list[str]:
    """All files with tests of compiled loops, the longest first."""
    tests = ROOT / "tests"
    found = sorted(str(path.relative_to(tests)) for path in tests.glob("loops/test_*.py"))
    return list(dict.fromkeys([*LONGEST, *found, *OTHERS]))


def build(tool: Tool, folder: Path) -> Path:
    """Build the instrumented core; returns a folder to import the package from."""
    ask = [sys.executable, "-m", "nanobind", "--cmake_dir"]
    nanobind = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    cmake = shutil.which("cmake") or str(Path(sys.executable).parent / "cmake")
    configure = [cmake, "-S", str(ROOT), "-B", str(folder), "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    configure += [f"-DAKMV_SANITIZE={tool.flags}", f"-Dnanobind_DIR={nanobind}"]
    subprocess.run([*configure, f"-DPython_EXECUTABLE={sys.executable}"], check=True)
    subprocess.run([cmake, "--build", str(folder), "-j2"], check=True)
    site = folder / "site"
    shutil.rmtree(site, ignore_errors=True)
    package = site / "approxkmv"
    package.mkdir(parents=True)
    for path in (ROOT / "src" / "approxkmv").iterdir():
        if not path.name.startswith("_core."):
            (package / path.name).symlink_to(path)
    (core,) = folder.glob("_core.*so")
    (package / core.name).symlink_to(core)
    (site / "sitecustomize.py").write_text(SITECUSTOMIZE)
    (site / "instrumented.py").write_text(PLUGIN)
    return site


def environment(tool: Tool, site: Path, reports: Path) -> dict[str, str]:
    """Where reports go, and what makes Python load the instrumented core."""
    compiler = os.environ.get("CXX", "g++")
    libraries = []
    for name in (tool.library, "libstdc++.so"):  # the latter: exceptions are followed through it
        ask = [compiler, f"-print-file-name={name}"]
        done = subprocess.run(ask, capture_output=True, text=True, check=True)
        libraries.append(str(Path(done.stdout.strip()).resolve()))
    return os.environ | {
        **{name: f"{value} log_path={reports}" for name, value in tool.options.items()},
        "LD_PRELOAD": " ".join(libraries),
        "PYTHONPATH": f"{site}{os.pathsep}{ROOT / 'tests'}",
        "PYTHONMALLOC": "malloc",  # so that the ends of Python's own memory are known, too
        "APPROXKMV_TEST_SLOWNESS": "20",
        "OPENBLAS_NUM_THREADS": "1",  # not instrumented: its locks would not be seen
    }


def found(reports: Path) -> str:
    """All reports so far."""
    return "".join(path.read_text() for path in sorted(reports.parent.glob(f"{reports.name}.*")))


def check_planted(tool: Tool, site: Path, logs: Path) -> None:
    """Each planted mistake must be reported, and one that is not there must not."""
    for function, says in [*tool.planted.items(), ("available_isas", "")]:
        reports = logs / function
        done = subprocess.run(
            [sys.executable, "-c", f"from approxkmv import _core; _core.{function}()"],
            env=environment(tool, site, reports),
            capture_output=True,
            text=True,
            check=False,
        )
        report = found(reports) + done.stderr
        reported = done.returncode != 0 and says in report and function[8:] in report
        if reported != bool(says):
            raise SystemExit(f"{function}: exit code {done.returncode}\n{report}")
        print(f"{function}: {says or 'nothing'} reported, as it must be", flush=True)


def run_tests(tool: Tool, site: Path, logs: Path, left_out: dict[str, str], name: str) -> bool:
    """One file of tests in a process of its own; true if it passed without a report."""
    start, (file, _, isa) = time.monotonic(), name.partition("@")
    log = logs / name.replace("/", "-")
    arguments = [str(ROOT / "tests" / file), "-q", "-p", "instrumented", "-p", "no:cacheprovider"]
    arguments += ["--capture=sys"]  # the report of undefined behaviour goes to file 2, then it ends
    arguments += ["--hypothesis-profile=sanitizers", "-o", "timeout=1800"]
    if left_out:
        arguments += ["-k", "not (" + " or ".join(left_out) + ")"]
    env = environment(tool, site, log.with_suffix(".report"))
    if isa:
        env["APPROXKMV_ISA"] = isa
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", *arguments],
        env=env,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    log.with_suffix(".log").write_text(done.stdout)
    report = found(log.with_suffix(".report"))
    last = re.sub(r"\x1b\[\w+", "", done.stdout.strip().splitlines()[-1]) if done.stdout else ""
    passed = done.returncode == 0 and not report
    print(f"{name}: {last}; {time.monotonic() - start:.0f} s", flush=True)
    if not passed:
        print(f"exit code {done.returncode}\n{done.stdout[-4000:]}\n{report[:8000]}", flush=True)
    return passed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitizers", description=__doc__)
    parser.add_argument("sanitizer", choices=TOOLS)
    parser.add_argument("files", nargs="*", help="below tests/; all of them if none is named")
    arguments = parser.parse_args()
    start, tool = time.monotonic(), TOOLS[arguments.sanitizer]
    folder = ROOT / "build" / "sanitizers" / arguments.sanitizer
    site = build(tool, folder)
    logs = folder / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    check_planted(tool, site, logs)
    left_out = NOT_RUN[arguments.sanitizer]
    for name, why in left_out.items():
        print(f"not run: {name}: {why}", flush=True)
    names = arguments.files or files_of_loops()
    if arguments.sanitizer == "address" and not arguments.files:
        # Tests of the loops run every instruction set themselves; the package as a whole, here.
        ask = "from approxkmv.loops import compiled; print(*compiled.available_isas())"
        isas = subprocess.run([sys.executable, "-c", ask], stdout=-1, text=True, check=True)
        names += [f"test_product.py@{isa}" for isa in isas.stdout.split()]
    with ThreadPoolExecutor(2) as two:
        results = list(two.map(lambda name: run_tests(tool, site, logs, left_out, name), names))
    verdict = "clean" if all(results) else "NOT clean"
    print(f"{arguments.sanitizer}: {verdict}, {time.monotonic() - start:.0f} s")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
