"""Bayrooti, Gao, Prorok 2023: private decentralized deep learning with consensus algorithms."""
