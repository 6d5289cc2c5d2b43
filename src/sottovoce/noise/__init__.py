"""Noise: samplers for simulation and for protection, correlated noise, and the randomness of a run."""
