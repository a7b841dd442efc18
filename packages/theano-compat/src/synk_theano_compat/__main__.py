"""``python -m synk_theano_compat``: the status of the compatibility layer; see ``--help``."""

from __future__ import annotations

import sys

from synk_theano_compat._status import main

sys.exit(main())
