"""``synkhronos demo`` and ``run``: run other programs."""
