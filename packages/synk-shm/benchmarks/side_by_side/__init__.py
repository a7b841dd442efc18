"""synk-shm and its peers, measured in turns on one machine.

The map, from the command line down::

    ../run.py                          what you call
       |      \\
       |       tables  plot            display: read a Result, know nothing else
       |          |    /
       |       targets                 what is aimed at, and the verdicts
       |          |
    memory  transport  fresh  leftovers    metrics: functions from a Bench to Rows
       |        |        |      |
       |        |        |   sandbox       a private /dev/shm, and the victims that die in it
       |        |        |
       |        |     newcomer             what runs in fresh interpreters
     rounds ----+                          taking turns, time limits, progress
       |
    contenders  contender                  one small class for each way, and what they share
    results  machine                       data: cells, rows, where they were measured

To add a contender, write a class in `contenders` and list it there. To add a metric, write a
function that returns rows and list it in ``METRICS`` of run.py. To add a target, add a line to
`targets`. Nothing else has to know.
"""
