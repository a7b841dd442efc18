"""What all benchmarks share; each one's own folder adds cases, contenders and targets.

::

    program                  options, measuring or reading, showing and writing
       |      \
       |     tables  plot    a result as text, as a page, as a picture
       |        |    /
       |     targets         limits, and whether they were reached
       |        |
    rounds   results         taking turns; samples, comparisons, files of JSON
    contender  process  machine
                             who takes part; fresh interpreters; where it was measured

It needs the standard library alone (a picture: matplotlib), is published by no package, and is
found through the folder `benchmarks` at the top of the repository, which those who use it put on
``sys.path``. This file imports nothing: some benchmarks time imports.
"""
