"""Mechanisms: sample, clip, add noise, check against the plan, record the release."""
