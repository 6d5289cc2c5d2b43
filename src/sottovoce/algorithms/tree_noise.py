"""Least noise on a spanning tree without cryptography: who must add how much.

Links are encrypted, members may add different noise. A coalition C of at most c members sees the sum over
every component K of the tree without C, so "nobody in a coalition of c learns more than mu of anyone" is
linear in the variances:

.. math:: \\min \\sum_u s_u^2 \\quad\\text{subject to}\\quad \\sum_{u \\in K} s_u^2 \\ge \\tau
          \\text{ for every such } K, \\qquad \\tau = (\\Delta / \\mu)^2.

In closed form the members of tree degree at most c take :math:`\\tau`, as under local privacy, and the others
nothing: a single node of degree at most c is a component; and a component of two or more nodes has two leaves
of its own and at most c edges to the coalition, so one of the two has tree degree at most :math:`1 + c/2`, or
1 if c = 1. With a floor for all members, the others take the floor. So against single observers trees
with few leaves are best: a Hamiltonian path needs :math:`2\\tau`, twice a curator's noise.

Unequal requirements (uneven records) have no closed form; they are the linear program itself, which by the
closed form of the worst coalition (`sottovoce.accounting.observation.coalitions`) needs a number of
constraints that grows like n, not like the number of coalitions. Masked sums (`sottovoce.protocols.Masked`)
need :math:`n/(n - c)\\,\\tau` on any tree. A guarantee never rests on this module: `account` computes the
cost of whatever noise comes out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from sottovoce import _validate
from sottovoce.accounting.observation.coalitions import tree_hiding
from sottovoce.errors import BudgetInfeasible, InvalidInput
from sottovoce.protocols import Protocol, Tree

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

_MOST_SEEN = 2_000_000  # members times coalitions times steps of fresh trees
_MOST_CUTS = 200


def least_tree_noise(tree: Tree, tolerate: int = 1, *, floor: float) -> np.ndarray:
    """Return (n,) the variances of least total, in units of what local privacy takes per member.

    ``tolerate`` is the size c of the coalitions against which the guarantee holds, ``floor`` the least
    variance of each member, in [0, 1]: one with none has no guarantee of its own once more than c collude.

    Guarantees
    ----------
    With these variances times ``(Delta / mu)**2``, changing a member's row by at most ``Delta`` is ``mu``-GDP
    for every coalition of at most c other members that sees nothing but its own links.
    """
    c, least = _coalition_size(tree, tolerate), _validate.probability(floor, "floor")
    children = np.bincount(tree.parents[tree.parents >= 0], minlength=tree.n)
    degrees = children + (tree.parents >= 0)
    return np.where(degrees <= c, 1.0, least)


def tree_noise_program(
    tree: Tree, tolerate: int = 1, *, required: ArrayLike = 1.0, floor: float = 0.0
) -> np.ndarray:
    """Return (n,) the variances of least total by the linear program, for equal or unequal requirements.

    ``required`` is the variance that must hide a member, ``(Delta_u / mu_u)**2``: one number, or one per
    member. Each takes at least the share ``floor`` of its own requirement.

    Guarantees
    ----------
    Every component seen by a coalition of at most ``tolerate`` members holds at least what each of its
    members requires; the solution is scaled up by the solver's rounding.
    """
    c, least = _coalition_size(tree, tolerate), _validate.probability(floor, "floor")
    needs = np.full(tree.n, required, dtype=float)
    lowest = least * needs
    matrix, limits = _constraints(tree, c, needs)
    cost, bounds = np.zeros((2, matrix.shape[1]))  # only noise costs, and nothing is below zero
    cost[: tree.n], bounds[: tree.n] = 1.0, lowest
    solution = _solve(cost, matrix, limits, bounds, primal_feasibility_tolerance=1e-9)
    variances = np.maximum(solution.x[: tree.n], lowest)
    # by how much the noise must grow to meet all requirements, computed without the solver
    short = float((needs / np.maximum(tree_hiding(tree, variances, c), 1e-300)).max())
    if short > 1 + 1e-6:
        raise BudgetInfeasible(f"the solver's noise misses a requirement by a factor {short:g}.")
    return variances * max(short, 1.0)


def _constraints(tree: Tree, c: int, needs: np.ndarray) -> tuple[sparse.csr_array, np.ndarray]:
    """Return "every member is hidden" as ``matrix @ x <= limits``; x begins with the n variances.

    The weight of the c heaviest of some sides is ``min_t c t + sum_x max(0, side_x - t)``, so "all but the
    c heaviest hide u" is linear with one more unknown t per member and one per side of it.
    """
    n, size = tree.n, tree.n
    inside = np.eye(n, dtype=bool)  # [top, member of the subtree]
    for u in np.argsort(-tree.depths, kind="stable").tolist():
        if tree.parents[u] >= 0:
            inside[tree.parents[u]] |= inside[u]
    entries: list[tuple[int, int, float]] = []
    limits: list[float] = []
    for u in np.flatnonzero(needs).tolist():
        near = np.flatnonzero((tree.parents == u) | (np.arange(n) == tree.parents[u])).tolist()
        hidden = len(limits)
        limits.append(-needs[u])
        if len(near) <= c:  # every side can be cut off: its own noise alone hides u
            entries.append((hidden, u, -1.0))
            continue
        level, size = size, size + 1
        entries += [(hidden, level, float(c)), *((hidden, w, -1.0) for w in range(n))]
        for w in near:
            over, size = size, size + 1
            row = len(limits)
            limits.append(0.0)  # side - t - over <= 0
            entries += [(hidden, over, 1.0), (row, level, -1.0), (row, over, -1.0)]
            side = inside[w] if tree.parents[w] == u else ~inside[u]
            entries += [(row, member, 1.0) for member in np.flatnonzero(side).tolist()]
    rows, columns, values = zip(*entries, strict=True)
    return sparse.csr_array((values, (rows, columns)), shape=(len(limits), size)), np.array(limits)


def fresh_tree_noise(
    trees: Sequence[Tree],
    tolerate: int = 1,
    *,
    required: ArrayLike = 1.0,
    floor: float = 0.0,
    gap: float = 1e-3,
) -> np.ndarray:
    """Return (n,) the variances of least total for one tree per step, in units of local privacy's.

    A coalition sees a member hidden in another component at every step, so "no more than mu over all steps"
    reads, with the variances in units of what local privacy takes,

    .. math:: \\frac1T \\sum_t \\frac{r_u}{\\sum_{w \\in K_t(u, C)} s_w^2} \\le 1
              \\text{ for every coalition } C \\text{ and member } u,

    which is convex. It is solved by cutting planes: each linear program is a lower bound of the least total,
    and its answer, scaled until every constraint holds, an upper one; the search ends where they meet.

    Guarantees
    ----------
    As `least_tree_noise`, over all steps together, for Gaussian releases in every step. For sampled batches
    the constraint is the leading term of the loss, so compute the cost of the plan. The total is, relatively,
    at most ``gap`` above the optimum, or an error is raised.
    """
    n = trees[0].n
    c, least = _coalition_size(trees[0], tolerate), _validate.probability(floor, "floor")
    needs = np.full(n, required, dtype=float)
    blocks, pairs, pair_users = _seen_over_steps(trees, c)

    def losses(variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        block_noise = blocks @ variances
        return needs[pair_users] * (pairs @ (1 / block_noise)), block_noise

    variances = needs
    best = variances * max(losses(variances)[0].max(), 1.0)
    lowest = np.maximum(least * needs, 1e-9 * needs.max())
    cuts, limits = np.zeros((0, n)), np.zeros(0)
    bound = 0.0
    for _ in range(_MOST_CUTS):
        pair_losses, _ = losses(variances)
        scaled = np.maximum(variances * max(pair_losses.max(), 1.0), lowest)
        best = scaled if scaled.sum() < best.sum() else best
        if best.sum() <= (1 + gap) * bound:
            return best
        # where the losses are nearly 1 the tangent is the best cut: move to the boundary before cutting
        at = variances * pair_losses.max()
        pair_losses, block_noise = losses(at)
        worst = np.argsort(-pair_losses)[: 4 * n]
        weights = sparse.diags_array(needs[pair_users[worst]]) @ pairs[worst]
        slopes = (-weights @ (sparse.diags_array(1 / block_noise**2) @ blocks)).toarray()
        cuts = np.concatenate([cuts, slopes])
        limits = np.concatenate([limits, 1 - pair_losses[worst] + slopes @ at])
        solution = _solve(np.ones(n), cuts, limits, lowest)
        bound = max(bound, float(solution.fun))
        # halfway to what has been best so far: plain cutting planes jump from corner to corner
        variances = (np.maximum(solution.x, lowest) + best) / 2
        if len(cuts) > 40 * n:  # forget the loosest cuts
            slack = limits - cuts @ solution.x
            tight = slack < np.quantile(slack, 0.9) + 1e-12
            cuts, limits = cuts[tight], limits[tight]
    raise BudgetInfeasible(
        f"the least noise on these trees is known to {best.sum() / bound - 1:.1%} only; allow a larger gap."
    )


def _seen_over_steps(
    trees: Sequence[Tree], size: int
) -> tuple[sparse.csr_array, sparse.csr_array, np.ndarray]:
    """Return the blocks of all steps (block, member), who is hidden in which ((coalition, user), block), and
    the user of each pair; the entries of the second are one over the number of steps."""
    n, steps = trees[0].n, len(trees)
    coalitions = [*combinations(range(n), size)]  # a smaller coalition sees less, so these decide
    if n * len(coalitions) * steps > _MOST_SEEN:
        raise InvalidInput(
            f"{len(coalitions)} coalitions of {size} on {steps} trees are too many to go through; take fewer "
            "steps or colluders, or one fixed tree."
        )
    distinct: dict[bytes, tuple[int, np.ndarray]] = {}
    rows, columns = [], []
    for tree in dict.fromkeys(trees):
        times = sum(one is tree for one in trees)
        for i, coalition in enumerate(coalitions):
            for block in tree.blocks(coalition):
                k, _ = distinct.setdefault(block.tobytes(), (len(distinct), block))
                rows += (i * n + block).tolist() * times
                columns += [k] * (len(block) * times)
    members = np.concatenate([block for _, block in distinct.values()])
    numbers = np.repeat(np.arange(len(distinct)), [len(block) for _, block in distinct.values()])
    blocks = sparse.csr_array((np.ones(len(members)), (numbers, members)), (len(distinct), n))
    present, places = np.unique(rows, return_inverse=True)
    shape = len(present), len(distinct)
    pairs = sparse.csr_array((np.full(len(rows), 1 / steps), (places, columns)), shape)
    return blocks, pairs, present % n


def optimal_noise(
    schedule: Sequence[Protocol], tolerate: int = 1, *, floor: float, required: ArrayLike = 1.0
) -> tuple[float, ...]:
    """Return the noise std of all members for the trees of a plan, in units of that of local privacy.

    One tree in every step has a closed form, or a linear program where members require unlike amounts; trees
    that change are the convex program of `fresh_tree_noise`. Answers of a solver are rounded up to a 1024th
    of a variance, so that members who compute them on unlike machines get the same.
    """
    shapes = []
    for protocol in schedule:
        tree = protocol.sum_tree
        if tree is None:
            raise InvalidInput(
                f'noise_allocation = "optimal" is for trees, got {protocol.name}; masked sums and exchange '
                "have equal noise."
            )
        shapes.append(_Shape(tree.parents.tobytes(), tree))
    needs = tuple(np.full(shapes[0].tree.n, required, dtype=float).tolist())
    return _optimal_noise(tuple(shapes), tolerate, float(floor), needs)


@dataclass(frozen=True)
class _Shape:
    """A tree that equals other trees of its shape: calibration asks for the same trees many times."""

    parents: bytes
    tree: Tree = field(compare=False)


@lru_cache(maxsize=64)
def _optimal_noise(
    shapes: tuple[_Shape, ...], tolerate: int, floor: float, needs: tuple[float, ...]
) -> tuple[float, ...]:
    trees = [shape.tree for shape in shapes]
    fixed = len(set(shapes)) == 1
    if fixed and len(set(needs)) == 1:
        variances = needs[0] * least_tree_noise(trees[0], tolerate, floor=floor)
        return tuple(np.sqrt(variances).tolist())
    if fixed:
        variances = tree_noise_program(trees[0], tolerate, required=needs, floor=floor)
    else:
        variances = fresh_tree_noise(trees, tolerate, required=needs, floor=floor)
    grid = 1024 / max(needs)
    return tuple(np.sqrt(np.ceil(variances * grid - 1e-6) / grid).tolist())


def _solve(
    cost: np.ndarray,
    matrix: np.ndarray | sparse.csr_array,
    limits: np.ndarray,
    lowest: np.ndarray,
    **options: float,
) -> OptimizeResult:
    from scipy.optimize import linprog

    bounds = np.stack([lowest, np.full(len(lowest), np.inf)], axis=1)
    solution = linprog(cost, A_ub=matrix, b_ub=limits, bounds=bounds, method="highs", options=options)
    if not solution.success:
        raise BudgetInfeasible(f"the least noise on these trees was not found: {solution.message}")
    return solution


def _coalition_size(tree: Tree, tolerate: int) -> int:
    c = _validate.count(tolerate, "tolerate")
    if c >= tree.n:
        raise InvalidInput(f"tolerate must be below the {tree.n} members of the tree, got {c}.")
    return c
