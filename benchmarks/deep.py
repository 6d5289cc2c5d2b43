"""Clipped sums of per-sample gradients against Opacus, and a whole DP-DSGD step; medians, JSON.

    python -m benchmarks.deep [--quick] [--only sequences,steps] [--processor]

Rivals run in the same process, interleaved with ours, on the same batches. Times are medians of wall-clock
time, with ``--processor`` of processor time, which says the same of one thread on a quiet machine and still
something on a busy one; the record holds the load. Memory is the growth of the process' peak while one
form runs in its own process.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from sottovoce.objectives.nets.objective import NetObjective
from sottovoce.objectives.nets.zoo import bayrooti_mnist, resnet9
from sottovoce_papers.bayrooti2023.objective import BayrootiObjective


def opacus_hooks(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, clip_norm: float) -> Callable:
    """One agent's clipped sum as Opacus' hooks give it."""
    from opacus.grad_sample import GradSampleModule

    model = GradSampleModule(module.train())

    def work():
        for p in model.parameters():
            p.grad_sample, p.grad = None, None
        torch.nn.functional.cross_entropy(model(x), y).backward()
        each = [p.grad_sample.flatten(1) for p in model.parameters() if p.requires_grad]
        norms = torch.stack([g.norm(dim=1) for g in each], 1).norm(dim=1)
        weights = (clip_norm / norms).clamp(max=1)
        return torch.cat([weights @ g for g in each])

    return work


def opacus_ghost(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, clip_norm: float) -> Callable:
    """One agent's clipped sum as Opacus' fast gradient clipping gives it (two backward passes)."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping

    model = GradSampleModuleFastGradientClipping(
        module.train(), max_grad_norm=clip_norm, use_ghost_clipping=True
    )

    def work():
        model.zero_grad(set_to_none=True)
        losses = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
        losses.mean().backward(retain_graph=True)
        weights = model.get_clipping_coef()
        model.disable_hooks()
        model.zero_grad(set_to_none=True)
        (losses * weights).sum().backward()
        model.enable_hooks()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])

    return work


CLOCK: dict[str, Callable[[], float]] = {"now": time.perf_counter}


def interleaved(forms: dict[str, Callable], repeats: int) -> dict[str, float]:
    """Median seconds of each form, taken in turns."""
    clock = CLOCK["now"]
    times: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(repeats + 1):
        for name, work in forms.items():
            begin = clock()
            work()
            if turn:  # the first turn compiles and warms up
                times[name].append(clock() - begin)
    return {name: float(np.median(values)) for name, values in times.items()}


def mnist_sums(repeats: int, agents: int = 10, batch_size: int = 256) -> dict[str, object]:
    """Ten agents, 256 samples each, the network of Bayrooti et al. 2023."""
    fast, generic = BayrootiObjective(clip_norm=10.0), NetObjective(bayrooti_mnist(), clip_norm=10.0)
    theta = fast.random_init(np.random.default_rng(0), agents)
    x, y = torch.randn(agents, batch_size, 1, 32, 32), torch.randint(0, 10, (agents, batch_size))
    hooks = [opacus_hooks(fast.module(theta[a]), x[a], y[a], 10.0) for a in range(agents)]
    ghost = [opacus_ghost(fast.module(theta[a]), x[a], y[a], 10.0) for a in range(agents)]
    plain = [fast.module(theta[a]) for a in range(agents)]

    def autograd():
        for a, model in enumerate(plain):
            model.zero_grad()
            torch.nn.functional.cross_entropy(model(x[a]), y[a]).backward()

    seconds = interleaved(
        {
            "fast": lambda: fast.clipped_sums(theta, x, y),
            "generic": lambda: generic.clipped_sums(theta, x, y),
            "opacus_hooks": lambda: [work() for work in hooks],
            "opacus_ghost": lambda: [work() for work in ghost],
            "plain_autograd": autograd,
        },
        repeats,
    )
    ours, theirs = fast.clipped_sums(theta, x, y), torch.stack([work() for work in hooks])
    flop = 1.19e9 * agents * batch_size / 2560
    return {
        "ms": {name: round(1e3 * s, 1) for name, s in seconds.items()},
        "fast_over_opacus_hooks": round(seconds["opacus_hooks"] / seconds["fast"], 2),
        "fast_over_opacus_ghost": round(seconds["opacus_ghost"] / seconds["fast"], 2),
        "generic_over_opacus_hooks": round(seconds["opacus_hooks"] / seconds["generic"], 2),
        "relative_difference": float((ours - theirs).norm() / theirs.norm()),
        "times_the_matrix_peak_bound": round(seconds["fast"] / (flop / matrix_peak()), 1),
    }


def matrix_peak() -> float:
    """Float32 matrix-multiply rate of numpy's library, the best of ten products of 2048, flop per second."""
    a = np.random.default_rng(0).normal(size=(2048, 2048)).astype(np.float32)
    product, clock, seconds = np.empty_like(a), CLOCK["now"], []
    for _ in range(11):  # the first starts the threads
        begin = clock()
        np.matmul(a, a, out=product)
        seconds.append(clock() - begin)
    return 2 * 2048**3 / min(seconds[1:])


def whole_steps(repeats: int) -> dict[str, object]:
    """Steps of DP-DSGT and DP-DiNNO against their gradients."""
    return {name: a_step(repeats, name, records=600) for name in ("dp-dsgt", "dp-dinno")}


def a_step(
    repeats: int,
    algorithm: str = "dp-dsgd",
    agents: int = 10,
    batch_size: int = 256,
    records: int = 6000,
) -> dict[str, object]:
    """A whole step (batches, gradients, noise, mixing, update) against its gradient work alone."""
    import sottovoce as sv
    from sottovoce.data.agent_tensors import AgentData
    from sottovoce.noise.run_randomness import RunRandomness

    rng = np.random.default_rng(0)
    x = rng.normal(size=(agents * records, 1, 32, 32)).astype(np.float32)
    y = rng.integers(0, 10, len(x))
    data = AgentData(x, y, np.split(np.arange(len(x)), agents), classes=10)
    network = sv.graphs.ring(agents)
    objective = BayrootiObjective(clip_norm=10.0)
    plan = sv.algorithms.registry.algorithm(algorithm)(
        objective, network, steps=2000, sizes=data.sizes, batch_size=batch_size, noise_multiplier=1.0
    )
    mechanism = plan.mechanism(data, range(agents), RunRandomness.from_rng(rng))
    start = objective.random_init(rng, agents)
    rule = plan.algorithm(mechanism, start)
    gossip, state = plan.schedule(0), rule.init()
    held = data.gather(mechanism.batches.draw(range(agents), 0), range(agents))
    step = iter(range(10**9))

    def whole():
        k = next(step)
        return rule.update(state, gossip.apply(rule.message(state, k)), k)

    def gradients():
        for _ in range(plan.releases(0)[0].count):
            objective.clipped_sums(start, *held)

    seconds = interleaved({"whole_step": whole, "gradients": gradients}, repeats)
    parts = {
        "drawing batches": (mechanism.batches, "draw"),
        "gathering records": (mechanism.query.data, "gather"),
        "clipped sums": (mechanism.query.objective, "clipped_sums"),
        "noise": (mechanism, "draw"),
        "mixing": (gossip, "apply"),
    }
    return {
        "share_of_a_step": shares(whole, parts, repeats),
        "ms": {name: round(1e3 * s, 1) for name, s in seconds.items()},
        "gradients_per_step": plan.releases(0)[0].count,
        "step_over_gradients": round(seconds["whole_step"] / seconds["gradients"], 2),
        "minutes_for_2000_steps": round(2000 * seconds["whole_step"] / 60, 1),
    }


def shares(
    work: Callable[[], object], parts: dict[str, tuple[object, str]], repeats: int
) -> dict[str, float]:
    """How much of ``work`` goes into methods of some objects, in per cent; medians."""
    clock, spent = CLOCK["now"], dict.fromkeys(parts, 0.0)

    def timed(part: str, method: Callable) -> Callable:
        def call(*args, **options):
            begin = clock()
            result = method(*args, **options)
            spent[part] += clock() - begin
            return result

        return call

    originals = {part: getattr(owner, name) for part, (owner, name) in parts.items()}
    for part, (owner, name) in parts.items():
        object.__setattr__(owner, name, timed(part, originals[part]))
    rows = []
    for _ in range(repeats):
        spent.update(dict.fromkeys(spent, 0.0))
        begin = clock()
        work()
        whole = clock() - begin
        rows.append([*(part / whole for part in spent.values()), 1 - sum(spent.values()) / whole])
    for owner, name in parts.values():
        object.__delattr__(owner, name)
    medians = np.median(rows, axis=0)
    return {
        part: round(100 * float(share), 1) for part, share in zip([*parts, "the rest"], medians, strict=True)
    }


class Adapted(torch.nn.Module):
    """A frozen linear layer with a trained correction of rank 8 (LoRA)."""

    def __init__(self, layer: torch.nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.A = torch.nn.Linear(layer.in_features, 8, bias=False)
        self.B = torch.nn.Linear(8, layer.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.B(self.A(x))


class Encoder(torch.nn.Module):
    """An encoder layer whose attention is written from linear layers, as in models that LoRA is put on."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (torch.nn.Linear(width, width) for _ in range(4))
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v)
        )
        attended = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.out(attended))
        return self.norms[1](x + self.down(torch.relu(self.up(x))))


class Reader(torch.nn.Module):
    """Tokens and learned positions, a body, the mean over positions, four classes."""

    def __init__(self, body: torch.nn.Module) -> None:
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(100, 128), torch.nn.Embedding(64, 128)
        self.body, self.head = body, torch.nn.Linear(128, 4)
        self.spread = False  # Opacus wants a look-up of the positions for each sample

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1])
        out = self.body(
            self.tokens(x) + self.places(places.expand(x.shape).contiguous() if self.spread else places)
        )
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


def reader(kind: str) -> Reader:
    """Two encoder layers of width 128 (torch's own, or with LoRA on queries and values), or an LSTM."""
    if kind == "lstm":
        return Reader(torch.nn.LSTM(128, 128, batch_first=True))
    if kind == "transformer":
        layer = torch.nn.TransformerEncoderLayer
        return Reader(torch.nn.Sequential(*[layer(128, 4, 512, 0.0, batch_first=True) for _ in range(2)]))
    net = Reader(torch.nn.Sequential(Encoder(), Encoder()))
    net.requires_grad_(False)
    for layer in net.body:
        layer.q, layer.v = Adapted(layer.q), Adapted(layer.v)
    net.head.requires_grad_(True)
    return net


def opacus_forms(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, Callable]:
    """What Opacus takes of a network: its own layers stand for attention and recurrence."""
    from opacus.validators import ModuleValidator

    net.spread = True
    variants = {}
    for name, form in (("opacus_hooks", opacus_hooks), ("opacus_ghost", opacus_ghost)):
        try:
            work = form(ModuleValidator.fix(net.train()), x, y, 1.0)
            work()
        except Exception as reason:
            print(f"{name}: {type(reason).__name__}: {str(reason).splitlines()[0]}", file=sys.stderr)
        else:
            variants[name] = work
    return variants


def sequences(repeats: int, batch_size: int = 16, places: int = 64) -> dict[str, object]:
    """A transformer, the same with LoRA, an LSTM, one agent: ours, plain autograd, one by one and Opacus."""
    x, y = torch.randint(0, 100, (1, batch_size, places)), torch.randint(0, 4, (1, batch_size))
    figures: dict[str, object] = {}
    for name in ("transformer", "lora", "lstm"):
        objective = NetObjective(reader(name), clip_norm=1.0)
        assert objective.explain(x, y).startswith("fast"), objective.explain(x, y)
        theta, plain = objective.start(1), objective.module(objective.start(1)[0]).train()

        def autograd(plain: torch.nn.Module = plain) -> None:
            plain.zero_grad()
            torch.nn.functional.cross_entropy(plain(x[0]), y[0]).backward()

        def single(net: NetObjective = objective, row: np.ndarray = theta) -> None:
            # one record at a time, as for layers without a fast form
            each = net.paths.choose(x, y, net.clip_norm).each
            each(torch.as_tensor(row[0]), x[0], y[0])

        forms = {
            "sottovoce": lambda net=objective, row=theta: net.clipped_sums(row, x, y),
            "plain_autograd": autograd,
            "one_record_at_a_time": single,
        } | opacus_forms(objective.module(theta[0]), x[0], y[0])
        seconds = interleaved(forms, repeats)
        ours = seconds["sottovoce"]
        figures[name] = {
            "ms": {form: round(1e3 * s, 1) for form, s in seconds.items()},
            "over_plain_autograd": round(ours / seconds["plain_autograd"], 2),
            **{f"{form}_over_sottovoce": round(s / ours, 2) for form, s in list(seconds.items())[2:]},
        }
    return figures


def resnet(repeats: int, batch: int = 50) -> dict[str, object]:
    """ResNet-9 with GroupNorm, one agent; memory measured in a process of its own for each form."""
    forms = resnet_forms(batch)
    seconds = interleaved(forms, repeats)
    memory = {}
    for name in forms:
        command = [sys.executable, "-m", "benchmarks.deep", "--memory", name]
        memory[name] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {
        "seconds": {name: round(s, 3) for name, s in seconds.items()},
        "peak_mb": memory,
        "over_opacus_hooks": round(seconds["opacus_hooks"] / seconds["sottovoce"], 2),
        "over_opacus_ghost": round(seconds["opacus_ghost"] / seconds["sottovoce"], 2),
        "memory_share_of_opacus_hooks": round(memory["sottovoce"] / memory["opacus_hooks"], 2),
    }


def resnet_forms(batch: int = 50) -> dict[str, Callable]:
    """Our clipped sum and Opacus' on the same lot."""
    objective = NetObjective(resnet9(), clip_norm=1.0)
    theta = objective.start(1)
    x, y = torch.randn(1, batch, 3, 32, 32), torch.randint(0, 100, (1, batch))
    return {
        "sottovoce": lambda: objective.clipped_sums(theta, x, y),
        "opacus_hooks": opacus_hooks(objective.module(theta[0]), x[0], y[0], 1.0),
        "opacus_ghost": opacus_ghost(objective.module(theta[0]), x[0], y[0], 1.0),
    }


def peak_of(name: str) -> int:
    """Growth of the peak resident set, in MB, while one form runs."""
    work = resnet_forms()[name]
    before = high_water()
    work()
    return (high_water() - before) // 1024


def high_water() -> int:
    """Peak resident set of this process in kB (`ru_maxrss` would count the parent's as well)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="some of: mnist, step, resnet, sequences, steps")
    parser.add_argument("--processor", action="store_true", help="processor time in place of wall-clock time")
    parser.add_argument("--memory", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.processor:
        CLOCK["now"] = time.process_time
    warnings.filterwarnings("ignore")
    torch.manual_seed(0)
    if options.memory:
        print(peak_of(options.memory))
        return
    few = options.quick
    parts: dict[str, tuple[str, Callable[[], object]]] = {
        "mnist": ("mnist_10x256", lambda: mnist_sums(2 if few else 9)),
        "step": ("dp_dsgd_step", lambda: a_step(5 if few else 25)),
        "resnet": ("resnet9_batch50", lambda: resnet(1 if few else 3)),
        "sequences": ("sequences_lot16", lambda: sequences(3 if few else 15)),
        "steps": ("whole_steps", lambda: whole_steps(3 if few else 15)),
    }
    chosen = options.only.split(",") if options.only else list(parts)
    record: dict[str, object] = {
        "command": " ".join(["python -m benchmarks.deep", *sys.argv[1:]]),
        "clock": "processor time" if options.processor else "wall-clock time",
        "threads": torch.get_num_threads(),
        "load_average": [round(load, 1) for load in os.getloadavg()],
        "matrix_peak_gflops": round(matrix_peak() / 1e9, 1),
    }
    record |= {parts[name][0]: parts[name][1]() for name in chosen}
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
