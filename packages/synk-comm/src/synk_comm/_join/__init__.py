"""Ways into a group, and which back-end carries it."""
