"""Proofs: whether calls give what one process would; see `schedule` and `comparing`."""
