"""The worst coalition over trees that change from step to step.

In the step of tree T_t a coalition A sees the sum of every component of T_t without A. The component of a
user u is the intersection, over the members a of A, of its components without a alone: bit masks are combined
by AND, and their bits counted. With m_t nodes in it and equal noise, the coalition learns the share 1 / m_t
of the step. All coalitions are tried where that takes at most `MAX_WORK` steps. Beyond that the loss is
bounded: if k members are to join a coalition that leaves u a component of m_t nodes, and joining alone the
member a would cut off b_t(a) of them, then

.. math:: \\sum_t \\frac{1}{|\\text{component}|} \\le \\sum_t \\frac{1}{m_t}
          + \\text{the } k \\text{ largest } \\sum_t \\frac{b_t(a)}{m_t},

because 1 / (m - y) is convex in the number y <= m - 1 of nodes cut off, and so at most (1 + y) / m.
"""

from __future__ import annotations

import numpy as np
from numba import njit

MAX_WORK = 1e9  # coalitions times users times steps, times the orders of a sampled release


@njit(cache=True)
def components(parents: np.ndarray, by_depth: np.ndarray) -> np.ndarray:
    """Return (user, removed, step, word): the component of the user without the removed node, as bits.

    ``parents`` (step, node) are the trees, ``by_depth`` their nodes, the deepest first.
    """
    steps, n = parents.shape
    words = (n + 63) // 64
    masks = np.zeros((n, n, steps, words), np.uint64)
    below = np.zeros((n, words), np.uint64)
    everybody = np.zeros(words, np.uint64)
    for v in range(n):
        everybody[v // 64] |= np.uint64(1) << np.uint64(v % 64)
    for t in range(steps):
        below[:] = 0
        for i in range(n):  # the deepest first
            v = by_depth[t, i]
            below[v, v // 64] |= np.uint64(1) << np.uint64(v % 64)
            if parents[t, v] >= 0:
                below[parents[t, v]] |= below[v]
        for a in range(n):
            for u in range(n):
                if u != a:
                    masks[u, a, t] = everybody & ~below[a]
        for c in range(n):
            a = parents[t, c]
            if a >= 0:
                for u in range(n):
                    if below[c, u // 64] >> np.uint64(u % 64) & np.uint64(1):
                        masks[u, a, t] = below[c]
    return masks


@njit(cache=True, inline="always")
def _bits(word: np.uint64) -> np.int64:
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((word * np.uint64(0x0101010101010101)) >> np.uint64(56))


@njit(cache=True)
def largest_losses(masks: np.ndarray, user: int, losses: np.ndarray, size: int) -> np.ndarray:
    """Return what the worst coalition of ``size`` learns: the largest sum over the steps, per row of losses.

    ``losses`` are by the number of nodes in the component of the user, ``masks`` those of `components`.
    """
    n, _, steps, words = masks.shape
    chosen = np.full(size, -1, np.int64)
    left = np.zeros((size + 1, steps, words), np.uint64)  # what the first members of the coalition leave
    left[0] = ~np.uint64(0)
    largest = np.zeros(len(losses))
    total = np.zeros(len(losses))
    depth = 0
    while depth >= 0:
        chosen[depth] += 1
        if chosen[depth] == user:
            chosen[depth] += 1
        a = chosen[depth]
        if a >= n:
            depth -= 1
        elif depth < size - 1:
            left[depth + 1] = left[depth] & masks[user, a]
            depth += 1
            chosen[depth] = a
        else:
            total[:] = 0
            for t in range(steps):
                nodes = np.int64(0)
                for w in range(words):
                    nodes += _bits(left[depth, t, w] & masks[user, a, t, w])
                total += losses[:, nodes]
            largest = np.maximum(largest, total)
    return largest


@njit(cache=True)
def share_bound(masks: np.ndarray, user: int, size: int) -> float:
    """Return a bound on the sum of shares: every first member is tried, the others are bounded."""
    n, _, steps, words = masks.shape
    bound = 0.0
    for first in range(n):
        if first == user:
            continue
        share = 0.0
        gains = np.zeros(n)
        for t in range(steps):
            nodes = np.int64(0)
            for w in range(words):
                nodes += _bits(masks[user, first, t, w])
            share += 1.0 / nodes
            for a in range(n):
                if a not in (user, first):
                    stay = np.int64(0)
                    for w in range(words):
                        stay += _bits(masks[user, first, t, w] & masks[user, a, t, w])
                    gains[a] += (nodes - stay) / nodes
        gains = np.sort(gains)
        bound = max(bound, min(share + gains[n - size + 1 :].sum(), float(steps)))
    return bound
