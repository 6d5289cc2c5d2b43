r"""Operations that keep the samples of a batch apart, with a rule for each.

A clipped sum bounds the influence of one record only if the gradient of a record is a function of that
record. If a whole batch goes through a network at once, this holds if every step acts on each row of the
first axis alone. The rules judge a step from shapes and options, never from values: a tensor has the samples
on axis 0 (`Batch`), or does not depend on the batch (a constant), or is a trainable weight (`Weight`), or the
size of the batch (`Count`).

Every `Batch` is held at two small batch sizes, filled with random numbers. A step runs on both; its result
must have the batch size on axis 0 both times and otherwise the same shape. An operation without a rule
raises `NotPerSample`, and the caller takes one record at a time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.errors import SottovoceError
from sottovoce.objectives.nets.losses import restore_generators
from sottovoce.objectives.nets.quick_layers import QuickMish, WindowMaxima
from sottovoce.objectives.nets.recurrence import Recurrence

BATCH_SIZES = (2, 3)  # an axis with the batch's size in both is the samples': sizes are not computed with


class NotPerSample(SottovoceError):
    """A step that is not known to keep samples apart; the message names it."""


class Batch(NamedTuple):
    """A tensor with the samples on axis 0, at the two sizes of `BATCH_SIZES`."""

    small: Tensor
    large: Tensor

    @staticmethod
    def of(shape: Iterable[int], dtype: torch.dtype, device: torch.device) -> Batch:
        """Return a batch of samples of ``shape``: numbers in [0, 1), or tokens and labels 0."""
        generator = torch.Generator().manual_seed(0)
        values = torch.rand(BATCH_SIZES[1], *shape, generator=generator).to(device, dtype)
        return Batch(values[: BATCH_SIZES[0]].clone(), values)

    @property
    def ndim(self) -> int:
        """Number of axes, the samples' among them."""
        return self.small.ndim


class Count(NamedTuple):
    """The size of the batch, at the two sizes of `BATCH_SIZES`; good for shapes, not for arithmetic."""

    small: int
    large: int


class Weight(NamedTuple):
    """A trainable parameter used outside the layer that owns it."""

    name: str


def _leaves(value: object) -> list[Any]:
    """Return everything inside nested lists, tuples, slices and dicts."""
    if isinstance(value, (Batch, Count, Weight)):
        return [value]
    if isinstance(value, slice):
        return _leaves((value.start, value.stop, value.step))
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [value]


class Call(NamedTuple):
    """An operation and its abstract arguments."""

    name: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def refuse(self, reason: str) -> NoReturn:
        """Raise `NotPerSample`."""
        raise NotPerSample(f"'{self.name}' {reason}")

    def argument(self, place: int, *names: str) -> Any:
        """Return an argument by its place or one of its names, None if it is left out."""
        for name in names:
            if name in self.kwargs:
                return self.kwargs[name]
        return self.args[place] if len(self.args) > place else None

    def leaves(self) -> list[Any]:
        """Return all arguments, nested ones too."""
        return _leaves([self.args, self.kwargs])

    def first(self) -> Batch:
        """Return the first argument, which must carry the samples."""
        value = self.args[0] if self.args else self.kwargs.get("input")
        if not isinstance(value, Batch):
            self.refuse("is applied to something other than a tensor of samples")
        return value

    def alone(self) -> Batch:
        """Return the first argument, where no other may carry samples or their number."""
        value = self.first()
        rest = _leaves([self.args[1:], {k: v for k, v in self.kwargs.items() if k != "input"}])
        if any(isinstance(leaf, (Batch, Count)) for leaf in rest):
            self.refuse("uses the samples, or their number, as an option")
        return value

    def sizes(self) -> Any:
        """Return sizes that are given one by one or as one list."""
        one = len(self.args) == 2 and isinstance(self.args[1], (list, tuple))
        return self.args[1] if one else self.args[1:]

    def check_axes(self, dims: Any, ndim: int) -> None:
        """Refuse axes that are left open or contain axis 0."""
        axes = dims if isinstance(dims, (list, tuple)) else [dims]
        if not len(axes) or any(not isinstance(axis, int) or isinstance(axis, bool) for axis in axes):
            self.refuse("goes over all axes, the samples' among them")
        if any(axis % ndim == 0 or not -ndim <= axis < ndim for axis in axes):
            self.refuse("goes along the axis of the samples")


Rule = Callable[[Call], object]
ANOTHER_AXIS = "broadcasts the samples against another axis"
BY_PLACE = "gives samples a value by their place in the batch"
WRONG_AXIS = "takes the samples for another axis"


# --- rules ---------------------------------------------------------------------------------------


def _pointwise(call: Call) -> None:
    """Element by element with broadcasting: the samples must meet on axis 0."""
    leaves = call.leaves()
    if any(isinstance(leaf, Count) for leaf in leaves):
        # dividing by the size of the batch would let one record more move the share of every other
        call.refuse("computes with the size of the batch")
    tensors = [leaf for leaf in leaves if isinstance(leaf, (Batch, Tensor))]
    rank = max(t.ndim for t in tensors)
    if any(isinstance(t, Batch) and t.ndim != rank for t in tensors):
        call.refuse(ANOTHER_AXIS)
    if any(isinstance(t, Tensor) and t.ndim == rank and t.shape[0] != 1 for t in tensors):
        call.refuse(BY_PLACE)


def _along(place: int = 1, default: int | None = None, several: bool = False) -> Rule:
    """Over given axes, not the samples'; ``place`` is the position of the axis among the arguments."""

    def rule(call: Call) -> None:
        value = call.alone()
        dims = call.argument(place, "dim", "dims", "axis")
        if several and len(call.args) > place + 1 and all(type(a) is int for a in call.args[place:]):
            dims = list(call.args[place:])
        call.check_axes(default if dims is None else dims, value.ndim)

    return rule


def _pair_or_along(call: Call) -> None:
    """max and min: of two tensors, or along an axis."""
    (_pointwise if isinstance(call.argument(1, "other"), (Batch, Tensor)) else _along())(call)


def _two_axes(call: Call) -> None:
    """transpose and its kin: neither axis is the samples'."""
    value = call.alone()
    call.check_axes(call.argument(1, "dim0", "source", "axis0"), value.ndim)
    call.check_axes(call.argument(2, "dim1", "destination", "axis1"), value.ndim)


def _permute(call: Call) -> None:
    call.alone()
    dims = call.kwargs.get("dims", call.args[1] if len(call.args) == 2 else call.args[1:])
    if not isinstance(dims, (list, tuple)) or dims[0] != 0:
        call.refuse("moves the axis of the samples")


def _reshape(call: Call) -> None:
    """Rows stay rows if axis 0 keeps its size, which is checked on the result; sizes may be a `Count`."""
    value = call.first()
    others = [leaf for leaf in _leaves([call.args[1:], call.kwargs]) if leaf is not value]
    if any(isinstance(leaf, (Batch, Tensor)) for leaf in others):
        call.refuse("takes its shape from values")


def _of_every_sample(call: Call, sizes: Any) -> None:
    """Sizes of a tensor that is the same for every sample: that of the batch, then plain numbers."""
    if not isinstance(sizes, (list, tuple)) or list(sizes[:1]) != [Count(*BATCH_SIZES)]:
        call.refuse("gives a constant another first axis than that of the samples")
    if any(isinstance(leaf, (Batch, Count)) for leaf in _leaves(list(sizes[1:]))):
        call.refuse("computes with the size of the batch")


def _expand(call: Call) -> None:
    value, sizes = call.args[0], call.sizes()
    if isinstance(value, Tensor):
        _of_every_sample(call, sizes)
        if call.kwargs or (value.ndim == len(sizes) and value.shape[0] != 1):
            call.refuse(BY_PLACE)
        return
    value = call.first()
    if call.kwargs or isinstance(sizes, Count) or len(sizes) != value.ndim:
        call.refuse("puts an axis before the samples")
    if sizes[0] != -1 and sizes[0] != Count(*BATCH_SIZES):
        call.refuse("stretches the axis of the samples")


def _filled(call: Call) -> None:
    """zeros, ones and full: a constant for every sample."""
    _of_every_sample(call, call.argument(0, "size"))
    rest = {key: value for key, value in call.kwargs.items() if key != "size"}
    if any(isinstance(leaf, (Batch, Count)) for leaf in _leaves([call.args[1:], rest])):
        call.refuse("computes with the size of the batch")


def _repeat(call: Call) -> None:
    value, sizes = call.alone(), call.sizes()
    if call.kwargs or len(sizes) != value.ndim or sizes[0] != 1:
        call.refuse("repeats the samples")


def _join(lift: int) -> Rule:
    """cat (0) and stack (1): along an axis of the sample, all parts being tensors of samples."""

    def rule(call: Call) -> None:
        parts, dims = call.argument(0, "tensors"), call.argument(1, "dim", "axis")
        if not isinstance(parts, (list, tuple)) or not all(isinstance(part, Batch) for part in parts):
            call.refuse("joins samples with something else")
        call.check_axes(0 if dims is None else dims, parts[0].ndim + lift)

    return rule


def _unsqueeze(call: Call) -> None:
    call.check_axes(call.argument(1, "dim"), call.alone().ndim + 1)


def _gather(call: Call) -> None:
    value, index = call.first(), call.argument(2, "index")
    call.check_axes(call.argument(1, "dim"), value.ndim)
    if not isinstance(index, Batch) or index.ndim != value.ndim:
        call.refuse("needs an index with the samples on axis 0")


def _getitem(call: Call) -> None:
    value, index = call.first(), call.args[1]
    items = list(index) if isinstance(index, (tuple, list)) and not isinstance(index, Batch) else [index]
    if isinstance(index, list) or any(isinstance(leaf, (Batch, Count)) for leaf in _leaves(items)):
        raise NotPerSample("an index picks samples by value or by place")
    whole = items[0] is Ellipsis or items[0] == slice(None)
    taken = sum(item is not None for item in items[1:]) if items[0] is Ellipsis else 0
    if not whole or taken >= value.ndim:
        raise NotPerSample("an index picks samples by their place in the batch")


def _matmul(call: Call) -> None:
    """Products over axes of the sample: a tensor of samples on the right must have its own axis to sum."""
    left, right = call.args[0], call.argument(1, "other", "mat2")
    rest = [leaf for leaf in _leaves([call.args[2:], call.kwargs]) if leaf is not right]
    if any(isinstance(leaf, (Batch, Count)) for leaf in rest):
        call.refuse("has a further argument that carries samples")
    rank = max(left.ndim, right.ndim)
    both = isinstance(left, Batch) and isinstance(right, Batch)
    if (isinstance(right, Batch) and right.ndim < 3) or (isinstance(left, Batch) and left.ndim < 2 + both):
        call.refuse("sums over the samples")
    if any(isinstance(side, Batch) and side.ndim != rank for side in (left, right)):
        call.refuse(ANOTHER_AXIS)
    constants = [side for side in (left, right) if isinstance(side, Tensor)]
    if any(side.ndim == rank > 2 and side.shape[0] != 1 for side in constants):
        call.refuse(BY_PLACE)


def _einsum(call: Call) -> None:
    equation, *operands = call.args
    if len(operands) == 1 and not isinstance(operands[0], (Batch, Tensor)):
        operands = list(operands[0])
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        raise NotPerSample("'einsum' without an arrow or with an ellipsis")
    left, out = equation.replace(" ", "").split("->")
    pairs = list(zip(left.split(","), operands, strict=True))
    letters = {term[0] for term, operand in pairs if isinstance(operand, Batch)}
    if len(letters) != 1 or out[:1] not in letters:
        call.refuse("does not keep the samples' letter in front")
    again = any(out[0] in (term[1:] if isinstance(operand, Batch) else term) for term, operand in pairs)
    if again or out[0] in out[1:] or any(isinstance(operand, Count) for operand in operands):
        call.refuse("uses the samples' letter a second time")


def _layer(exact: bool) -> Rule:
    """A layer with fixed weights; ``exact``: its input has as many axes as its weight."""

    def rule(call: Call) -> None:
        value = call.alone()
        if exact and value.ndim != call.argument(1, "weight").ndim:
            call.refuse(WRONG_AXIS)
        options = call.kwargs.get("max_norm") or call.kwargs.get("scale_grad_by_freq")
        if options or (len(call.args) > 3 and call.name == "embedding"):
            call.refuse("changes with the tokens of the batch")

    return rule


def _at_least(rank: int) -> Rule:
    def rule(call: Call) -> None:
        if call.alone().ndim < rank:
            call.refuse(WRONG_AXIS)

    return rule


def _pad(call: Call) -> None:
    value, pad = call.alone(), call.argument(1, "pad")
    if not isinstance(pad, (list, tuple)) or len(pad) // 2 >= value.ndim:
        call.refuse("pads the axis of the samples")


def _layer_norm(call: Call) -> None:
    if len(call.argument(1, "normalized_shape")) >= call.alone().ndim:
        call.refuse("goes along the axis of the samples")


def _instance_norm(call: Call) -> None:
    _at_least(3)(call)
    if call.argument(1, "running_mean") is not None or call.argument(2, "running_var") is not None:
        call.refuse("keeps statistics of the records")


def _one_hot(call: Call) -> None:
    call.alone()
    if not (call.argument(1, "num_classes") or 0) > 0:
        call.refuse("without num_classes takes its width from the batch")


def _attention(call: Call) -> None:
    q, k, v = (call.argument(i, key) for i, key in enumerate(("query", "key", "value")))
    mask = call.argument(3, "attn_mask")
    if not all(isinstance(t, Batch) and t.ndim == q.ndim >= 3 for t in (q, k, v)):
        call.refuse("attends from one sample to another")
    if isinstance(mask, Batch) and mask.ndim != q.ndim:
        call.refuse(ANOTHER_AXIS)
    if isinstance(mask, Tensor) and mask.ndim >= q.ndim and mask.shape[0] != 1:
        call.refuse(BY_PLACE)


def _of_each_sample(rule: Rule) -> Rule:
    """A loss: it must not average over the batch."""

    def checked(call: Call) -> None:
        kwargs = call.kwargs
        if kwargs.get("reduction") != "none" or kwargs.get("size_average") or kwargs.get("reduce"):
            call.refuse("without reduction='none' averages over the batch")
        rule(call)

    return checked


def _class_loss(call: Call) -> None:
    """Scores (samples, classes, ...) against labels (samples, ...); weights by class are constants."""
    scores, labels = call.argument(0, "input"), call.argument(1, "target")
    if not isinstance(scores, Batch) or not isinstance(labels, Batch) or scores.ndim < 2:
        call.refuse("needs scores (samples, classes) and labels (samples,)")
    rest = {k: v for k, v in call.kwargs.items() if k not in ("input", "target")}
    if any(isinstance(leaf, (Batch, Count)) for leaf in _leaves([call.args[2:], rest])):
        call.refuse("has a further argument that carries samples")


def _vector_loss(call: Call) -> None:
    """Losses of vectors (samples, features) that are summed over the features."""
    leaves = call.leaves()
    if any(leaf.ndim != 2 for leaf in leaves[:2] if isinstance(leaf, Batch)):
        call.refuse("needs vectors (samples, features)")
    if any(isinstance(leaf, (Tensor, Count)) for leaf in leaves):
        call.refuse("mixes samples with constants")


def _distance(call: Call) -> None:
    dims = call.argument(2, "dim") if call.name == "cosine_similarity" else -1
    _pointwise(Call(call.name, call.args[:2], {}))
    call.check_axes(1 if dims is None else dims, call.args[0].ndim)


_POINTWISE = """add sub subtract mul multiply div divide true_divide pow maximum minimum fmax fmin where
    masked_fill clamp clip clamp_min clamp_max lerp addcmul addcdiv remainder fmod floor_divide
    eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor atan2 hypot xlogy
    truediv floordiv mod and_ or_ xor copysign rsub logaddexp __and__ __or__ __rsub__ expand_as"""
_UNARY = """neg abs exp exp2 expm1 log log1p log2 log10 sqrt rsqrt square reciprocal sign sin cos tan asin
    acos atan sinh cosh tanh asinh acosh atanh sigmoid logit erf erfc erfinv floor ceil round trunc frac relu
    relu6 leaky_relu elu selu celu gelu silu mish softplus softsign hardtanh hardswish hardsigmoid hardshrink
    softshrink tanhshrink threshold rrelu logsigmoid positive
    isnan isinf isfinite logical_not bitwise_not invert nan_to_num clone contiguous detach sinc lgamma digamma
    float double half bfloat16 long int bool cpu zeros_like ones_like full_like empty_like
    rand_like randn_like bernoulli dropout dropout1d dropout2d dropout3d alpha_dropout
    feature_alpha_dropout"""
_REDUCTIONS = """sum mean prod amax amin std var logsumexp all any median mode nansum nanmean cumsum cumprod
    logcumsumexp softmax log_softmax softmin argmax argmin squeeze unbind select narrow cummax cummin unfold
    index_select count_nonzero std_mean var_mean"""
_POOLS = """max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d
    adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
    lp_pool1d lp_pool2d interpolate upsample pixel_shuffle pixel_unshuffle channel_shuffle
    local_response_norm tril triu mT"""
_ELEMENT_LOSSES = """mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy
    binary_cross_entropy_with_logits kl_div poisson_nll_loss soft_margin_loss hinge_embedding_loss
    margin_ranking_loss"""
_CLASS_LOSSES = "cross_entropy nll_loss multi_margin_loss multilabel_margin_loss multilabel_soft_margin_loss"
_FILLED = ("zeros", "ones", "full")
_TABLE: list[tuple[str, Rule]] = [
    (_POINTWISE, _pointwise),
    (_UNARY, Call.alone),
    (_REDUCTIONS, _along()),
    (_POOLS, _at_least(3)),
    (_ELEMENT_LOSSES, _of_each_sample(_pointwise)),
    (_CLASS_LOSSES, _of_each_sample(_class_loss)),
    ("cosine_embedding_loss triplet_margin_loss", _of_each_sample(_vector_loss)),
    ("pairwise_distance cosine_similarity", _distance),
    ("max min", _pair_or_along),
    ("transpose swapaxes swapdims movedim moveaxis", _two_axes),
    ("view reshape flatten unflatten new_zeros new_ones", _reshape),
    ("norm vector_norm roll repeat_interleave chunk split tensor_split", _along(2)),
    ("normalize", _along(2, default=1)),
    ("sort argsort glu", _along(1, default=-1)),
    ("topk", _along(2, default=-1)),
    ("flip", _along(1, several=True)),
    ("gumbel_softmax", _along(4, default=-1)),
    ("permute", _permute),
    ("expand broadcast_to", _expand),
    (" ".join(_FILLED), _filled),
    ("repeat", _repeat),
    ("unsqueeze", _unsqueeze),
    ("cat concat concatenate", _join(0)),
    ("stack", _join(1)),
    ("gather", _gather),
    ("getitem", _getitem),
    ("matmul bmm mm", _matmul),
    ("einsum", _einsum),
    ("linear embedding", _layer(exact=False)),
    ("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d", _layer(exact=True)),
    ("pad", _pad),
    ("layer_norm rms_norm", _layer_norm),
    ("group_norm", _at_least(2)),
    ("instance_norm", _instance_norm),
    ("one_hot", _one_hot),
    ("scaled_dot_product_attention", _attention),
    ("to type_as", Call.first),  # another type or device, perhaps that of another tensor
]
RULES: dict[str, Rule] = {name: rule for names, rule in _TABLE for name in names.split()}
RANDOM = frozenset(
    "rand_like randn_like bernoulli rrelu dropout dropout1d dropout2d dropout3d alpha_dropout "
    "feature_alpha_dropout gumbel_softmax scaled_dot_product_attention".split()
)


def _functions() -> dict[Callable[..., Any], str]:
    """Return the functions by identity: another function of the same name has no rule."""
    names: dict[Callable[..., Any], str] = {}
    for name in RULES:
        for space in (torch, F, operator, torch.special, torch.linalg):
            function = getattr(space, name, None)
            if function is not None:
                names[function] = name
    names[torch.special.expit] = "sigmoid"
    return names


_FUNCTIONS = _functions()


def judge_function(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a function gives for abstract arguments, or raise `NotPerSample`."""
    name = _FUNCTIONS.get(function)
    from_sizes = name in _FILLED or name == "broadcast_to"
    if not from_sizes and not any(isinstance(leaf, (Batch, Weight)) for leaf in _leaves([args, kwargs])):
        raise NotPerSample("the computation depends on the size of the batch")
    if name is None:
        raise NotPerSample(f"{getattr(function, '__name__', function)!r} is not on the list")
    return _run(Call(name, args, kwargs), function)


def judge_method(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a method of a tensor gives for abstract arguments, or raise `NotPerSample`."""
    plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    if plain not in RULES or (plain != name and not isinstance(args[0], Batch)):
        raise NotPerSample(f"'.{name}()' is not on the list")
    return _run(Call(plain, args, kwargs), lambda tensor, *rest, **more: getattr(tensor, name)(*rest, **more))


def judge_module(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Return what a layer of torch gives for abstract arguments, or raise `NotPerSample`."""
    kind = type(module)
    rank = MODULES.get(kind)
    if rank is None or kwargs or len(args) != 1 or not isinstance(args[0], Batch):
        raise NotPerSample(f"{kind.__name__} is not on the list, or gets something other than samples")
    value = args[0]
    along = False
    if isinstance(module, (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU)):
        along = not isinstance(module.dim, int) or module.dim % value.ndim == 0
    elif isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        along = len(module.normalized_shape) >= value.ndim
    if value.ndim < rank or (kind in _EXACT and value.ndim != rank):
        raise NotPerSample(f"{kind.__name__} {WRONG_AXIS}")
    if along:
        raise NotPerSample(f"{kind.__name__} goes along the axis of the samples")
    with torch.no_grad(), restore_generators(value.small.device):
        return _checked(kind.__name__, module(value.small), module(value.large))


# layers of torch that act on each sample alone, by the least number of axes they need for it
_BY_RANK = {
    1: """Identity ReLU ReLU6 LeakyReLU ELU SELU CELU GELU SiLU Mish Softplus Softsign Hardtanh Hardswish
        Hardsigmoid Hardshrink Softshrink Tanhshrink Threshold RReLU LogSigmoid Sigmoid Tanh Dropout
        AlphaDropout Embedding""",
    2: "Softmax LogSoftmax Softmin GLU Flatten Unflatten Linear LayerNorm RMSNorm GroupNorm PReLU",
    3: """Dropout1d Dropout2d Dropout3d FeatureAlphaDropout MaxPool1d AvgPool1d AdaptiveAvgPool1d
        AdaptiveMaxPool1d LPPool1d Upsample LocalResponseNorm InstanceNorm1d ConstantPad1d ReflectionPad1d
        ReplicationPad1d ZeroPad1d Fold Conv1d ConvTranspose1d""",
    4: """MaxPool2d AvgPool2d AdaptiveAvgPool2d AdaptiveMaxPool2d LPPool2d InstanceNorm2d ConstantPad2d
        ReflectionPad2d ReplicationPad2d ZeroPad2d PixelShuffle PixelUnshuffle ChannelShuffle Softmax2d Unfold
        UpsamplingNearest2d UpsamplingBilinear2d Conv2d ConvTranspose2d""",
    5: """MaxPool3d AvgPool3d AdaptiveAvgPool3d AdaptiveMaxPool3d InstanceNorm3d ConstantPad3d
        ReplicationPad3d ReflectionPad3d ZeroPad3d Conv3d ConvTranspose3d""",
}


def _layers(names: str) -> list[type[nn.Module]]:
    return [getattr(nn, name) for name in names.split()]


MODULES: dict[type[nn.Module], int] = {
    **{kind: rank for rank, names in _BY_RANK.items() for kind in _layers(names)},
    Recurrence: 3,
    QuickMish: 1,
    WindowMaxima: 4,
}
_EXACT = _layers(
    "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d InstanceNorm1d InstanceNorm2d "
    "InstanceNorm3d Softmax2d Unfold Fold"
)
RANDOM_MODULES = tuple(
    _layers("RReLU Dropout Dropout1d Dropout2d Dropout3d AlphaDropout FeatureAlphaDropout")
)


def _run(call: Call, function: Callable[..., Any]) -> Any:
    for leaf in call.leaves():
        if isinstance(leaf, Weight):
            raise NotPerSample(f"parameter '{leaf.name}' is used outside its layer")
    if call.kwargs.get("out") is not None:
        call.refuse("writes into a tensor passed as out=")
    RULES[call.name](call)
    devices = (leaf.small.device for leaf in call.leaves() if isinstance(leaf, Batch))
    with torch.no_grad(), restore_generators(next(devices, torch.device("cpu"))):
        small, large = (function(*_at(call.args, i), **_at(call.kwargs, i)) for i in (0, 1))
    return _checked(call.name, small, large)


def _at(value: Any, which: int) -> Any:
    """Return the arguments at one of the two batch sizes."""
    if isinstance(value, (Batch, Count)):
        return value[which]
    if isinstance(value, slice):
        return slice(*(_at(part, which) for part in (value.start, value.stop, value.step)))
    if isinstance(value, (tuple, list)):
        items = [_at(item, which) for item in value]
        return items if isinstance(value, list) else tuple(items)
    if isinstance(value, dict):
        return {key: _at(item, which) for key, item in value.items()}
    return value


def _checked(name: str, small: Any, large: Any) -> Any:
    """Join the results at both batch sizes; axis 0 must be the samples' in each tensor."""
    if isinstance(small, (tuple, list)):
        items = [_checked(name, a, b) for a, b in zip(small, large, strict=True)]
        return items if type(small) is list else type(small)(items)
    if not isinstance(small, Tensor):
        raise NotPerSample(f"'{name}' returns something other than a tensor")
    if not small.ndim or not large.ndim or (small.shape[0], large.shape[0]) != BATCH_SIZES:
        raise NotPerSample(f"'{name}' does not leave the samples on the first axis")
    if small.shape[1:] != large.shape[1:]:
        raise NotPerSample(f"'{name}' has a shape that follows the size of the batch")
    return Batch(small, large)
