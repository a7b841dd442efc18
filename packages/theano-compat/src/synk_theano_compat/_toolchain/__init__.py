"""The compiler, the BLAS that C code is linked against, and the cache for what is built."""
