from synk_core import *
from synk_core import __all__ as __all__

__version__: str
