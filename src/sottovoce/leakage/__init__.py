"""Leakage: exact linear algebra of what an observer learns from matrices and traces."""
