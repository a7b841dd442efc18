"""What only the master does, around an act."""
