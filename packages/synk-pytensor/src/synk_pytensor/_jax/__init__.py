"""PyTensor's functions in JAX. Only functions of mode JAX import these modules."""
