"""Networks that mix samples, and networks that keep them apart."""

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

CLIP = 0.5
WIDTH, CLASSES = 6, 3


class Network(nn.Module):
    """What ``does`` computes from the network itself and its input; its layers and parameters by name."""

    def __init__(self, does, **parts):
        super().__init__()
        self.does = does
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.does(self, x)


class Does(Network):
    """A function of the rows, with a linear layer before it."""

    def __init__(self, does, inputs=WIDTH, width=8):
        super().__init__(lambda net, x: does(net.layer(x)), layer=nn.Linear(inputs, width))


def slow_tanh():
    """Return an activation with a parameter of its own, which has no fast form."""
    return Network(
        lambda net, h: torch.where(h > 0, h, net.slope * h), slope=nn.Parameter(torch.tensor(0.25))
    )


def close(ours, theirs, relative=1e-5):
    return (ours - theirs).norm().item() <= relative * theirs.norm().item()


class Net(nn.Module):
    """Linear, then what ``between`` does to the hidden rows, then Linear."""

    def __init__(self, between, width=8):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, width), nn.Linear(width, CLASSES)
        self.between = between
        self.register_buffer("memory", torch.zeros(width))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        return self.last(torch.tanh(self.between(self, self.first(x))))


class MixBackward(torch.autograd.Function):
    """Rows apart on the way up, mixed on the way down."""

    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, g):
        return g + 20 * g.mean(0)


def running_mean(net, h):
    out = h - net.memory
    with torch.no_grad():
        net.memory.mul_(0.5).add_(0.5 * h.detach().mean(0))
    return out


def memory_row(net, h):
    out = h + net.memory
    net.memory = h.detach()[-1]
    return out


def attribute_memory(net, h):
    out = h + getattr(net, "last_mean", 0.0)
    net.last_mean = 5 * h.detach().mean(0)
    return out


def scatter_rows(net, h):
    place = torch.arange(len(h)) % 2
    return h + torch.zeros(2, h.shape[1]).index_add(0, place, h)[place]


def in_place_rows(net, h):
    h = h.clone()
    h[1:] += 2 * h[:-1]
    return h


MIXING = {
    "training norm": lambda net, h: (h - h.mean(0)) / (h.std(0) + 0.1) if net.training else h,
    "functional batch norm": lambda net, h: F.batch_norm(h, None, None, training=True),
    "two axes": lambda net, h: h - h.mean((0, 1)),
    "whole mean": lambda net, h: h * (1 + h.mean()),
    "running mean": running_mean,
    "memory of a row": memory_row,
    "memory in an attribute": attribute_memory,
    "four apart": lambda net, h: torch.cat([h[:4], h[4:] + 3 * h[:-4]]) if len(h) > 4 else h,
    "rolled": lambda net, h: h + torch.roll(h, 1, 0),
    "flipped": lambda net, h: h + 0.5 * h.flip(0),
    "sorted rows": lambda net, h: h + h.sort(0).values,
    "attention over the batch": lambda net, h: torch.softmax(h @ h.T, -1) @ h,
    "einsum over the batch": lambda net, h: h + torch.einsum("nf,mf->nm", h, h).softmax(1) @ h,
    "softmax over the batch": lambda net, h: h * torch.softmax(h, 0),
    "pairwise broadcast": lambda net, h: h + (h[:, None] - h[None]).abs().mean(1),
    "last row": lambda net, h: h + h[-1],
    "batch size": lambda net, h: h * h.shape[0],
    "maximum": lambda net, h: h - h.amax(0, keepdim=True).detach(),
    "scatter": scatter_rows,
    "in place": in_place_rows,
    "if some row": lambda net, h: 5 * h if (h > 1.5).any() else h,
    "cumsum": lambda net, h: torch.cumsum(h, 0),
    "cummax": lambda net, h: h.cummax(0).values,
    "backward": lambda net, h: MixBackward.apply(h),
    "hook on a gradient": lambda net, h: h.register_hook(lambda g: g + 20 * g.mean(0)) and h,
    "reshape": lambda net, h: torch.relu(h.view(2, -1).softmax(1).view(h.shape)) if len(h) % 2 == 0 else h,
    "layer norm of the batch": lambda net, h: F.layer_norm(h.T, (len(h),)).T,
    "group norm of the batch": lambda net, h: F.group_norm(h[None], 1)[0],
    "convolution over the batch": lambda net, h: F.avg_pool1d(h.T[None], 3, 1, 1)[0].T,
    "time first": lambda net, h: h + nn.functional.normalize(h, dim=0),
}


def plain(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


MIXING_LOSSES = {
    "scaled by the mean of logits": lambda o, y: plain(o, y) * (1 + o.mean().square()),
    "hard examples": lambda o, y: plain(o, y) * (plain(o, y) >= plain(o, y).median()),
    "relative to the worst": lambda o, y: plain(o, y) / plain(o, y).max().detach(),
    "share of the batch": lambda o, y: plain(o, y) / len(o),
    "contrastive": lambda o, y: F.cross_entropy(o @ o.T, torch.arange(len(o)), reduction="none"),
    "weighted by class counts": lambda o, y: plain(o, y) * (y[:, None] == y[None]).float().mean(1) * 9,
    "the neighbor's label": lambda o, y: F.cross_entropy(o, y.roll(1), reduction="none"),
    "centered": lambda o, y: plain(o, y) - plain(o, y).mean(),
    "of the batch's logits": lambda o, y: plain(o - o.amax(0), y),
    "averaged": lambda o, y: F.cross_entropy(o, y).expand(len(o)),
}


def attention(cross=False, **options):
    """Return nn.MultiheadAttention on its own input, or on half of it."""

    def looks(net, x):
        other = x[:, :2] if cross else x
        return x + net.attention(x, other, other)[0]

    return Network(looks, attention=nn.MultiheadAttention(8, 2, batch_first=True, **options))


def masked():
    """Return a network of tokens, of which zero is padding."""

    def mean(net, tokens):
        hidden = net.layer(net.table(tokens), src_key_padding_mask=tokens == 0)
        there = (tokens != 0).unsqueeze(-1)
        return (hidden * there).sum(1) / there.sum(1).clamp(min=1)

    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    return Network(mean, table=nn.Embedding(9, 8), layer=layer)


def without_gradient(h):
    with torch.no_grad():
        scale = torch.sigmoid(h).mean(1, keepdim=True)
    return h * scale


def smooth(h):
    return F.conv1d(h[:, None], torch.ones(1, 1, 3, dtype=h.dtype)).flatten(1)


def seq(*layers):
    return nn.Sequential(*layers)


TOKENS, IMAGE, SERIES, ROWS = "tokens", (2, 8, 8), (4, 8), (WIDTH,)


# name: (module, shape of a sample); a flatten and a linear layer are put behind each
APART = {
    "linear": (lambda: nn.Linear(WIDTH, 5), ROWS),
    "mlp": (lambda: seq(nn.Linear(WIDTH, 9), nn.ReLU(), nn.Linear(9, 4), nn.Tanh()), ROWS),
    "activations": (lambda: seq(nn.Linear(WIDTH, 8), nn.GELU(), nn.SiLU(), nn.Softplus(), nn.Mish()), ROWS),
    "softmax, glu": (lambda: seq(nn.Linear(WIDTH, 8), nn.GLU(), nn.LogSoftmax(-1), nn.Softmax(1)), ROWS),
    "conv1d": (lambda: nn.Conv1d(4, 3, 3, padding=1), SERIES),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3), IMAGE),
    "conv2d options": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1, dilation=2, bias=False), IMAGE),
    "conv2d depthwise": (lambda: seq(nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d(4, 4, 1)), IMAGE),
    "pools": (lambda: seq(nn.Conv2d(2, 4, 3), nn.MaxPool2d(2), nn.AvgPool2d(3), nn.Flatten()), IMAGE),
    "upsample, pad": (lambda: seq(nn.ZeroPad2d(1), nn.Conv2d(2, 2, 3), nn.Upsample(scale_factor=2)), IMAGE),
    "group norm": (lambda: seq(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.LeakyReLU(0.1)), IMAGE),
    "layer norm": (lambda: seq(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 5), nn.LayerNorm(5)), ROWS),
    "instance norm affine": (lambda: seq(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True)), IMAGE),
    "rms norm": (lambda: seq(nn.Linear(8, 8), nn.RMSNorm(8)), SERIES),
    "residual conv": (
        lambda: Network(lambda net, x: x + net.body(x),
                        body=seq(nn.Conv2d(2, 2, 3, padding=1), nn.GroupNorm(1, 2), nn.ReLU())), IMAGE,
    ),
    "embedding": (lambda: nn.Embedding(9, 4), TOKENS),
    "embedding padding": (lambda: seq(nn.Embedding(9, 4, padding_idx=0), nn.Linear(4, 4)), TOKENS),
    "multihead attention": (attention, SERIES),
    "multihead cross": (lambda: attention(cross=True), SERIES),
    "multihead no bias": (lambda: attention(bias=False), SERIES),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), SERIES),
    "encoder with padding": (masked, TOKENS),
    "unused layer": (lambda: Does(lambda h: h * 2), ROWS),
    "transpose": (lambda: Does(lambda h: h.transpose(1, 2).contiguous(), 8), SERIES),
    "index": (lambda: Does(lambda h: torch.cat([h[:, 1:3], h[..., [0, 5]], h[:, None, 0]], 1)), ROWS),
    "statistics of a sample": (lambda: Does(lambda h: (h - h.mean(1, True)) / h.std(1, keepdim=True)), ROWS),
    "einsum": (lambda: Does(lambda h: torch.einsum("ntc,nsc->nts", h, h), 8), SERIES),
    "topk": (lambda: Does(lambda h: h.topk(3, dim=1).values), ROWS),
    "normalize": (lambda: Does(lambda h: F.normalize(h, dim=-1)), ROWS),
    "checkpoint": (lambda: Does(lambda h: checkpoint(torch.tanh, h, use_reentrant=False)), ROWS),
    "same layer twice": (lambda: seq(*[nn.Linear(WIDTH, WIDTH)] * 2), ROWS),
    "same conv2d twice": (lambda: seq(*[nn.Conv2d(2, 2, 3, padding=1), nn.Tanh()] * 2), IMAGE),
    "same group norm twice": (lambda: seq(*[nn.GroupNorm(2, 4), nn.Tanh()] * 2), SERIES),
    "linear without bias": (lambda: nn.Linear(WIDTH, 5, bias=False), ROWS),
    "linear formed over positions": (lambda: nn.Linear(3, 2), (20, 3)),
    "layer norm of images": (lambda: nn.LayerNorm([2, 5]), (2, 5)),
    # wide layers over few positions: ghost norms
    "ghost linear": (lambda: nn.Linear(40, 30), (3, 40)),
    "ghost conv2d": (lambda: nn.Conv2d(16, 24, 3, padding=1), (16, 3, 3)),
    "ghost conv2d dilated": (lambda: nn.Conv2d(16, 24, 3, padding=2, dilation=2), (16, 3, 3)),
    "ghost conv2d in groups": (lambda: nn.Conv2d(32, 48, 3, groups=2, padding=1), (32, 2, 2)),
    "ghost conv2d twice": (lambda: seq(*[nn.Conv2d(16, 16, 3, padding=1), nn.Tanh()] * 2), (16, 2, 2)),
    "conv by a constant": (lambda: Does(smooth), ROWS),
}  # fmt: skip


def positions(places=None):
    """Return learned positions, as in GPT and BERT."""

    def added(net, x):
        return net.tokens(x) + net.places(torch.arange(x.shape[1]) if places is None else places)

    return Network(added, tokens=nn.Embedding(9, 4), places=nn.Embedding(4, 4))


def raw():
    """Return a network with parameters of its own, not in a layer."""
    return Network(
        lambda net, x: net.linear(torch.cat([net.token.expand(len(x), -1, -1), x], 1) + net.place)[:, 0],
        token=nn.Parameter(torch.randn(1, 1, 8)),
        place=nn.Parameter(torch.randn(1, 5, 8)),
        linear=nn.Linear(8, 8),
    )


def by_hand(net, x):
    return F.linear(x, net.layer.weight)


class Recurrent(nn.Module):
    def __init__(self, kind, pick="outputs", first=True, **options):
        super().__init__()
        self.cell, self.pick, self.first = kind(8, 5, batch_first=first, **options), pick, first

    def forward(self, x):
        out, last = self.cell(x if self.first else x.transpose(0, 1))
        if self.pick == "memory":
            return last[1][-1]
        last = last[0] if isinstance(last, tuple) else last
        if self.pick == "both":
            return torch.cat([last[-2], last[-1]], 1)
        if self.pick == "last":
            return last[-1]
        return out[:, -1] if self.first else out[-1]


def cell():
    def unrolled(net, x):
        h = torch.zeros(x.shape[0], 5, dtype=x.dtype)
        for t in range(x.shape[1]):
            h = net.cell(x[:, t], h)
        return h

    return Network(unrolled, cell=nn.GRUCell(8, 5))


def adapted():
    """Return a frozen layer with a trained correction of low rank, B zero at first."""
    layers = {
        "base": nn.Linear(WIDTH, WIDTH).requires_grad_(False),
        "A": nn.Linear(WIDTH, 2, bias=False),
        "B": nn.Linear(2, WIDTH, bias=False),
    }
    nn.init.zeros_(layers["B"].weight)
    return Network(lambda net, x: net.base(x) + net.B(net.A(x)), **layers)


def twice(layer):
    """Return a network whose layer takes two arguments."""
    return Network(lambda net, x: net.layer(x, x), layer=layer)


def remembers(frozen=False):
    net = Recurrent(nn.LSTM, "memory")
    net.cell.weight_hh_l0.requires_grad_(not frozen)
    net.cell.bias_hh_l0.requires_grad_(not frozen)
    return net


def half_frozen():
    layer = nn.Linear(WIDTH, 4)
    layer.bias.requires_grad_(False)
    return layer


def counts():
    """Return a network with a buffer that counts the passes, as `num_batches_tracked` does."""

    def counted(net, x):
        net.passes += 1
        return net.linear(x)

    net = Network(counted, linear=nn.Linear(WIDTH, 4))
    net.register_buffer("passes", torch.zeros(()))
    return net


def tied(width=WIDTH):
    net = seq(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
    net[2].weight = net[0].weight
    return net


APART |= {
    "gru": (lambda: Recurrent(nn.GRU), SERIES),
    "gru of two layers": (lambda: Recurrent(nn.GRU, "last", num_layers=2, bias=False), SERIES),
    "rnn relu": (lambda: Recurrent(nn.RNN, "last", nonlinearity="relu"), SERIES),
    "lstm": (lambda: Recurrent(nn.LSTM), SERIES),
    "lstm both ways": (lambda: Recurrent(nn.LSTM, "both", num_layers=2, bidirectional=True), SERIES),
    "lstm memory": (remembers, SERIES),
    "lstm frozen memory": (lambda: remembers(frozen=True), SERIES),
    "conv3d strided": (
        lambda: seq(nn.Unflatten(1, (1, 2)), nn.Conv3d(1, 4, 2, (1, 2, 1), (1, 0, 2), bias=False)), IMAGE,
    ),
    "conv transpose in groups": (lambda: nn.ConvTranspose2d(2, 4, 3, 2, 1, 1, 2, True, 2), IMAGE),
    "conv transpose 3d": (lambda: seq(nn.Unflatten(1, (2, 1)), nn.ConvTranspose3d(2, 2, 2)), IMAGE),
    "circular conv": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), IMAGE),
    "same conv": (lambda: nn.Conv2d(2, 3, 3, padding="same"), IMAGE),
    "prelu by channel": (lambda: seq(nn.Conv2d(2, 3, 3), nn.PReLU(3)), IMAGE),
    "positions": (positions, TOKENS),
    "positions with an axis of one": (lambda: positions(torch.arange(4)[None]), TOKENS),
    "adapter": (adapted, ROWS),
    "instance norm 1d": (lambda: seq(nn.Conv1d(4, 3, 2), nn.InstanceNorm1d(3, affine=True)), SERIES),
    "instance norm 3d": (
        lambda: seq(nn.Unflatten(1, (1, 2)), nn.Conv3d(1, 2, 2), nn.InstanceNorm3d(2, affine=True)), IMAGE,
    ),
}  # fmt: skip


# right, but not by the fast form
SINGLE = {
    "time-first gru": (lambda: Recurrent(nn.GRU, first=False), SERIES),
    "gru cell": (cell, SERIES),
    "embedding bag": (lambda: nn.EmbeddingBag(9, 5, mode="mean"), TOKENS),
    "no_grad branch": (lambda: Does(without_gradient), ROWS),
    "half a layer frozen": (half_frozen, ROWS),
    "bilinear": (lambda: twice(nn.Bilinear(WIDTH, WIDTH, 3)), ROWS),
    "raw parameters": (raw, SERIES),
    "functional weight": (lambda: Network(by_hand, layer=nn.Linear(WIDTH, WIDTH)), ROWS),
    "functional weight and layer": (
        lambda: Network(lambda net, x: net.layer(torch.tanh(by_hand(net, x))), layer=nn.Linear(WIDTH, WIDTH)),
        ROWS,
    ),
    "time first": (lambda: Does(lambda h: h.transpose(0, 1).tanh().transpose(0, 1), 8), SERIES),
    "time distributed": (lambda: Does(lambda h: h.view(len(h) * 4, -1).tanh().view(len(h), -1), 8), SERIES),
    "branch on a record": (
        lambda: Does(lambda h: torch.stack([row * (2 if row.sum() > 0 else 1) for row in h])), ROWS,
    ),
    "counts passes": (counts, ROWS),
    "tied": (tied, ROWS),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 4)), ROWS),
}  # fmt: skip


def records(shape, agents=1, batch_size=12, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (agents, batch_size), generator=g)
    if shape == TOKENS:
        return torch.randint(0, 9, (agents, batch_size, 4), generator=g), y
    return 2 * torch.randn(agents, batch_size, *shape, generator=g), y


def with_head(make, shape):
    torch.manual_seed(0)
    body = nn.Sequential(make(), nn.Flatten())
    body.eval()
    width = body(records(shape)[0][0]).shape[1]
    return nn.Sequential(body, nn.Tanh(), nn.Linear(width, CLASSES))


def reference(module, loss, theta, x, y, clip_norm):
    """One backward pass per record in float64, with a copy of the module each: the slow truth."""
    sums = torch.zeros(theta.shape, dtype=torch.float64)
    for a in range(len(x)):
        for i in range(x.shape[1]):
            own = copy.deepcopy(module).double().train()
            parameters = [p for p in own.parameters() if p.requires_grad]
            nn.utils.vector_to_parameters(torch.as_tensor(theta[a]).double(), parameters)
            record = x[a, i : i + 1]
            out = own(record.double() if record.is_floating_point() else record)
            loss(out, y[a, i : i + 1]).sum().backward()
            g = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in parameters])
            sums[a] += g * min(1.0, clip_norm / g.norm().item())
    return sums


def rows(objective, agents):
    noise = np.random.default_rng(0).normal(size=(agents, objective.n_params))
    return (objective.start(agents) + 0.1 * noise).astype(objective.start(1).dtype)
