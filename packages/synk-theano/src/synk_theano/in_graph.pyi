from synk_core.in_graph import *
