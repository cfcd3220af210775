"""Sphinx configuration. Build with ``sphinx-build -W docs docs/_build``; needs no network."""

from importlib.metadata import version as _version

project = "approxkmv"
author = "The approxkmv developers"
copyright = f"2026, {author}"
version = release = _version("approxkmv")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "myst_parser",
    "numpydoc",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say types in words
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # attributes are described in the class docstring

html_theme = "furo"
html_title = f"approxkmv {release}"
