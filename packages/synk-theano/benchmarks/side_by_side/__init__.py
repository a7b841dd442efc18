"""The benchmark of synk-theano, in parts.

    run.py               chooses, measures, shows
    ├─ calls             what a call costs beside plain Theano and two barriers
    ├─ inputs            how quickly rows get to where they are computed
    ├─ scaling           a function with work to share, on one core and on all
    └─ distribution      bytes and seconds until the workers have a function
        └─ loader        a process that gets the same function by plain pickle

`functions` and `networks` hold what is computed, `partner` the usual way to use a second process,
`rounds` takes turns, `results` and `tables` are what comes out, `machine` tells where it was.
"""
