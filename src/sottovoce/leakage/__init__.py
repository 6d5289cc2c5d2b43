"""Leakage: exact linear algebra of what an observer learns from matrices and traces.

`trace` is what happens to all rows, `view` what an observer sees of them, `span` its row space: in floating
point by `basis`, in exact arithmetic by `exact_rank` and `modular_linalg`.
`sottovoce.accounting.exact.exact_loss` takes a network or a protocol and returns the leakage of every pair.
"""
