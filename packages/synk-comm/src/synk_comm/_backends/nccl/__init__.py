"""Collectives on device arrays through NCCL."""
