"""Rounds through one block of shared memory."""
