"""A pool of processes fills one big array, each task a few rows of it.

    python pool_fills_array.py
    python pool_fills_array.py --points 6000 --processes 8 --start-method spawn

Workers receive addresses: about a hundred bytes for each array or view of any size. They send
nothing back, because they write the results in place.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp

import numpy as np

import synk_shm as shm

ROWS_PER_TASK = 100


def fill(rows: np.ndarray, origins: np.ndarray, points: np.ndarray) -> None:
    """In a worker: rows[i, j] becomes the distance from origins[i] to points[j]."""
    for row, origin in zip(rows, origins):
        row[:] = np.sqrt(((points - origin) ** 2).sum(axis=1))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compute all distances between random points.")
    parser.add_argument("--points", type=int, default=2000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--start-method", choices=mp.get_all_start_methods())
    options = parser.parse_args()

    points = shm.share(np.random.default_rng(1).random((options.points, 3)))
    distances = shm.empty((options.points, options.points))

    starts = range(0, options.points, ROWS_PER_TASK)
    parts = [slice(start, start + ROWS_PER_TASK) for start in starts]
    with mp.get_context(options.start_method).Pool(options.processes) as pool:
        pool.starmap(fill, [(distances[part], points[part], points) for part in parts])
        pool.close()  # and join: leaving the block alone would kill the workers
        pool.join()

    assert (distances == distances.T).all()
    assert np.allclose(distances[-1], np.linalg.norm(points - points[-1], axis=1))
    assert (np.count_nonzero(distances, axis=1) == options.points - 1).all()  # all but itself
    megabytes = distances.nbytes / 1e6
    print(f"{options.processes} processes filled {megabytes:.0f} MB in {len(parts)} tasks")


if __name__ == "__main__":
    main()
