from synk_core import *
from synk_core import __all__ as __all__

from . import engine as engine
from . import exceptions as exceptions
from . import flight as flight
from . import in_graph as in_graph
from . import mpi as mpi

__version__: str
