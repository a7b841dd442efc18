"""JAX: PyTensor's functions translated for it, and the device of ranks that it computes on.

`translation` gives functions to JAX. `pending` composes programs of them, `reductions` puts
collectives in, `machine` runs functions, `device` moves values, and `backend` answers synk-core's
questions. JAX is imported for functions of mode JAX, and when a device is taken.
"""
