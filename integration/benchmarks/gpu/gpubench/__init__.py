"""The parts of ../run.py.

::

    run.py ─ plan ──> which processes, in which order        results, tables: what came of it
             process ─> starts one, has it measure when it is its turn, ends it
                │                                             cache: Theano's compiled modules
                └─> python -m gpubench.job KIND               machine: where it was measured
                      plain        one GPU, plain Theano
                      ours         a runtime of N ranks: steps, distribution, timeline
                      collectives  all_reduce beside a bare NCCL loop (bare)
                      starting     fork() to the first result

`plan`, `process`, `results`, `tables`, `cache` and `machine` need the standard library alone. What
a job measures it writes to a file at once, a line of JSON for each row: a run that is cut off
keeps what it has.
"""
