"""``synkhronos flight``: print what every rank did before a failure."""
