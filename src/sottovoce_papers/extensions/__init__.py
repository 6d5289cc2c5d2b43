"""Experiments beyond the papers: exact consensus, masked sums, fine-tuning, audits."""
