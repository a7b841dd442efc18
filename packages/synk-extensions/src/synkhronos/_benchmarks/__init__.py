"""What ``synkhronos bench`` runs: quick measurements, each beside the plain way, as JSON.

    _turns.py     medians of what is timed in turns
    _peers.py     processes of multiprocessing, for what pipes and barriers cost
    _plain.py     plain Theano in processes of its own
    _measures.py  call, scatter, allreduce and scaling, by the public interface only

The packages' own folders of benchmarks are larger, and compare with other libraries.
"""
