"""The objects that users call: the runtime and its functions, in the master."""
