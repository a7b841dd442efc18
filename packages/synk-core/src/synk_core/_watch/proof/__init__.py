"""Proofs: whether calls give what one process would; see `_rank.proof` and `prover`."""
