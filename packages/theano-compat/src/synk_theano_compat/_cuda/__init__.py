"""CUDA and cuDNN: found, and named so that libgpuarray and Theano find them."""
