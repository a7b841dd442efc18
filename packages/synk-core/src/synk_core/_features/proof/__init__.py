"""Proofs that calls give the results of one process; see `functions` and `comparing`."""
