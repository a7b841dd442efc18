"""A network switch as a process: links of a given rate and delay between network interfaces.

    python switch.py RATE DELAY INTERFACE ...

RATE: bits per second of each link, each way. DELAY: seconds on the way from one interface to
another, beside what this process takes itself. Needs root. Prints `ready` when it forwards, until
it is killed.

Linux can shape links by `tc`, too; but its delay (netem) is missing from many kernels.
"""

from __future__ import annotations

import contextlib
import gc
import heapq
import os
import select
import socket
import sys
import time

_ALL_PROTOCOLS = 3
_SOL_PACKET, _VNET_HEADER, _IGNORE_OUTGOING = 263, 15, 23
_SNDBUFFORCE, _RCVBUFFORCE = 32, 33
_VNET_HEADER_BYTES = 10
"""Before each frame: that it is several packets in one, and whose checksums are missing."""
_LONGEST = 1 << 17
_QUEUE_BYTES = 64 << 20
_SEGMENT_BYTES = 1448
_OVERHEAD_BYTES = 90
"""Ethernet's, IP's and TCP's bytes of each packet, with the gap between packets."""
_PRIORITY = 10
_FLOOD = b"\xff" * 6


class Port:
    """A link to one host: what it sends and what it gets takes time.

    Args:
        name: of the interface here.
    """

    def __init__(self, name: str) -> None:
        made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
        made.setsockopt(_SOL_PACKET, _VNET_HEADER, 1)
        made.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        made.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _QUEUE_BYTES)
        made.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, _QUEUE_BYTES)
        made.bind((name, _ALL_PROTOCOLS))
        made.setblocking(False)
        self.socket = made
        self.sends_until = self.gets_until = 0.0


def serve(rate: float, delay_s: float, names: list[str]) -> None:
    """Forward frames between interfaces until the process ends."""
    ports = [Port(name) for name in names]
    by_socket = {port.socket: port for port in ports}
    known: dict[bytes, Port] = {}
    under_way: list[tuple[float, int, Port, bytes]] = []
    number = 0
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        patience = max(under_way[0][0] - time.perf_counter(), 0) if under_way else None
        readable, _, _ = select.select(by_socket, [], [], patience)
        for source in readable:
            sender = by_socket[source]
            frame = source.recv(_LONGEST)
            now = time.perf_counter()
            target, own = frame[10:16], frame[16:22]
            known[own] = sender
            nbytes = len(frame) - _VNET_HEADER_BYTES
            packets = -(-nbytes // _SEGMENT_BYTES)
            on_the_wire_s = (nbytes + packets * _OVERHEAD_BYTES) * 8 / rate
            left = sender.sends_until = max(sender.sends_until, now) + on_the_wire_s
            receiver = known.get(target)
            for port in [receiver] if receiver else ports:
                if port is sender:
                    continue
                # The packets of a frame follow each other: the second link begins with the first.
                port.gets_until = max(left, port.gets_until + on_the_wire_s)
                number += 1
                heapq.heappush(under_way, (port.gets_until + delay_s, number, port, frame))
        while under_way and under_way[0][0] <= time.perf_counter():
            _, _, port, frame = heapq.heappop(under_way)
            with contextlib.suppress(OSError):  # the host is gone, or has no room: frames get lost
                port.socket.send(frame)


if __name__ == "__main__":
    # Before all ranks, which poll: else a frame would wait for them.
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    gc.disable()
    serve(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])
