"""Compiled functions sent to another registry, as from the master to a worker."""

from __future__ import annotations

import numpy as np

from synk_core._graph.shared import VariableRegistry, value_of
from synk_core._graph.transfer.pickling import dumps, loads


class Replica:
    """The two ends of a transfer: the master's registry, and a worker's."""

    def __init__(self):
        self.sender = VariableRegistry()
        self.receiver = VariableRegistry()

    def send(self, *functions):
        for function in functions:
            for variable in function.get_shared():
                self.sender.number_of(variable)
        data, buffers = dumps(list(functions), self.sender)
        records, record_buffers = dumps(
            self.sender.records(self.receiver.end, lambda _values: False), self.sender
        )
        for record in loads(records, self.receiver, [np.array(b) for b in record_buffers]):
            self.receiver.adopt(record, record.value)
        return loads(data, self.receiver, [np.array(b) for b in buffers])

    def values(self):
        return [value_of(self.receiver[i]) for i in range(self.receiver.end)]

    def originals(self):
        return [value_of(self.sender[i]) for i in range(self.sender.end)]
