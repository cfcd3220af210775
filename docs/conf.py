"""Sphinx configuration. Build with ``sphinx-build -W docs docs/_build``; needs no network."""

import inspect
import os
import sys
from importlib.metadata import version as _version

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "_ext"))
os.environ.setdefault("MPLBACKEND", "Agg")

project = "approxkmv"
author = "The approxkmv developers"
copyright = f"2026, {author}"
version = release = _version("approxkmv")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "mathml",
    "myst_parser",
    "numpydoc",
    "sphinx_copybutton",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*.py", "gallery/*.ipynb"]
templates_path = ["_templates"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say types in words
autodoc_member_order = "bysource"
numpydoc_show_class_members = False  # attributes are described in the class docstring

html_theme = "furo"
html_title = f"approxkmv {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#1f5fa8", "color-brand-content": "#1f5fa8"},
    "dark_css_variables": {"color-brand-primary": "#7fb3f0", "color-brand-content": "#7fb3f0"},
}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": "",
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "reset_modules": ("matplotlib",),
    "abort_on_example_error": True,
}


def _class_signature(app, what, name, obj, options, signature, returns):
    """Arguments of ``__init__``: autodoc reads SciPy's ``__new__(*args, **kwargs)`` instead."""
    if what != "class" or signature != "(*args, **kwargs)":
        return None
    if getattr(obj, "_is_protocol", False):
        return "", None  # never made
    found = inspect.signature(obj)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in found.parameters.values()
    ]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty)), returns


def setup(app):
    app.connect("autodoc-process-signature", _class_signature)
