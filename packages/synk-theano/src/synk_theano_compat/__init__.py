"""Make ``import theano`` (1.0.5) and ``import lasagne`` (0.1) work on today's Python and NumPy.

The package is activated by ``synk_theano_compat.pth`` in site-packages, which puts one lazy finder
on ``sys.meta_path``; nothing else happens in a Python that never imports Theano. Setting the
environment variable ``SYNK_THEANO_COMPAT=0`` turns everything off. Where no ``.pth`` is read
(``python -S``, a folder on ``PYTHONPATH``), ``import synk_theano_compat._hook`` followed by
``synk_theano_compat._hook.install()`` before Theano is imported does the same.

    python -m synk_theano_compat            what is active, and what was chosen
    python -m synk_theano_compat --cuda     what is found of CUDA and cuDNN
    python -m synk_theano_compat --install  write the .pth (after an editable installation)

Nothing is imported here: this module is loaded at the start of every Python of the environment.
"""
