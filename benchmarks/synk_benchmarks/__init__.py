"""The harness of all benchmarks; each one's own folder adds cases and contenders.

::

    program              options, parts one after the other, the page of a run
    tables               a table for each group of rows, as Markdown
    rounds   results     taking turns; samples, rows, ratios
    process  machine     fresh interpreters; where it was measured

It needs the standard library alone, is published by no package, and is found through the folder
`benchmarks` at the top of the repository, which those who use it put on ``sys.path``. This file
imports nothing: some benchmarks time imports.
"""
