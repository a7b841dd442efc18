"""The contract of ``synk_comm.abc`` as checks, each of which all ranks of a group run at once."""
