"""All that touches Theano or pygpu: specifications, compiling, shared variables, devices."""
