"""``synkhronos demo``, ``bench``, ``check`` and ``trace``: run other programs."""
