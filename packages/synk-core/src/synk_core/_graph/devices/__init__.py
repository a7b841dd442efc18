"""GPUs and the CPU as devices of ranks."""
