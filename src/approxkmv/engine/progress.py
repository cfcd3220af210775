"""What is known of an answer that is still being looked for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from approxkmv.engine.neighbours.search import Search
from approxkmv.engine.result import Result
from approxkmv.engine.survey.survey import Survey


@dataclass
class Progress:
    """What is known so far, for the answer that must be given when the time is over."""

    survey: Survey | None = None
    search: Search | None = None
    best: Result | None = None

    def keep(self, result: Result) -> None:
        """Remember the result if it is the best so far."""
        if result.upper < (math.inf if self.best is None else self.best.upper):
            self.best = result
