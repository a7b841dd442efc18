"""All that touches the graph engine: specs, compiling, shared variables, devices."""
