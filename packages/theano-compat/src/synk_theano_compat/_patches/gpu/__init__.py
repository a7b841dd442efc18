"""Patches of what Theano does on GPUs: pygpu, cuDNN, and its convolutions."""
