"""Where installed packages keep their data, and what to say when they are not there."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path


def python_package(name: str) -> Path | None:
    """Folder of an installed Python package, found without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def npm_package(name: str) -> Path | None:
    """Folder of an npm package: here or above, on NODE_PATH, or installed globally."""
    here = Path.cwd()
    modules = [folder / "node_modules" for folder in (here, *here.parents)]
    modules += [Path(entry) for entry in os.environ.get("NODE_PATH", "").split(os.pathsep) if entry]
    modules += [Path("/usr/local/lib/node_modules"), Path("/usr/lib/node_modules")]
    return next((folder / name for folder in modules if (folder / name).is_dir()), None)


def missing(what: str, install: str) -> FileNotFoundError:
    """Build the error for data that were not found, with the command that brings them."""
    return FileNotFoundError(f"{what} not found. Install it with: {install}")
