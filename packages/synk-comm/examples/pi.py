"""Pi by the area under 4 / (1 + x²), each rank adding up its part of the strips.

python -m synk_comm.run -n 4 pi.py
python pi.py
"""

from __future__ import annotations

import math

import numpy as np
import synk_comm

STRIPS = 1_000_000


def main() -> None:
    with synk_comm.connect() as comm:
        # Only rank 0 knows how many; it might have asked somebody.
        strips = comm.broadcast_object(STRIPS if comm.rank == 0 else None)
        x = (np.arange(comm.rank, strips, comm.size) + 0.5) / strips
        area = (4 / (1 + x * x)).sum() / strips
        pi = comm.reduce(area, "sum", root=0)
        if comm.rank == 0:
            assert abs(pi - math.pi) < 1e-11, pi
            print(f"pi is {float(pi):.10f}, by {strips} strips")
        else:
            assert pi is None


if __name__ == "__main__":
    main()
