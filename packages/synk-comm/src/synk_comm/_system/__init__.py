"""A door each to the system: futexes, memory without names, pidfds, folders, secrets."""
