"""Theano's GPUs: `backend` answers synk-core, and takes a rank's devices (`device`).

A function for a GPU takes and gives arrays there (`ends`), is recorded and replayed (`captured`) if
it can be (`capturable`), and reports parts of a gradient (`parts`), which ranks reduce meanwhile.
Arguments get new memory in each call, which an update may keep; outputs are copies, because
variables may be changed in place later.
"""
