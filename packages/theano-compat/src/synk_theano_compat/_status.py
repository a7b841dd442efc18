"""``python -m synk_theano_compat``: the status as text or JSON, and the .pth file.

The wheel contains ``theano_compat_hook.pth``. An editable installation does not, nor does a folder
on ``PYTHONPATH``: ``--install`` writes it for them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import sysconfig
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from synk_theano_compat import _hook
from synk_theano_compat._patches import apply, flags
from synk_theano_compat._toolchain import blas
from synk_theano_compat._toolchain.compiler import find_compiler

# Read after theano_compat.pth, with which pip puts an editable installation on the path.
PTH = "theano_compat_hook.pth"
PTH_TEXT = (
    'import os; os.environ.get("SYNK_THEANO_COMPAT") != "0" and '
    '__import__("synk_theano_compat._hook")._hook.install()\n'
)
"""The file's one line, as in the wheel."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if Theano is installed but cannot be imported."""
    parser = argparse.ArgumentParser(
        prog="python -m synk_theano_compat",
        description="Show whether Theano is patched to work on this Python, and how.",
    )
    parser.add_argument("--json", action="store_true", help="print the status as JSON")
    parser.add_argument(
        "--activate",
        action="store_true",
        help="install the hook first if no .pth file has, as `import synk_theano` does",
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--install", action="store_true", help="write the .pth file (after an editable install)"
    )
    action.add_argument("--uninstall", action="store_true", help="remove the .pth file")
    action.add_argument(
        "--cuda", action="store_true", help="print the parts of CUDA and cuDNN found, as JSON"
    )
    options = parser.parse_args(arguments)
    if options.cuda:
        from synk_theano_compat._cuda.status import cuda_status

        sys.stdout.write(json.dumps(cuda_status(), indent=2) + "\n")
        return 0
    if options.install or options.uninstall:
        path, done = pth_path(), "nothing to do"
        if options.install and not (path.exists() and path.read_text() == PTH_TEXT):
            path.write_text(PTH_TEXT)
            done = "written"
        elif options.uninstall and path.exists():
            path.unlink()
            done = "removed"
        sys.stdout.write(f"{path}: {done}\n")
        return 0
    report = status(activate=options.activate)
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if options.json else _text(report))
    return 1 if report["error"] else 0


def status(*, activate: bool = False) -> dict[str, Any]:
    """Import Theano, if it is installed, and return how it was patched, as values for JSON.

    With `activate` install the hook first; ``active`` is whether it was installed before.
    """
    error, active, config = "", _hook.installed(), None
    if activate and os.environ.get("SYNK_THEANO_COMPAT") != "0":
        _hook.install()
    if find_spec("theano") is not None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                import theano
            config = theano.config
            _ = config.compiledir  # Theano makes the folder when the flag is first read
        except Exception as problem:  # noqa: BLE001 - the subject of the report
            error, config = f"{type(problem).__name__}: {problem}", None
    names = ("synk-theano", "Theano", "Lasagne", "numpy", "scipy")
    return {
        "active": active,
        "switched_off": os.environ.get("SYNK_THEANO_COMPAT") == "0",
        "pth": str(pth_path()) if pth_path().exists() else None,
        "error": error,
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in names},
        },
        "compiler": find_compiler(None) if config is None else config.cxx or None,
        "compiledir": None if config is None else config.compiledir,
        "blas": {
            "ldflags": None if config is None else config.blas.ldflags,
            "library": blas.last[-1].library if blas.last else None,
            "origin": blas.last[-1].origin if blas.last else "blas.ldflags is set by the user",
        },
        "flags_added": dict(flags.chosen),
        "flags": {} if config is None else flags.in_force(),
        "applied": [
            {"patch": name, "purpose": purpose, "result": result}
            for name, purpose, result in apply.applied
        ],
    }


def pth_path() -> Path:
    """Return where the .pth file belongs in this environment."""
    return Path(sysconfig.get_path("purelib"), PTH)


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _text(report: dict[str, Any]) -> str:
    if report["active"]:
        state = "active"
    elif report["switched_off"]:
        state = "switched off by SYNK_THEANO_COMPAT=0"
    elif report["pth"] is None:
        state = "not active: no .pth file; run  python -m synk_theano_compat --install"
    else:
        state = "not active: this Python did not read its .pth files (-S)"
    lines = [f"synk_theano_compat: {state}"]
    if report["error"]:
        lines.append(f"import theano: {report['error']}")
    lines += [f"  {name:11} {value or 'absent'}" for name, value in report["versions"].items()]
    lines.append(f"  compiler    {report['compiler'] or 'absent'}")
    if report["blas"]["ldflags"] is not None:
        lines.append(f"  compiledir  {report['compiledir']}")
        lines.append(f"  BLAS        {report['blas']['origin']}")
        lines.append(f"              {report['blas']['ldflags'] or '(blas.ldflags is empty)'}")
    for entry in report["applied"]:
        lines.append(f"  {entry['patch']:11} {entry['purpose']}: {entry['result']}")
    return "\n".join(lines) + "\n"
