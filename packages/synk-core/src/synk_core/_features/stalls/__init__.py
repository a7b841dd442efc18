"""Warnings of ranks that others wait for."""
