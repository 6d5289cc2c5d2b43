"""Leakage: exact linear algebra of what an observer learns from matrices and traces.

`sottovoce.accounting.exact.exact_loss` takes a network or a protocol and returns the leakage of every pair.
"""
