"""Bellet 2023 and 2024, talks on private decentralized learning: attacks and random walks."""
