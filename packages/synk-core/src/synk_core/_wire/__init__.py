"""What crosses a process: messages, the orders that carry them, and arrays in shared memory."""
