"""``synkhronos demo``, ``check`` and ``trace``: run other programs."""
