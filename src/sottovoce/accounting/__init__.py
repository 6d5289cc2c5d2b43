"""Accounting: releases, privacy curves, guarantees, and the accountant that turns a plan into a guarantee."""
