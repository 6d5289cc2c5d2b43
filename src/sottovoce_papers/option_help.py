"""What the options of the experiments mean, in a few words: what `sottovoce reproduce NAME --help` shows.

A name means the same in every experiment, but for those that `OWN` lists.
"""

from __future__ import annotations

MEANINGS: dict[str, str] = {
    "against": "who must not learn more: outsiders, one, three, tree, local, central",
    "agents": "number of agents",
    "algorithms": "which algorithms are audited",
    "alpha": "order of the Rényi loss",
    "attacker": "the node that attacks",
    "attackers": "how many nodes attack together",
    "central_steps": "steps of central DP-SGD",
    "clip_norm": "bound on the norm of one gradient",
    "clips": "bounds on a gradient, tried in turn",
    "confidence": "of all lower bounds together",
    "data": "which data sets",
    "delta": "delta of the budget",
    "density": "edges of an Erdős-Rényi graph, in ln n / n",
    "device": "where a network trains: cpu, or cuda",
    "dim": "number of parameters",
    "dimension": "of the hypercube, which has 2^dimension nodes",
    "draws": "random graphs, or walks, averaged over",
    "egos": "which Facebook ego graphs",
    "epochs": "passes of training on public data",
    "epsilon": "privacy budget; inf is no privacy",
    "epsilons": "privacy budgets, one curve over them",
    "example": "the node whose reconstructions are shown",
    "fiedler": "connectivity: 1, 0.7, 0.39 or 0.06; all without it",
    "gammas": "step parameters of ADMM, tried in turn",
    "gossip_steps": "gradient steps of gossip",
    "graphs": "random graphs per setting",
    "greedy": "numbers of greedy steps, tried in turn",
    "iterations": "of the search for an input",
    "keep": "folder where finished cells are kept, to go on after a stop",
    "l1": "weight of the l1 penalty",
    "l2": "weight of the l2 penalty",
    "learning_rate": "step size",
    "learning_rates": "step sizes, tried in turn",
    "level": "chance that any bound is wrong",
    "losses": "privacy losses at which methods are compared",
    "batch_size": "records per step",
    "batches": "shares of the records per step, tried in turn",
    "mean_mu": "mean privacy loss (Gaussian mu) of all methods",
    "members": "numbers of members",
    "method": "central, dsgd, dsgt, dinno; all without it",
    "models": "trained models per side",
    "n": "number of nodes",
    "nodes": "length of the line",
    "noise": "standard deviation of noise in the messages",
    "noise_multiplier": "noise over the sensitivity",
    "noise_std": "standard deviation of the noise",
    "noises": "standard deviations of the noise",
    "numbers": "how many numbers are averaged",
    "observers": "nodes whose view is taken, per graph",
    "passes": "passes over the data",
    "pretrain": "public records to start from",
    "probabilities": "edge probabilities",
    "radius": "nodes closer than this are joined (unit square)",
    "randomized_sizes": "numbers of nodes for randomized gossip",
    "rate": "learning rate of the attacked descent",
    "rates": "shares of the nodes that are silent",
    "records": "number of records",
    "relaxation": "step of the fixed-point iteration, 0 to 1",
    "relaxations": "steps of the iteration, tried in turn",
    "repeats": "draws of pictures",
    "results": "folder with one record per trial; what is there is not run again",
    "rounds": "rounds of gossip",
    "runs": "repetitions, of which median and extremes are shown",
    "scale": "of the second feature over the first",
    "seed": "of all random numbers",
    "settings": "printed (the paper's), tuned, or both",
    "share": "of the records in one batch",
    "short_rounds": "gossip cut short at these many rounds",
    "shown": "test records",
    "side": "of the grid",
    "sizes": "numbers of nodes or records",
    "skew": "how data are dealt out: 0 alike, 1 own classes only",
    "skip": "leave out trials that are not stored",
    "steps": "number of steps",
    "stored": "a record of what was tried, instead of trying it",
    "strong_convexity": "of the strongly convex problem",
    "support": "non-zero entries of the true vector",
    "tau": "contraction of the operator",
    "trials": "per cell, each with its own seed",
    "tv": "weight of total variation in the search",
    "users": "number of users",
    "visits": "visits per user",
}
OWN: dict[tuple[str, str], str] = {
    ("attack-line-cifar10", "steps"): "observed steps of descent; without it as many as the attack needs",
    ("audit-table5", "epsilon"): "nominal epsilon, to be refuted",
    ("bayrooti2023-tuning", "results"): "folder with what was tried; what is there is not run again",
    ("convex-audits", "runs"): "runs per side of every audit",
    ("dpcd-electricity", "records"): "number of records; all without it",
    ("dpcd-electricity", "steps"): "step sizes relative to 1 / smoothness, tried in turn",
    ("dpgcd-dorothea", "steps"): "step sizes relative to 1 / smoothness, tried in turn",
    ("dpgcd-madelon", "steps"): "step sizes relative to 1 / smoothness, tried in turn",
    ("muffliato-rate", "records"): "records per node",
    ("muffliato-utility", "epsilon"): "mean Rényi loss of all rows",
    ("secure-sum-network", "method"): "consensus, masked",
    ("walk-vs-gossip", "density"): "edges of the Erdős-Rényi graph, in ln n / n",
}


def meaning(experiment: str, option: str) -> str:
    """Return what an option of an experiment means; nothing for one that no line describes.

    Examples
    --------
    >>> meaning("table1", "settings")
    "printed (the paper's), tuned, or both"
    >>> meaning("dpcd-electricity", "steps") == meaning("dpsgd-rates", "steps")
    False
    """
    return OWN.get((experiment, option), MEANINGS.get(option, ""))
