"""Sentinels: they watch what a program computes, and say where it begins to go wrong.

`_drift` compares the ranks' values of variables every so many calls, by `_digest`; `_finite` looks
at what each `_execution` gives, and `_blame` for what it is owed to, by `_search`. `_api` is the
master's hand on both. Parts are imported by their own names: each belongs to another layer.
"""
