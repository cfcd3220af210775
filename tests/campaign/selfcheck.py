"""A part that crashes, hangs and goes on: what the supervisor must notice."""

from __future__ import annotations

import os
import time
from typing import Any

from .records import Record
from .worker import finding

_CASES = ({"do": "pass"}, {"do": "abort"}, {"do": "hang"}, {"do": "raise"}, {"do": "find"})


def case(rng: Any, index: int) -> Record | None:
    return _CASES[index] if index < len(_CASES) else None


def run(case: Record) -> Record:
    if case["do"] == "abort":
        os.abort()
    if case["do"] == "hang":
        time.sleep(600)
    if case["do"] == "raise":
        raise RuntimeError("as asked")
    found = [finding("answer", "as asked")] if case["do"] == "find" else []
    return {"count": 1, "findings": found}
