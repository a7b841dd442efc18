"""``python -m synk_theano_compat``: what is active here and what it does; see ``--help``."""

from __future__ import annotations

import sys

from synk_theano_compat._status import main

sys.exit(main())
