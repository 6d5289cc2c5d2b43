"""Bellet 2024, talk "Privacy in decentralized machine learning": attacks and random walks."""
