"""How Sphinx builds the documentation: `make docs`."""

from __future__ import annotations

from importlib.metadata import version as version_of

project = "Synkhronos"
author = "The Synkhronos developers"
copyright = "2026, The Synkhronos developers"
release = version_of("synkhronos")
version = ".".join(release.split(".")[:2])

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"Synkhronos {release}"
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
# Docstrings follow the form of Google's guide; attributes are documented in the class's own.
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def escape_starred_pairs(_app, _what, _name, _obj, _options, lines):
    """Napoleon escapes `*args:` at the start of an entry, but not `*args, **kwargs:`."""
    for number, line in enumerate(lines):
        if line.lstrip().startswith("*args, **kwargs:"):
            lines[number] = line.replace("*args, **kwargs:", r"\*args, \*\*kwargs:", 1)


def setup(app):
    # Napoleon listens with the priority 500.
    app.connect("autodoc-process-docstring", escape_starred_pairs, priority=400)
