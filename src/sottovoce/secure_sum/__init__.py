"""Secure sum: mask keys, pair masks and the common integer grid."""
