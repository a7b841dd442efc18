"""What hangs on the path of a call: a folder for each feature, which can be deleted.

A feature gives `Runtime` or `Function` methods as a base class of theirs (`feature`; the table of
these is `_api.features`), follows orders as an observer (`_master.record`), and performs acts of
its own, and variants of calls, on every rank (`Own`, `Call.variant`).
"""
