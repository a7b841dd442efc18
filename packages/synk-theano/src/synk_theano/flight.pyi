from synk_core.flight import *
