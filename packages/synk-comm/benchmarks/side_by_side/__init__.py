"""synk-comm and its peers, measured in turns by the same processes.

The map, from the command line down::

    ../run.py                        what you call: one job for each number of ranks
       |   |   \\
       |   |    tables  plot         display: read a Result, know nothing else
       |   |       |    /
       |   |     targets             what is aimed at, and the verdicts
       |   |
       |   +-- fresh  faults         what needs processes of its own: imports, deaths
       |          |   /
       |         job                 starts the ranks (mpiexec or by itself), hears and bounds them
       |          :  (a Unix socket)
    ../rank.py    :                  what each rank runs
       |     \\    :
       |      line                   the ranks' way to talk that is not being measured
     rounds                          taking turns, checking results, back-to-back calls
       |
    contenders  contender  cases     one class for each way; arrays, and what NumPy says is right
    metrics  results  machine        data: what is measured, cells and rows, where

To add a contender, write a class in `contenders` and list it there. To add a collective, add it to
`metrics` and `cases`, and give the contenders a method of its name. To add a target, add a line to
`targets`. Nothing else has to know.
"""
