"""Starting, feeding, watching and ending the processes of ranks."""
