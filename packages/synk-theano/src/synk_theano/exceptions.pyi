from synk_core.exceptions import *
