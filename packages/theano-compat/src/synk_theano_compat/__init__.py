"""Make ``import theano`` (1.0.5) and ``import lasagne`` work on today's Python and NumPy.

The file ``theano_compat_hook.pth`` in site-packages activates the package: it puts one lazy finder
on ``sys.meta_path``. Nothing else happens in a Python that never imports Theano. Setting the
environment variable ``SYNK_THEANO_COMPAT=0`` turns everything off. If no ``.pth`` is read
(``python -S``, a folder on ``PYTHONPATH``), ``install()`` before Theano is imported does the same.

    python -m synk_theano_compat            show which patches are active, and the flags chosen
    python -m synk_theano_compat --cuda     show which parts of CUDA and cuDNN are found
    python -m synk_theano_compat --install  write the .pth (after an editable installation)

This module imports nothing, because it is loaded whenever a Python of the environment starts.
"""

__version__ = "0.1.0"


def install() -> None:
    """Activate the package in this process, if no ``.pth`` has. Call it before importing Theano."""
    from synk_theano_compat import _hook

    _hook.install()
