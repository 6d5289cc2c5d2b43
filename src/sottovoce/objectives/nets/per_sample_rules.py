r"""Operations that keep the samples of a batch apart: a list of names, and one test of every use.

A clipped sum bounds the influence of one record only if the gradient of a record is a function of that
record. If a whole batch goes through a network at once, this holds if every step acts on each row of the
first axis alone. A step must be on the list of this module. Whether it then keeps samples apart depends on
its options and on the axes of its arguments, and is tested on random numbers, never on records: each row of
what a batch gives must be what this row gives alone. The numbers are drawn anew for every step, so that what
was computed before hides nothing. Any other step raises `NotPerSample`, and the caller takes one record at
a time.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from sottovoce.errors import SottovoceError
from sottovoce.objectives.nets.losses import restore_generators
from sottovoce.objectives.nets.quick_layers import QuickMish, WindowMaxima
from sottovoce.objectives.nets.recurrence import Recurrence, RecurrentInput

_MOST_ROWS = 32  # of a test, fewer where they would hold more numbers than this together
_NUMBERS = 4096


class NotPerSample(SottovoceError):
    """A step that is not known to keep samples apart; the message names it."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A tensor with the samples on axis 0, as one row of it."""

    one: Tensor

    @staticmethod
    def of(shape: Iterable[int], dtype: torch.dtype, device: torch.device) -> Batch:
        """Return a batch of samples of ``shape``."""
        return Batch(torch.zeros(1, *shape, dtype=dtype, device=device))

    def random(self, rows: int, generator: torch.Generator, largest: int = 1) -> Tensor:
        """Return so many rows of numbers in [0, 1), or of whole numbers up to ``largest``."""
        shape = (rows, *self.one.shape[1:])
        if self.one.is_floating_point():
            numbers = torch.rand(shape, generator=generator)
        else:
            numbers = torch.randint(0, largest + 1, shape, generator=generator)
        return numbers.to(self.one.device, self.one.dtype)


@dataclass(frozen=True)
class Count:
    """The size of the batch; good for shapes, not for arithmetic."""


@dataclass(frozen=True)
class Weight:
    """A trainable parameter used outside the layer that owns it."""

    name: str


_LISTED = """add sub subtract mul multiply div divide true_divide pow maximum minimum fmax fmin where
    masked_fill clamp clip clamp_min clamp_max lerp addcmul addcdiv remainder fmod floor_divide
    eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor atan2 hypot xlogy
    truediv floordiv mod and_ or_ xor copysign rsub logaddexp __and__ __or__ __rsub__ expand_as
    neg abs exp exp2 expm1 log log1p log2 log10 sqrt rsqrt square reciprocal sign sin cos tan asin
    acos atan sinh cosh tanh asinh acosh atanh sigmoid logit erf erfc erfinv floor ceil round trunc frac relu
    relu6 leaky_relu elu selu celu gelu silu mish softplus softsign hardtanh hardswish hardsigmoid hardshrink
    softshrink tanhshrink threshold logsigmoid positive
    isnan isinf isfinite logical_not bitwise_not invert nan_to_num clone contiguous detach sinc lgamma digamma
    float double half bfloat16 long int bool cpu to type_as zeros_like ones_like full_like
    sum mean prod amax amin std var logsumexp all any median mode nansum nanmean cumsum cumprod max min
    logcumsumexp softmax log_softmax softmin argmax argmin squeeze unbind select narrow cummax cummin unfold
    index_select count_nonzero std_mean var_mean norm vector_norm roll repeat_interleave chunk split
    tensor_split normalize sort argsort glu topk flip
    transpose swapaxes swapdims movedim moveaxis permute view reshape flatten unflatten unsqueeze mT
    new_zeros new_ones zeros ones full expand broadcast_to repeat cat concat concatenate stack gather getitem
    matmul bmm mm einsum linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d pad
    layer_norm rms_norm group_norm one_hot scaled_dot_product_attention
    max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    lp_pool1d lp_pool2d interpolate upsample pixel_shuffle pixel_unshuffle channel_shuffle
    local_response_norm tril triu
    mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy binary_cross_entropy_with_logits kl_div
    poisson_nll_loss soft_margin_loss hinge_embedding_loss margin_ranking_loss cross_entropy nll_loss
    multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss cosine_embedding_loss
    triplet_margin_loss pairwise_distance cosine_similarity"""
# each number or channel draws on its own, so that no comparison is needed, nor possible
_DRAWING = """rand_like randn_like bernoulli rrelu dropout dropout1d dropout2d dropout3d alpha_dropout
    feature_alpha_dropout"""
RANDOM = frozenset([*_DRAWING.split(), "scaled_dot_product_attention"])
_NAMES = frozenset([*_LISTED.split(), *RANDOM])
_SPACES = (torch, F, operator, torch.special, torch.linalg)
# by identity: another function of the same name is not on the list
_FUNCTIONS: dict[Callable[..., Any], str] = {
    **{getattr(space, name): name for name in _NAMES for space in _SPACES if hasattr(space, name)},
    torch.special.expit: "sigmoid",
}


def _layers(names: str) -> tuple[type[nn.Module], ...]:
    return tuple(getattr(nn, name) for name in names.split())


RANDOM_MODULES = _layers("RReLU Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout")
MODULES = frozenset([
    RecurrentInput, Recurrence, QuickMish, WindowMaxima, *RANDOM_MODULES,
    *_layers("""Identity ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Softplus Softsign Hardtanh
        Hardswish Hardsigmoid Hardshrink Softshrink Tanhshrink Threshold LogSigmoid Sigmoid Tanh Embedding
        Softmax LogSoftmax Softmin Softmax2d GLU Flatten Unflatten Linear LayerNorm RMSNorm GroupNorm PReLU
        InstanceNorm1d InstanceNorm2d InstanceNorm3d LocalResponseNorm
        MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d LPPool1d LPPool2d
        AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d
        AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d
        ConstantPad1d ConstantPad2d ConstantPad3d ReflectionPad1d ReflectionPad2d ReflectionPad3d
        ReplicationPad1d ReplicationPad2d ReplicationPad3d ZeroPad1d ZeroPad2d ZeroPad3d
        Upsample UpsamplingNearest2d UpsamplingBilinear2d PixelShuffle PixelUnshuffle ChannelShuffle
        Fold Unfold Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d"""),
])  # fmt: skip


def leaves(value: Any) -> list[Any]:
    """Return everything inside nested lists, tuples, slices and dicts."""
    parts: list[Any] = []
    fx.node.map_aggregate(value, parts.append)
    return parts


def judge_function(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a function gives for abstract arguments, or raise `NotPerSample`."""
    name = _FUNCTIONS.get(function)
    if name is None:
        raise NotPerSample(f"{getattr(function, '__name__', function)!r} is not on the list")
    if name == "getitem":
        _check_index(*args)
    return _judge(name, function, args, kwargs)


def judge_method(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a method of a tensor gives for abstract arguments, or raise `NotPerSample`."""
    plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    if plain not in _NAMES or (plain != name and not isinstance(args[0], Batch)):
        raise NotPerSample(f"'.{name}()' is not on the list")
    return _judge(plain, lambda tensor, *rest, **more: getattr(tensor, name)(*rest, **more), args, kwargs)


def judge_module(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a layer of torch, in evaluation mode, gives for abstract arguments."""
    name = type(module).__name__
    if type(module) not in MODULES or kwargs or len(args) != 1 or not isinstance(args[0], Batch):
        raise NotPerSample(f"{name} is not on the list, or gets something other than samples")
    one_token = isinstance(module, nn.Embedding) and module.num_embeddings == 1
    return _judge(name, module, args, {}, largest=0 if one_token else 1)


def _check_index(value: Any, index: Any) -> None:
    """Refuse an index that could pick samples by value or by place."""
    items = list(index) if isinstance(index, tuple) else [index]
    if any(isinstance(leaf, (Batch, Count)) for leaf in leaves(items)):
        raise NotPerSample("an index picks samples by value or by place")


def _judge(
    name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], largest: int = 1
) -> Any:
    """Return the abstract result of an operation that gives row by row what it gives for a batch."""
    values = leaves([args, kwargs])
    for weight in (leaf for leaf in values if isinstance(leaf, Weight)):
        raise NotPerSample(f"parameter '{weight.name}' is used outside its layer")
    batches = [leaf for leaf in values if isinstance(leaf, Batch)]
    if kwargs.get("out") is not None:
        raise NotPerSample(f"'{name}' writes into a tensor passed as out=")
    draws = name in _DRAWING.split()
    if draws and (len(batches) != 1 or any(isinstance(leaf, Count) for leaf in values)):
        raise NotPerSample(f"'{name}' draws with options that depend on the samples")
    if "dropout_p" in kwargs:
        kwargs = {**kwargs, "dropout_p": 0.0}
    longest = max((batch.one.numel() for batch in batches), default=1)
    rows = max(3, min(_MOST_ROWS, _NUMBERS // max(longest, 1)))
    generator = torch.Generator().manual_seed(0)
    numbers = {id(batch): batch.random(rows, generator, largest) for batch in batches}

    def result(first: int, last: int) -> Any:
        """Return what the rows from the first to the last give, without the others."""

        def concrete(leaf: Any) -> Any:
            if isinstance(leaf, Batch):
                return numbers[id(leaf)][first:last].clone()
            return last - first if isinstance(leaf, Count) else leaf

        return function(*fx.node.map_aggregate(args, concrete), **fx.node.map_aggregate(kwargs, concrete))

    device = batches[0].one.device if batches else torch.device("cpu")
    with torch.no_grad(), restore_generators(device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of one row, as of a deviation
        whole = result(0, rows)
        alone = {row: result(row, row + 1) for row in (0, 1, rows - 1)}
    return _apart(name, whole, alone, rows, compare=not draws)


def _apart(name: str, whole: Any, alone: Mapping[int, Any], rows: int, compare: bool) -> Any:
    """Return the batch of samples that a result is, if its rows are those that samples give alone."""
    if isinstance(whole, (tuple, list)):
        items = [
            _apart(name, part, {row: one[i] for row, one in alone.items()}, rows, compare)
            for i, part in enumerate(whole)
        ]
        return items if type(whole) is list else type(whole)(items)
    if not isinstance(whole, Tensor):
        raise NotPerSample(f"'{name}' returns something other than a tensor")
    if not whole.ndim or len(whole) != rows:
        raise NotPerSample(f"'{name}' does not leave the samples on the first axis")
    same = all(one.shape == (1, *whole.shape[1:]) for one in alone.values())
    if not same or (compare and not _equal(whole[list(alone)], torch.cat(list(alone.values())))):
        raise NotPerSample(f"'{name}' acts across the samples of a batch")
    return Batch(alone[0])


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether the rows of two tensors are equal up to rounding."""
    if torch.equal(one, other) or not one.is_floating_point():
        return torch.equal(one, other)
    a, b = (t.nan_to_num(nan=3.0, posinf=5.0, neginf=-5.0).reshape(len(t), -1) for t in (one, other))
    return bool(((a - b).abs().amax(1) <= 1e-2 * b.abs().amax(1)).all())
