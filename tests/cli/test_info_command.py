"""``approxkmv info``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import approxkmv as akmv
from approxkmv._threads import default_threads
from approxkmv.cli import info
from approxkmv.cli.main import main
from approxkmv.loops import compiled


def test_facts(capsys: pytest.CaptureFixture[str]) -> None:
    """Instruction sets, threads and versions are those the library uses."""
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    facts = {line[:17].strip(): line[17:].strip() for line in lines}
    assert facts["instruction sets"] == ", ".join(compiled.available_isas())
    assert facts["chosen"].startswith(f"{compiled.ISA} ")
    assert facts["threads"] == str(default_threads())
    assert facts["NumPy"] == np.__version__
    assert facts["sklearn"][0].isdigit()


def test_missing_extras_are_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(info, "_EXTRAS", {"no_such_module": "no-such-module"})
    assert main(["info"]) == 0
    assert "no_such_module    not installed" in capsys.readouterr().out


def test_every_extra_is_used() -> None:
    """Each one listed is imported somewhere in the package."""
    source = "".join(path.read_text() for path in Path(akmv.__file__).parent.rglob("*.py"))
    used = set(re.findall(r"^ *(?:from|import) (\w+)", source, re.MULTILINE))
    assert set(info._EXTRAS) <= used


def test_extras_are_not_imported() -> None:
    """Finding an extra does not load it: torch alone would take a second."""
    code = (
        "import sys; from approxkmv.cli.main import main; main(['info']); "
        "print([m for m in ('torch', 'sklearn', 'matplotlib', 'safetensors') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
