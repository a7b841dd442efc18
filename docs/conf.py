"""How Sphinx builds the documentation: `make docs`."""

from __future__ import annotations

from importlib.metadata import version as version_of
from pathlib import Path

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
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"Synkhronos {release}"
html_logo = html_favicon = "_static/logo.svg"
# Colours in which a diff is green and red, in both themes.
pygments_style = "default"
pygments_dark_style = "native"

# What does not exist is an error, but for other projects' names, which are looked up nowhere, for
# types of our own that are private or stand in annotations alone, and for prose where napoleon
# expects a type.
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(np|numpy|collections|os|pathlib|abc|enum|_pytest|theano|lasagne|matplotlib)\..*"),
    (r"py:.*", r"(.*\.)?_.*"),
    (r"py:.*", r".*[ \[].*"),
    (r"py:.*", r"PathLike|Figure|flat_grad|rank|Unusable|MissingLibrary|CudaError|.*\.T"),
    (r"py:.*", r"Array|ArrayLike|DTypeLike|Out"),
]

# In docstrings a name between single backquotes is code.
default_role = "code"

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
# They are in no environment that has Theano.
autodoc_mock_imports = ["better_optimize", "numba", "pymc", "pytensor"]
autodoc_default_options = {"members": True}
# Docstrings follow the form of Google's guide; attributes are documented in the class's own.
napoleon_numpy_docstring = False
napoleon_use_ivar = True


# Where the contents of pages are that there are no more.
MOVED = {
    "from_platoon": "migration.html#from-platoon",
    "hangs": "failures.html#a-worker-takes-long",
    "scaling": "clusters.html#how-fast",
    "sentinels": "trust.html#the-first-nan",
    "wrong_average": "trust.html",
}


def redirect(app, error):
    """Write a page that leads on, in the place of each one that has moved."""
    if error is None and app.builder.format == "html":
        for old, new in MOVED.items():
            text = f'<meta http-equiv="refresh" content="0; url={new}">\n'
            (Path(app.outdir) / f"{old}.html").write_text(text, encoding="utf-8")


def escape_starred_pairs(_app, _what, _name, _obj, _options, lines):
    """Napoleon escapes `*args:` at the start of an entry, but not `*args, **kwargs:`."""
    for number, line in enumerate(lines):
        if line.lstrip().startswith("*args, **kwargs:"):
            lines[number] = line.replace("*args, **kwargs:", r"\*args, \*\*kwargs:", 1)


class Prose:
    """Keeps attributes from napoleon, which takes what stands before a colon for a type."""

    def __init__(self):
        self._kept = {}

    def keep(self, _app, what, name, _obj, _options, lines):
        if what in ("attribute", "data", "property"):
            self._kept[name] = list(lines)

    def restore(self, _app, _what, name, _obj, _options, lines):
        if name in self._kept:
            lines[:] = self._kept.pop(name)


def setup(app):
    prose = Prose()
    app.connect("build-finished", redirect)
    # Napoleon listens with the priority 500.
    app.connect("autodoc-process-docstring", escape_starred_pairs, priority=400)
    app.connect("autodoc-process-docstring", prose.keep, priority=400)
    app.connect("autodoc-process-docstring", prose.restore, priority=600)
