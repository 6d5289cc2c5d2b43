"""Least noise on a spanning tree without cryptography: who must add how much, and which tree to take.

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

The worst coalition of a member has a closed form, too, whatever the noise: c colluders do best right beside
their victim, on the sides where most noise is. For take any coalition and move each of its members to the
neighbor of the victim on its own side: no side is open that was not, and every side that was cut is gone
whole. So u is hidden by all the noise but that of its c loudest sides (the parts of the tree without u), and
coalitions need not be tried.

Unequal requirements (uneven records, budgets per pair) have no closed form; they are the linear program
itself, which by the same argument needs a number of constraints that grows like n, not like the number of
coalitions. Masked sums (`sottovoce.protocols.Masked`) need :math:`n/(n - c)\\,\\tau` on any tree.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sottovoce import _validate
from sottovoce.errors import BudgetInfeasible, InvalidInput
from sottovoce.protocols import Protocol, Tree

_MOST_SEEN = 2_000_000  # members times coalitions times steps of fresh trees
_MOST_CUTS = 200


def least_tree_noise(tree: Tree, tolerate: int = 1, *, floor: float) -> np.ndarray:
    """Return (n,) the variances of least total, in units of what local privacy takes per member.

    Parameters
    ----------
    tree : the tree, the same in every step.
    tolerate : the size c of the coalitions against which the guarantee holds.
    floor : the least variance of each member, in [0, 1]. A member with none has no guarantee of its own
        once more than c collude.

    Guarantees
    ----------
    With these variances times ``(Delta / mu)**2``, changing a member's row by at most ``Delta`` is ``mu``-GDP
    for every coalition of at most c other members that sees nothing but its own links.
    """
    c, least = _checked(tree, tolerate, floor)
    return np.where(_degrees(tree) <= c, 1.0, least)


def tree_noise_program(
    tree: Tree, tolerate: int = 1, *, required: ArrayLike = 1.0, floor: float = 0.0
) -> np.ndarray:
    """Return (n,) the variances of least total by the linear program, for equal or unequal requirements.

    Parameters
    ----------
    tree, tolerate : as for `least_tree_noise`.
    required : the variance that must hide a member, ``(Delta_u / mu_u)**2``: one number, one per member, or
        ``[u, v]``, what must hide u from coalitions with v in them.
    floor : the least share of its own requirement that each member takes.

    Guarantees
    ----------
    Every component seen by a coalition of at most ``tolerate`` members holds at least what each of its
    members requires; the solution is scaled up by the solver's rounding.
    """
    from scipy.optimize import linprog

    c, least = _checked(tree, tolerate, floor)
    pairs = _requirements(required, tree.n)
    lowest = least * pairs.max(axis=1)
    program = _Program(tree, c, pairs)
    cost, bounds = program.costs_and_bounds(lowest)
    solution = linprog(
        cost, A_ub=program.matrix, b_ub=program.sides, bounds=bounds, method="highs",
        options={"primal_feasibility_tolerance": 1e-9},
    )  # fmt: skip
    if not solution.success:
        raise BudgetInfeasible(f"the least noise on this tree was not found: {solution.message}")
    variances = np.maximum(solution.x[: tree.n], lowest)
    short = program.shortfall(variances)
    if short > 1 + 1e-6:
        raise BudgetInfeasible(f"the solver's noise misses a requirement by a factor {short:g}.")
    return variances * max(short, 1.0)


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

    Parameters
    ----------
    trees : the tree of every step; all of them known beforehand, as public seeds make them.
    tolerate : the size c of the coalitions against which the guarantee holds.
    required : one number, or one per member, as for `tree_noise_program`.
    floor : the least share of its own requirement that each member takes.
    gap : how far above the least total, relatively, the answer may be.

    Guarantees
    ----------
    As `least_tree_noise`, over all steps together, for Gaussian releases in every step. For sampled batches
    the constraint is the leading term of the loss, so compute the cost of the plan. The total is at most
    ``gap`` above the optimum, or an error is raised.
    """
    from scipy import sparse
    from scipy.optimize import linprog

    if not trees:
        raise InvalidInput("fresh_tree_noise needs the tree of every step, got none.")
    n = trees[0].n
    c, least = _checked(trees[0], tolerate, floor)
    needs = _requirements(required, n).max(axis=1)
    blocks, pairs, pair_users = _seen_over_steps(trees, c)

    def losses(variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        block_noise = blocks @ variances
        return needs[pair_users] * (pairs @ (1 / block_noise)), block_noise

    variances = needs.astype(float)
    best = variances * max(losses(variances)[0].max(), 1.0)
    lowest = np.maximum(least * needs, 1e-9 * needs.max())
    cuts: list[np.ndarray] = []
    sides: list[float] = []
    bound = 0.0
    for _ in range(_MOST_CUTS):
        pair_losses, block_noise = losses(variances)
        scaled = np.maximum(variances * max(pair_losses.max(), 1.0), lowest)
        best = scaled if scaled.sum() < best.sum() else best
        if best.sum() <= (1 + gap) * bound:
            return best
        # where the losses are nearly 1 the tangent is the best cut: move to the boundary before cutting
        at = variances * pair_losses.max()
        pair_losses, block_noise = losses(at)
        worst = np.argsort(-pair_losses)[: 4 * n]
        slopes = -(sparse.diags_array(needs[pair_users[worst]]) @ pairs[worst]) @ (
            sparse.diags_array(1 / block_noise**2) @ blocks
        )
        rows = np.asarray(slopes.todense())
        cuts += list(rows)
        sides += (1 - pair_losses[worst] + rows @ at).tolist()
        solved = linprog(
            np.ones(n), A_ub=np.array(cuts), b_ub=np.array(sides),
            bounds=np.stack([lowest, np.full(n, np.inf)], axis=1), method="highs",
        )  # fmt: skip
        if not solved.success:
            raise BudgetInfeasible(f"the least noise on these trees was not found: {solved.message}")
        bound = max(bound, float(solved.fun))
        # halfway to what has been best so far: plain cutting planes jump from corner to corner
        variances = (np.maximum(solved.x, lowest) + best) / 2
        slack = np.array(sides) - np.array(cuts) @ solved.x
        tight = np.flatnonzero(slack < np.quantile(slack, 0.9) + 1e-12) if len(cuts) > 40 * n else None
        if tight is not None:
            cuts, sides = [cuts[k] for k in tight], [sides[k] for k in tight]
    raise BudgetInfeasible(
        f"the least noise on these trees is known to {best.sum() / bound - 1:.1%} only; allow a larger gap."
    )


def optimal_noise(
    schedule: Sequence[Protocol], tolerate: int = 1, *, floor: float, required: ArrayLike = 1.0
) -> tuple[float, ...]:
    """Return the noise std of all members for the trees of a plan, in units of that of local privacy.

    One tree in every step has a closed form, or a linear program where members require unlike amounts; trees
    that change are the convex program of `fresh_tree_noise`. Answers of a solver are rounded up to a 1024th
    of a variance, so that members who compute them on unlike machines get the same.

    Parameters
    ----------
    schedule : the protocol of every step; all must be trees.
    tolerate, floor, required : as for `tree_noise_program`.
    """
    trees: list[Tree] = []
    for protocol in schedule:
        if protocol.sum_tree is None:
            raise InvalidInput(
                f'noise = "optimal" is for trees, got {protocol.name}; masked sums and exchange have equal '
                "noise."
            )
        trees.append(protocol.sum_tree)
    needs = tuple(_requirements(required, trees[0].n).max(axis=1).tolist())
    shapes = tuple(tree.parents.tobytes() for tree in trees)
    key = (shapes, tolerate, float(floor), needs)
    if key not in _SOLVED:
        while len(_SOLVED) >= _KEPT:
            _SOLVED.pop(next(iter(_SOLVED)))
        _SOLVED[key] = _optimal(trees, len(set(shapes)) == 1, tolerate, floor, needs)
    return _SOLVED[key]


_SOLVED: dict[Any, tuple[float, ...]] = {}
_KEPT = 64  # plans whose noise is remembered: calibration asks for the same trees many times


def _optimal(
    schedule: Sequence[Tree], fixed: bool, tolerate: int, floor: float, needs: tuple[float, ...]
) -> tuple[float, ...]:
    if fixed and len(set(needs)) == 1:
        variances = needs[0] * least_tree_noise(schedule[0], tolerate, floor=floor)
        return tuple(np.sqrt(variances).tolist())
    if fixed:
        variances = tree_noise_program(schedule[0], tolerate, required=needs, floor=floor)
    else:
        variances = fresh_tree_noise(schedule, tolerate, required=needs, floor=floor)
    grid = 1024 / max(needs)
    return tuple(np.sqrt(np.ceil(variances * grid - 1e-6) / grid).tolist())


def tree_hiding(tree: Tree, variances: ArrayLike, colluders: int = 1) -> np.ndarray:
    """Return (n,) the noise that hides each member from the worst coalition of ``colluders`` others.

    All the noise but that of the member's loudest sides, as many as there are colluders; its own alone where
    it has no more neighbors than that.

    Guarantees
    ----------
    The least, over every coalition of at most ``colluders`` other members, of the noise in the sum that the
    member's row is part of: its loss against the worst of them is ``Delta**2`` over this, without going
    through them (a test does).
    """
    each, c = _weights(tree, variances), _colluding(tree, colluders)
    noise = np.empty(tree.n)
    for u, beside in enumerate(_sides(tree, each)):
        # added up, not subtracted from the whole: a quiet end must not drown in the rounding of loud others
        noise[u] = math.fsum([each[u], *(weight for weight, _ in beside[c:])])
    return noise


def worst_tree_coalitions(tree: Tree, variances: ArrayLike, colluders: int = 1) -> list[tuple[int, ...]]:
    """Return, for each member, the coalition of at most ``colluders`` others that learns most of it.

    They are its neighbors on its loudest sides: see `tree_hiding`.
    """
    each, c = _weights(tree, variances), _colluding(tree, colluders)
    return [tuple(sorted(w for _, w in beside[:c])) for beside in _sides(tree, each)]


# ---- sides of a member ---------------------------------------------------------------------------------


def _weights(tree: Tree, variances: ArrayLike) -> np.ndarray:
    each = np.asarray(variances, float).ravel()
    if each.shape != (tree.n,) or not (np.isfinite(each).all() and (each >= 0).all()):
        raise InvalidInput(f"variances must be {tree.n} finite numbers of at least 0, got {variances!r}.")
    return each


def _colluding(tree: Tree, colluders: int) -> int:
    c = _validate.count(colluders, "colluders")
    if c >= tree.n:
        raise InvalidInput(f"colluders must leave somebody of {tree.n} members, got {c}.")
    return c


def _subtrees(tree: Tree) -> list[list[int]]:
    """The members below and at each node."""
    below: list[list[int]] = [[u] for u in range(tree.n)]
    for u in np.argsort(-tree.depths, kind="stable").tolist():
        if tree.parents[u] >= 0:
            below[int(tree.parents[u])] += below[u]
    return below


def _sides(tree: Tree, weights: np.ndarray) -> list[list[tuple[float, int]]]:
    """Return, per member, what the parts of the tree without it weigh and who is next to it there; heaviest
    first."""
    order = np.argsort(-tree.depths, kind="stable").tolist()
    parents = tree.parents.tolist()
    under = weights.tolist()
    for u in order:
        if parents[u] >= 0:
            under[parents[u]] += under[u]
    children: list[list[int]] = [[] for _ in range(tree.n)]
    for u, parent in enumerate(parents):
        if parent >= 0:
            children[parent].append(u)
    above = [0.0] * tree.n  # added up from the top, so that no weight is the difference of larger ones
    for u in reversed(order):
        for child in children[u]:
            others = (under[w] for w in children[u] if w != child)
            above[child] = math.fsum([weights[u], above[u], *others])
    return [
        sorted(
            [*((under[w], w) for w in children[u]), *([(above[u], parents[u])] if parents[u] >= 0 else [])],
            key=lambda side: (-side[0], side[1]),
        )
        for u in range(tree.n)
    ]


class _Program:
    """The linear program of least noise, with one constraint per member, or per pair where pairs differ.

    The weight of the c heaviest of some sides is ``min_t c t + sum_x max(0, side_x - t)``, so "all but the
    c heaviest hide u" is linear with one more unknown t per member and one per side of it.
    """

    def __init__(self, tree: Tree, c: int, pairs: np.ndarray) -> None:
        self.tree, self.c = tree, c
        self.size = tree.n
        self.entries: list[tuple[int, int, float]] = []
        self.limits: list[float] = []
        self.requirements: list[tuple[int, int, float]] = []  # member, colluder (or -1), what it needs
        everyone = _subtrees(tree)
        inside = np.zeros((tree.n, tree.n), dtype=bool)  # [top, member of the subtree]
        for u, below in enumerate(everyone):
            inside[u, below] = True
        near = [
            np.flatnonzero((tree.parents == u) | (np.arange(tree.n) == tree.parents[u])).tolist()
            for u in range(tree.n)
        ]
        for u in range(tree.n):
            sides = [inside[w] if tree.parents[w] == u else ~inside[u] for w in near[u]]
            if np.ptp(np.delete(pairs[u], u)) == 0:  # the same against every observer
                self.hide(u, sides, c, -1, float(np.delete(pairs[u], u)[0]))
                continue
            for v in range(tree.n):
                if v != u and pairs[u, v] > 0:
                    self.hide(u, [_cut(tree, inside, u, v, side) for side in sides], c - 1, v, pairs[u, v])

    def hide(self, u: int, sides: list[np.ndarray], count: int, v: int, need: float) -> None:
        """Ask that u's own noise and its sides but the ``count`` heaviest weigh at least ``need``."""
        if need <= 0:
            return
        self.requirements.append((u, v, need))
        left = [side for side in sides if side.any()]
        row = self.row(-need)
        self.put(row, u, -1.0)
        if len(left) <= count:
            return
        for side in left:
            for w in np.flatnonzero(side).tolist():
                self.put(row, w, -1.0)
        if not count:
            return
        level = self.unknown()
        self.put(row, level, float(count))
        for side in left:
            over = self.unknown()
            self.put(row, over, 1.0)
            more = self.row(0.0)  # side - t - over <= 0
            self.put(more, level, -1.0)
            self.put(more, over, -1.0)
            for w in np.flatnonzero(side).tolist():
                self.put(more, w, 1.0)

    def row(self, limit: float) -> int:
        self.limits.append(limit)
        return len(self.limits) - 1

    def put(self, row: int, column: int, value: float) -> None:
        self.entries.append((row, column, value))

    def unknown(self) -> int:
        self.size += 1
        return self.size - 1

    @property
    def matrix(self) -> Any:
        from scipy import sparse

        rows, columns, values = zip(*self.entries, strict=True)
        return sparse.csr_array((values, (rows, columns)), shape=(len(self.limits), self.size))

    @property
    def sides(self) -> np.ndarray:
        return np.array(self.limits)

    def costs_and_bounds(self, lowest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Only the noise costs; nothing is below zero."""
        cost, least = np.zeros(self.size), np.zeros(self.size)
        cost[: self.tree.n], least[: self.tree.n] = 1.0, lowest
        return cost, np.stack([least, np.full(self.size, np.inf)], axis=1)

    def shortfall(self, variances: np.ndarray) -> float:
        """Return the factor by which the noise must grow to meet all requirements, without the solver."""
        hidden = tree_hiding(self.tree, variances, self.c)
        worst = 0.0
        for u, v, need in self.requirements:
            noise = hidden[u] if v < 0 else _hidden_from(self.tree, variances, self.c, u, v)
            worst = max(worst, need / max(float(noise), 1e-300))
        return worst


def _cut(tree: Tree, inside: np.ndarray, u: int, v: int, side: np.ndarray) -> np.ndarray:
    """Return what is left of a side of u once v is out of it: what lies between them."""
    if not side[v]:
        return side
    beyond = inside[v] if not inside[v][u] else ~inside[_towards(tree, v, u)]
    return side & ~beyond


def _towards(tree: Tree, v: int, u: int) -> int:
    """The child of v above u."""
    while tree.parents[u] != v:
        u = int(tree.parents[u])
    return u


def _hidden_from(tree: Tree, variances: np.ndarray, c: int, u: int, v: int) -> float:
    """The noise that hides u from the worst coalition with v in it."""
    part = next(part for part in tree.blocks([v]) if u in part)
    if c == 1:
        return math.fsum(variances[part])
    left = np.zeros(tree.n)
    left[part] = variances[part]
    return float(tree_hiding(tree, left, c - 1)[u])


# ---- coalitions ----------------------------------------------------------------------------------------


def _checked(tree: Tree, tolerate: int, floor: float) -> tuple[int, float]:
    c = _validate.count(tolerate, "tolerate")
    if c >= tree.n:
        raise InvalidInput(f"tolerate must be below the {tree.n} members of the tree, got {c}.")
    return c, _validate.probability(floor, "floor")


def _degrees(tree: Tree) -> np.ndarray:
    children = np.bincount(tree.parents[tree.parents >= 0], minlength=tree.n)
    return children + (tree.parents >= 0)


def _seen_over_steps(trees: Sequence[Tree], most: int) -> tuple[Any, Any, np.ndarray]:
    """Return the blocks of all steps (block, member), who is hidden in which ((coalition, user), block), and
    the user of each pair; the entries of the second are one over the number of steps."""
    from scipy import sparse

    n, steps = trees[0].n, len(trees)
    coalitions = [*combinations(range(n), most)]  # a larger coalition sees more, so these decide
    if n * len(coalitions) * steps > _MOST_SEEN:
        raise InvalidInput(
            f"{len(coalitions)} coalitions of {most} on {steps} trees are too many to go through; take fewer "
            "steps or colluders, or one fixed tree."
        )
    index: dict[bytes, int] = {}
    distinct: list[np.ndarray] = []
    rows, columns = [], []
    for tree in dict.fromkeys(trees):
        times = sum(one is tree for one in trees)
        for i, coalition in enumerate(coalitions):
            for block in tree.blocks(coalition):
                k = index.setdefault(block.tobytes(), len(index))
                if k == len(distinct):
                    distinct.append(block)
                rows += (i * n + block).tolist() * times
                columns += [k] * (len(block) * times)
    members = np.concatenate(distinct)
    lengths = [len(block) for block in distinct]
    blocks = sparse.csr_array(
        (np.ones(len(members)), (np.repeat(np.arange(len(distinct)), lengths), members)), (len(distinct), n)
    )
    present = np.unique(rows)
    pairs = sparse.csr_array(
        (np.full(len(rows), 1 / steps), (np.searchsorted(present, rows), columns)),
        (len(present), len(distinct)),
    )
    return blocks, pairs, present % n


def _requirements(required: ArrayLike, n: int) -> np.ndarray:
    pairs = np.asarray(required, float)
    if pairs.ndim <= 1 and pairs.shape in ((), (n,)):
        pairs = np.broadcast_to(pairs.reshape(-1, 1), (n, n))
    if pairs.shape != (n, n) or not (np.isfinite(pairs).all() and (pairs >= 0).all() and pairs.any()):
        raise InvalidInput(
            f"required must be positive: one number, one per member ({n}) or one per pair ({n}, {n}), got "
            f"shape {pairs.shape}."
        )
    return pairs
