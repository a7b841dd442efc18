"""JAX as the device of ranks: functions and collectives are programs of XLA.

`pending` composes programs, `reductions` puts collectives into them, `machine` runs functions,
`device` moves values, and `backend` answers synk-core's questions. JAX is imported when a device is
counted or taken, not before.
"""
