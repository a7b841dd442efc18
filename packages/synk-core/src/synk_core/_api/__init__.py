"""What runs while the user writes: the runtime, its functions, and what is called on them."""
