"""Recordings of what all ranks do."""
