"""Secure sum: the keys that members share (`keys`) and the masks that cancel in a sum (`masks`).

The integer grid of masked rows is `sottovoce.noise.grid`, the protocol that adds them
`sottovoce.protocols.masked`.
"""
