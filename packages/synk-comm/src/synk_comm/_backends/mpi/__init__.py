"""Rounds as MPI's own collectives, over mpi4py."""
