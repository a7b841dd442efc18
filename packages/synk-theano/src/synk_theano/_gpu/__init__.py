"""Theano's GPUs.

`backend` answers what synk-core asks, and takes a rank's devices (`device`). A function for a GPU
gives and takes arrays there (`ends`), is recorded and replayed (`captured`) where it may be
(`capturable`), and tells of parts of a gradient (`parts`), which ranks reduce meanwhile.
Arguments get new memory in each call, because an update may keep it, and outputs are copies,
because a variable may be changed in place later.
"""
