"""``synkhronos clean``: remove what dead processes left behind."""
