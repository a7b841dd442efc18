"""GPUs and the CPU as devices: their names, memory, sums, and what is copied to and from them."""
