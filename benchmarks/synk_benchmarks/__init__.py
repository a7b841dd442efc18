"""The harness of all benchmarks; each one's own folder adds cases and contenders.

Users put the folder `benchmarks` on ``sys.path``. This file imports nothing: some time imports.
"""
