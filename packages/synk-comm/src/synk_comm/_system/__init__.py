"""Services of the system: futexes, memory without names, pidfds, folders."""
