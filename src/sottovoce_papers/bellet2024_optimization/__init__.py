"""Bellet 2024, talk "Differentially private optimization"."""
