"""Plan files, one per algorithm of the registry: what each needs, and nothing it does not."""

from sottovoce.algorithms import registry

DATA = 'name = "breast_cancer"\nstandardize = true\nunit_rows = true\ntest_share = 0.2\n'
NOISE = "noise_multiplier = 4.0\nseed = 1\n"
ACCEPT = 'accept = ["standardize", "held-out score"]\n'
NETWORK = '[network]\ngraph = "hypercube:3"\n'

# algorithm -> (whether it runs over a network, [protocol], [train])
TRAINED = {
    "consensus-sgd": (True, 'name = "tree"\n', "steps = 5\nlearning_rate = 1.0\n"),
    "muffliato-sgd": (True, 'name = "gossip"\nrounds = 2\n', "steps = 5\nlearning_rate = 1.0\n"),
    "dp-dsgd": (True, "", "steps = 5\nlearning_rate = 1.0\nbatch_size = 20\n"),
    "dp-dsgt": (True, "", "steps = 5\nlearning_rate = 1.0\n"),
    "dp-dinno": (True, "", "steps = 5\nlearning_rate = 0.1\nrho = 0.1\nprimal_steps = 2\n"),
    "random-walk-sgd": (True, "", "steps = 50\nlearning_rate = 0.1\n"),
    "decor": (True, "", "steps = 5\nlearning_rate = 1.0\npair_multiplier = 2.0\n"),
    "mafalda": (True, "", "steps = 5\nlearning_rate = 1.0\n"),
    "dp-sgd": (False, "", "steps = 20\nbatch_size = 50\nlearning_rate = 2.0\n"),
    "dp-cd": (False, "", "steps = 60\nsmoothness = 0.01\n"),
    "dp-gcd": (False, "", "steps = 5\nsmoothness = 0.01\n"),
    "admm": (False, "", "steps = 10\ngamma = 2.0\n"),
    "federated-admm": (False, "", "steps = 10\ngamma = 2.0\nsample_rate = 0.5\n"),
    "token-admm": (False, "", "steps = 40\ngamma = 2.0\n"),
}
NOISES = {"dp-gcd": "noise_ratio = 20.0\nseed = 1\n"}
# what no [train] section can describe: the one is [average], the other takes an operator of Python's
ELSEWHERE = ("averaging", "fixed-point")
# an algorithm that is new in the registry is expected to need no more than a network and a rate
ANEW = (True, "", "steps = 5\nlearning_rate = 1.0\n")
ALGORITHMS = [name for name in registry.ALGORITHMS if name not in ELSEWHERE]

AVERAGE = """version = 1
title = "Waiting times"
[network]
graph = "hypercube:3"
[protocol]
name = "exchange"
[average]
radius = 0.5
center = 0.5
adjacency = "user"
values = [0, 0, 0, 0, 1, 1, 1, 1]
"""

NET = """version = 1
[network]
graph = "ring:5"
[data]
name = "digits"
skew = 0.5
[model]
name = "mlp"
options = { inputs = 64, hidden = 8 }
[train]
algorithm = "dp-dsgt"
adjacency = "add-remove"
steps = 8
clip_norm = 1.0
batch_size = 64
accounting = "rdp"
learning_rate = [0.5, 0.1]
[budget]
epsilon = 20.0
delta = 1e-5
view = "local"
[noise]
seed = 1
"""


def trained(algorithm, noise=None, more="", data=DATA, accept=ACCEPT):
    """Return the text of a training plan; ``more`` stands at its end."""
    over_network, protocol, options = TRAINED.get(algorithm, ANEW)
    adjacency = registry.algorithm(algorithm).adjacencies[0]
    return "".join([
        "version = 1\n", accept, f"[data]\n{data}", NETWORK if over_network else "",
        f"[protocol]\n{protocol}" if protocol else "",
        f'[train]\nalgorithm = "{algorithm}"\nadjacency = "{adjacency}"\n',
        f"clip_norm = 1.0\n{options}",
        f"[noise]\n{NOISES.get(algorithm, NOISE) if noise is None else noise}", more,
    ])  # fmt: skip


BUDGETED_AVERAGE = """version = 1
[network]
graph = "{graph}"
[protocol]
name = "{protocol}"
[average]
radius = 0.5
adjacency = "user"
[budget]
epsilon = {epsilon}
delta = 1e-5
"""


BUDGETED_TRAINING = """version = 1
accept = ["standardize", "held-out score"]
[data]
name = "breast_cancer"
standardize = true
unit_rows = true
test_share = 0.2
[network]
graph = "hypercube:2"
[protocol]
name = "{protocol}"
[train]
algorithm = "consensus-sgd"
adjacency = "{adjacency}"
steps = {steps}
clip_norm = 1.0
learning_rate = 2.0
[noise]
seed = 1
[budget]
epsilon = {epsilon}
delta = 1e-5
"""
