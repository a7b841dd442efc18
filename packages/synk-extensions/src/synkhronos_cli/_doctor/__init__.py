"""``synkhronos doctor``: examine the machine, report, and fix what needs no root."""
