"""What each rank does during an act, on the master and on the workers alike."""
