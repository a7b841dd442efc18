"""All that touches the graph engine or pygpu: specs, compiling, shared variables, devices."""
