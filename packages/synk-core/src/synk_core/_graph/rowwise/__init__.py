"""How the variables of a graph depend on the rows of its inputs; start with `walk`."""
