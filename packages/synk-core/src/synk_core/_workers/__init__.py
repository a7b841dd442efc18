"""Starting, watching and ending the worker processes."""
