"""The command line: status as text or JSON, and the .pth file."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Any

from synk_theano_compat import _apply, _blas, _flags, _hook, _pth


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit status: 1 if Theano is here and cannot be imported."""
    parser = argparse.ArgumentParser(
        prog="python -m synk_theano_compat",
        description="Show whether Theano is made to work on this Python, and how.",
    )
    parser.add_argument("--json", action="store_true", help="print the status as JSON")
    parser.add_argument(
        "--activate",
        action="store_true",
        help="put the hook in place first if no .pth file has, as `import synk_theano` does",
    )
    action = parser.add_mutually_exclusive_group()
    action.add_argument(
        "--install", action="store_true", help="write the .pth file (after an editable install)"
    )
    action.add_argument("--uninstall", action="store_true", help="remove the .pth file")
    action.add_argument(
        "--cuda", action="store_true", help="print what is found of CUDA and cuDNN, as JSON"
    )
    options = parser.parse_args(arguments)
    if options.cuda:
        from synk_theano_compat._cuda_status import cuda_status

        sys.stdout.write(json.dumps(cuda_status(), indent=2) + "\n")
        return 0
    if options.install or options.uninstall:
        changed = _pth.write_pth() if options.install else _pth.remove_pth()
        done = "written" if options.install else "removed"
        sys.stdout.write(f"{_pth.pth_path()}: {done if changed else 'nothing to do'}\n")
        return 0
    report = status(activate=options.activate)
    sys.stdout.write(json.dumps(report, indent=2) + "\n" if options.json else _text(report))
    return 1 if report["error"] else 0


def status(*, activate: bool = False) -> dict[str, Any]:
    """Import Theano, if there is one, and return what was done to it, as JSON's kinds of values.

    Args:
        activate: Put the hook in place first if it is not. ``active`` tells whether it was.
    """
    error, active = "", _hook.installed()
    if activate and os.environ.get("SYNK_THEANO_COMPAT") != "0":
        _hook.install()
    if find_spec("theano") is not None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                import theano
            config = theano.config
            _ = config.compiledir  # Theano makes the folder when it is first asked for it
        except Exception as problem:  # noqa: BLE001 - the report is about exactly this
            error = f"{type(problem).__name__}: {problem}"
            config = None
    else:
        config = None
    names = ("synk-theano", "Theano", "Lasagne", "numpy", "scipy")
    return {
        "active": active,
        "switched_off": os.environ.get("SYNK_THEANO_COMPAT") == "0",
        "pth": str(_pth.pth_path()) if _pth.pth_path().exists() else None,
        "error": error,
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in names},
        },
        "compiler": _flags.find_compiler(None) if config is None else config.cxx or None,
        "compiledir": None if config is None else config.compiledir,
        "blas": {
            "ldflags": None if config is None else config.blas.ldflags,
            "library": _blas.last[-1].library if _blas.last else None,
            "origin": _blas.last[-1].origin if _blas.last else "blas.ldflags is set by the user",
        },
        "flags_added": dict(_flags.chosen),
        "flags": {} if config is None else _flags.in_force(),
        "applied": [
            {"patch": name, "purpose": purpose, "result": result}
            for name, purpose, result in _apply.applied
        ],
    }


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
