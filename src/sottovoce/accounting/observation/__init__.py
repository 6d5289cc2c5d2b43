"""Observation models: what an adversary observes of a plan's releases."""
