"""How many threads a call uses, and the hook through which threadpoolctl limits them."""

from __future__ import annotations

import importlib.util
import os

from approxkmv import _core


def default_threads() -> int:
    """Threads used where a call does not say: threadpoolctl's limit, or the cores we may run on."""
    return _core.default_thread_limit() or usable_cores()


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def register_with_threadpoolctl() -> None:
    """Let ``threadpoolctl.threadpool_limits`` reach our threads, where it is installed."""
    if importlib.util.find_spec("threadpoolctl") is None:
        return
    import threadpoolctl

    class ApproxkmvController(threadpoolctl.LibController):  # type: ignore[misc]
        user_api = "approxkmv"
        internal_api = "approxkmv"
        filename_prefixes = ("_core",)
        check_symbols = ("approxkmv_get_num_threads", "approxkmv_set_num_threads")

        def get_num_threads(self) -> int:
            return self.dynlib.approxkmv_get_num_threads() or usable_cores()

        def set_num_threads(self, num_threads: int) -> None:
            self.dynlib.approxkmv_set_num_threads(num_threads)

        def get_version(self) -> None:
            return None

        def set_additional_attributes(self) -> None:
            pass

    threadpoolctl.register(ApproxkmvController)
