"""The program behind ``synkhronos bench``: quick measurements, each beside the plain way, as JSON.

turns.py     takes the measurements in turns, and their medians
peers.py     processes of multiprocessing, to measure pipes and barriers
plain.py     plain functions in their own processes
measures.py  call, scatter, allreduce and scaling, with the public interface only

The packages' own benchmark folders are larger, and compare with other libraries.
"""
