"""Proofs: whether calls give what one process would; see `prover` and `proving`."""
