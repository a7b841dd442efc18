from synk_core.mpi import *
