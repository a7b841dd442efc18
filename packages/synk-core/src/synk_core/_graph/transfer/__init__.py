"""How a compiled function travels to another process: flat, pickled, linked again."""
