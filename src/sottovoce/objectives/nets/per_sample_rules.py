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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sottovoce.errors import SottovoceError
from sottovoce.objectives.nets.recurrence import Recurrence

BATCH_SIZES = (
    2,
    3,
)  # an axis that is the batch's size in both is the samples', since sizes are not computed with


class NotPerSample(SottovoceError):
    """A step that is not known to keep samples apart; the message names it."""


class Batch(NamedTuple):
    """A tensor with the samples on axis 0, at the two sizes of `BATCH_SIZES`."""

    small: Tensor
    large: Tensor

    @staticmethod
    def of(shape: Iterable[int], dtype: torch.dtype, device: Any = "cpu") -> Batch:
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


Arguments = Sequence[Any]
Options = Mapping[str, Any]
Rule = Callable[[str, Arguments, Options], None]


def _leaves(value: Any) -> list[Any]:
    """Everything inside nested lists, tuples, slices and dicts."""
    if isinstance(value, (Batch, Count, Weight)):
        return [value]
    if isinstance(value, slice):
        return _leaves((value.start, value.stop, value.step))
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in _leaves(item)]
    if isinstance(value, Mapping):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    return [value]


def _argument(args: Arguments, kwargs: Options, place: int, *names: str) -> Any:
    for name in names:
        if name in kwargs:
            return kwargs[name]
    return args[place] if len(args) > place else None


def _first(name: str, args: Arguments, kwargs: Options) -> Batch:
    """The first argument, which must carry the samples."""
    value = args[0] if args else kwargs.get("input")
    if not isinstance(value, Batch):
        raise NotPerSample(f"'{name}' is applied to something other than a tensor of samples")
    return value


def _alone(name: str, args: Arguments, kwargs: Options) -> Batch:
    """The first argument, where no other may carry samples or their number."""
    value = _first(name, args, kwargs)
    rest = _leaves([args[1:], {k: v for k, v in kwargs.items() if k != "input"}])
    if any(isinstance(leaf, (Batch, Count)) for leaf in rest):
        raise NotPerSample(f"'{name}' uses the samples, or their number, as an option")
    return value


def _not_the_samples(name: str, dims: Any, ndim: int) -> None:
    """Refuse axes that are left open or contain axis 0."""
    axes = dims if isinstance(dims, (list, tuple)) else [dims]
    if not len(axes) or any(not isinstance(axis, int) or isinstance(axis, bool) for axis in axes):
        raise NotPerSample(f"'{name}' goes over all axes, the samples' among them")
    if any(axis % ndim == 0 or not -ndim <= axis < ndim for axis in axes):
        raise NotPerSample(f"'{name}' goes along the axis of the samples")


# --- rules ---------------------------------------------------------------------------------------


def _pointwise(name: str, args: Arguments, kwargs: Options) -> None:
    """Element by element with broadcasting: the samples must meet on axis 0."""
    leaves = _leaves([args, kwargs])
    if any(isinstance(leaf, Count) for leaf in leaves):
        # dividing by the size of the batch would let one record more move the share of every other
        raise NotPerSample(f"'{name}' computes with the size of the batch")
    batches = [leaf for leaf in leaves if isinstance(leaf, Batch)]
    constants = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    rank = max([t.ndim for t in batches] + [t.ndim for t in constants])
    if any(b.ndim != rank for b in batches):
        raise NotPerSample(f"'{name}' broadcasts the samples against another axis")
    if any(c.ndim == rank and c.shape[0] != 1 for c in constants):
        raise NotPerSample(f"'{name}' gives samples a value by their place in the batch")


def _unary(name: str, args: Arguments, kwargs: Options) -> None:
    _alone(name, args, kwargs)


def _move(name: str, args: Arguments, kwargs: Options) -> None:
    """Another type or device, perhaps that of another tensor."""
    _first(name, args, kwargs)


def _along(place: int = 1, default: int | None = None, several: bool = False) -> Rule:
    """Over given axes, not the samples'; ``place`` is the position of the axis among the arguments."""

    def rule(name: str, args: Arguments, kwargs: Options) -> None:
        value = _alone(name, args, kwargs)
        dims = _argument(args, kwargs, place, "dim", "dims", "axis")
        if several and len(args) > place + 1 and all(type(a) is int for a in args[place:]):
            dims = list(args[place:])
        _not_the_samples(name, default if dims is None else dims, value.ndim)

    return rule


def _pair_or_along(name: str, args: Arguments, kwargs: Options) -> None:
    """max and min: of two tensors, or along an axis."""
    other = _argument(args, kwargs, 1, "other")
    (_pointwise if isinstance(other, (Batch, Tensor)) else _along())(name, args, kwargs)


def _two_axes(name: str, args: Arguments, kwargs: Options) -> None:
    """transpose and its kin: neither axis is the samples'."""
    value = _alone(name, args, kwargs)
    both = [
        _argument(args, kwargs, 1, "dim0", "source", "axis0"),
        _argument(args, kwargs, 2, "dim1", "destination", "axis1"),
    ]
    for dims in both:
        _not_the_samples(name, dims, value.ndim)


def _permute(name: str, args: Arguments, kwargs: Options) -> None:
    _alone(name, args, kwargs)
    dims = kwargs.get("dims", args[1] if len(args) == 2 else args[1:])
    if not isinstance(dims, (list, tuple)) or dims[0] != 0:
        raise NotPerSample(f"'{name}' moves the axis of the samples")


def _reshape(name: str, args: Arguments, kwargs: Options) -> None:
    """Rows stay rows if axis 0 keeps its size, which is checked on the result; sizes may be a `Count`."""
    _first(name, args, kwargs)
    if any(isinstance(leaf, (Batch, Tensor)) for leaf in _leaves([args[1:], kwargs]) if leaf is not args[0]):
        raise NotPerSample(f"'{name}' takes its shape from values")


def _expand(name: str, args: Arguments, kwargs: Options) -> None:
    value = _first(name, args, kwargs)
    sizes = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    if kwargs or isinstance(sizes, Count) or len(sizes) != value.ndim:
        raise NotPerSample(f"'{name}' puts an axis before the samples")
    if sizes[0] != -1 and sizes[0] != Count(*BATCH_SIZES):
        raise NotPerSample(f"'{name}' stretches the axis of the samples")


def _repeat(name: str, args: Arguments, kwargs: Options) -> None:
    value = _alone(name, args, kwargs)
    sizes = args[1] if len(args) == 2 and isinstance(args[1], (list, tuple)) else args[1:]
    if kwargs or len(sizes) != value.ndim or sizes[0] != 1:
        raise NotPerSample(f"'{name}' repeats the samples")


def _join(lift: int) -> Rule:
    """cat (0) and stack (1): along an axis of the sample, all parts being tensors of samples."""

    def rule(name: str, args: Arguments, kwargs: Options) -> None:
        parts = _argument(args, kwargs, 0, "tensors")
        if not isinstance(parts, (list, tuple)) or not all(isinstance(part, Batch) for part in parts):
            raise NotPerSample(f"'{name}' joins samples with something else")
        dims = _argument(args, kwargs, 1, "dim", "axis")
        _not_the_samples(name, 0 if dims is None else dims, parts[0].ndim + lift)

    return rule


def _unsqueeze(name: str, args: Arguments, kwargs: Options) -> None:
    value = _alone(name, args, kwargs)
    _not_the_samples(name, _argument(args, kwargs, 1, "dim"), value.ndim + 1)


def _gather(name: str, args: Arguments, kwargs: Options) -> None:
    value, index = _first(name, args, kwargs), _argument(args, kwargs, 2, "index")
    _not_the_samples(name, _argument(args, kwargs, 1, "dim"), value.ndim)
    if not isinstance(index, Batch) or index.ndim != value.ndim:
        raise NotPerSample(f"'{name}' needs an index with the samples on axis 0")


def _getitem(name: str, args: Arguments, kwargs: Options) -> None:
    value, index = _first(name, args, kwargs), args[1]
    items = list(index) if isinstance(index, (tuple, list)) and not isinstance(index, Batch) else [index]
    if isinstance(index, list) or any(isinstance(leaf, (Batch, Count)) for leaf in _leaves(items)):
        raise NotPerSample("an index picks samples by value or by place")
    whole = items[0] is Ellipsis or items[0] == slice(None)
    if not whole:
        raise NotPerSample("an index picks samples by their place in the batch")
    if items[0] is Ellipsis and sum(item is not None for item in items[1:]) >= value.ndim:
        raise NotPerSample("an index picks samples by their place in the batch")


def _matmul(name: str, args: Arguments, kwargs: Options) -> None:
    """Products over axes of the sample: a tensor of samples on the right must have its own axis to sum."""
    left, right = args[0], _argument(args, kwargs, 1, "other", "mat2")
    if any(isinstance(leaf, (Batch, Count)) for leaf in _leaves([args[2:], kwargs]) if leaf is not right):
        raise NotPerSample(f"'{name}' has a further argument that carries samples")
    rank = max(left.ndim, right.ndim)
    if isinstance(right, Batch) and right.ndim < 3:
        raise NotPerSample(f"'{name}' sums over the samples")
    if isinstance(left, Batch) and (left.ndim < 2 or (isinstance(right, Batch) and left.ndim < 3)):
        raise NotPerSample(f"'{name}' sums over the samples")
    if any(isinstance(side, Batch) and side.ndim != rank for side in (left, right)):
        raise NotPerSample(f"'{name}' broadcasts the samples against another axis")
    if any(
        isinstance(side, Tensor) and side.ndim == rank > 2 and side.shape[0] != 1 for side in (left, right)
    ):
        raise NotPerSample(f"'{name}' gives samples a value by their place in the batch")


def _einsum(name: str, args: Arguments, kwargs: Options) -> None:
    equation = args[0]
    operands = (
        list(args[1]) if len(args) == 2 and not isinstance(args[1], (Batch, Tensor)) else list(args[1:])
    )
    if not isinstance(equation, str) or "->" not in equation or "." in equation:
        raise NotPerSample("'einsum' without an arrow or with an ellipsis")
    left, out = equation.replace(" ", "").split("->")
    letters = {term[0] for term, op in zip(left.split(","), operands, strict=True) if isinstance(op, Batch)}
    if len(letters) != 1 or out[:1] not in letters:
        raise NotPerSample("'einsum' does not keep the samples' letter in front")
    for term, op in zip(left.split(","), operands, strict=True):
        if out[0] in (term[1:] if isinstance(op, Batch) else term):
            raise NotPerSample("'einsum' uses the samples' letter a second time")
    if out[0] in out[1:] or any(isinstance(op, Count) for op in operands):
        raise NotPerSample("'einsum' uses the samples' letter a second time")


def _layer(extra: int | None = None) -> Rule:
    """A layer with fixed weights; ``extra``: the rank it needs, counted from its weight's (None: any)."""

    def rule(name: str, args: Arguments, kwargs: Options) -> None:
        value = _alone(name, args, kwargs)
        weight = _argument(args, kwargs, 1, "weight")
        if extra is not None and value.ndim != weight.ndim + extra:
            raise NotPerSample(f"'{name}' takes the samples for another axis")
        options = kwargs.get("max_norm") or kwargs.get("scale_grad_by_freq")
        if options or (len(args) > 3 and name == "embedding"):
            raise NotPerSample(f"'{name}' changes with the tokens of the batch")

    return rule


def _at_least(rank: int) -> Rule:
    def rule(name: str, args: Arguments, kwargs: Options) -> None:
        if _alone(name, args, kwargs).ndim < rank:
            raise NotPerSample(f"'{name}' takes the samples for another axis")

    return rule


def _pad(name: str, args: Arguments, kwargs: Options) -> None:
    value, pad = _alone(name, args, kwargs), _argument(args, kwargs, 1, "pad")
    if not isinstance(pad, (list, tuple)) or len(pad) // 2 >= value.ndim:
        raise NotPerSample(f"'{name}' pads the axis of the samples")


def _layer_norm(name: str, args: Arguments, kwargs: Options) -> None:
    value, shape = _alone(name, args, kwargs), _argument(args, kwargs, 1, "normalized_shape")
    if len(shape) >= value.ndim:
        raise NotPerSample(f"'{name}' goes along the axis of the samples")


def _instance_norm(name: str, args: Arguments, kwargs: Options) -> None:
    _at_least(3)(name, args, kwargs)
    if any(
        _argument(args, kwargs, i, key) is not None for i, key in ((1, "running_mean"), (2, "running_var"))
    ):
        raise NotPerSample(f"'{name}' keeps statistics of the records")


def _one_hot(name: str, args: Arguments, kwargs: Options) -> None:
    _alone(name, args, kwargs)
    if not (_argument(args, kwargs, 1, "num_classes") or 0) > 0:
        raise NotPerSample(f"'{name}' without num_classes takes its width from the batch")


def _attention(name: str, args: Arguments, kwargs: Options) -> None:
    q, k, v = (_argument(args, kwargs, i, key) for i, key in enumerate(("query", "key", "value")))
    mask = _argument(args, kwargs, 3, "attn_mask")
    if not all(isinstance(t, Batch) and t.ndim == q.ndim >= 3 for t in (q, k, v)):
        raise NotPerSample(f"'{name}' attends from one sample to another")
    if isinstance(mask, Batch) and mask.ndim != q.ndim:
        raise NotPerSample(f"'{name}' broadcasts the samples against another axis")
    if isinstance(mask, Tensor) and mask.ndim >= q.ndim and mask.shape[0] != 1:
        raise NotPerSample(f"'{name}' gives samples a value by their place in the batch")


def _reduction_none(args: Arguments, kwargs: Options, name: str) -> None:
    if kwargs.get("reduction") != "none" or kwargs.get("size_average") or kwargs.get("reduce"):
        raise NotPerSample(f"'{name}' without reduction='none' averages over the batch")


def _class_loss(name: str, args: Arguments, kwargs: Options) -> None:
    """Scores (samples, classes, ...) against labels (samples, ...); weights by class are constants."""
    _reduction_none(args, kwargs, name)
    scores, labels = _argument(args, kwargs, 0, "input"), _argument(args, kwargs, 1, "target")
    rest = {k: v for k, v in kwargs.items() if k not in ("input", "target")}
    if not isinstance(scores, Batch) or not isinstance(labels, Batch) or scores.ndim < 2:
        raise NotPerSample(f"'{name}' needs scores (samples, classes) and labels (samples,)")
    if any(isinstance(leaf, (Batch, Count)) for leaf in _leaves([args[2:], rest])):
        raise NotPerSample(f"'{name}' has a further argument that carries samples")


def _pointwise_loss(name: str, args: Arguments, kwargs: Options) -> None:
    _reduction_none(args, kwargs, name)
    _pointwise(name, args, kwargs)


def _vector_loss(name: str, args: Arguments, kwargs: Options) -> None:
    """Losses of vectors (samples, features) that are summed over the features."""
    _reduction_none(args, kwargs, name)
    if any(leaf.ndim != 2 for leaf in _leaves([args, kwargs])[:2] if isinstance(leaf, Batch)):
        raise NotPerSample(f"'{name}' needs vectors (samples, features)")
    if any(isinstance(leaf, (Tensor, Count)) for leaf in _leaves([args, kwargs])):
        raise NotPerSample(f"'{name}' mixes samples with constants")


def _distance(name: str, args: Arguments, kwargs: Options) -> None:
    dims = _argument(args, kwargs, 2, "dim") if name == "cosine_similarity" else -1
    _pointwise(name, args[:2], {})
    _not_the_samples(name, 1 if dims is None else dims, args[0].ndim)


_POINTWISE = """add sub subtract mul multiply div divide true_divide pow maximum minimum fmax fmin where
    masked_fill clamp clip clamp_min clamp_max lerp addcmul addcdiv remainder fmod floor_divide
    eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_xor atan2 hypot xlogy
    truediv floordiv mod and_ or_ xor copysign rsub logaddexp __and__ __or__ __rsub__"""
_UNARY = """neg abs exp exp2 expm1 log log1p log2 log10 sqrt rsqrt square reciprocal sign sin cos tan asin
    acos atan sinh cosh tanh asinh acosh atanh sigmoid logit erf erfc erfinv floor ceil round trunc frac relu
    relu6
    leaky_relu elu selu celu gelu silu mish softplus softsign hardtanh hardswish hardsigmoid hardshrink
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
    local_response_norm"""
_ELEMENT_LOSSES = """mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy
    binary_cross_entropy_with_logits kl_div poisson_nll_loss soft_margin_loss hinge_embedding_loss
    margin_ranking_loss"""

RULES: dict[str, Rule] = {
    **dict.fromkeys(_POINTWISE.split(), _pointwise),
    **dict.fromkeys(_UNARY.split(), _unary),
    **dict.fromkeys(_REDUCTIONS.split(), _along()),
    **dict.fromkeys(_POOLS.split(), _at_least(3)),
    **dict.fromkeys(_ELEMENT_LOSSES.split(), _pointwise_loss),
    **dict.fromkeys(("cross_entropy", "nll_loss", "multi_margin_loss"), _class_loss),
    **dict.fromkeys(("multilabel_margin_loss", "multilabel_soft_margin_loss"), _class_loss),
    **dict.fromkeys(("cosine_embedding_loss", "triplet_margin_loss"), _vector_loss),
    **dict.fromkeys(("pairwise_distance", "cosine_similarity"), _distance),
    **dict.fromkeys(("max", "min"), _pair_or_along),
    **dict.fromkeys(("transpose", "swapaxes", "swapdims", "movedim", "moveaxis"), _two_axes),
    **dict.fromkeys(("view", "reshape", "flatten", "unflatten"), _reshape),
    **dict.fromkeys(("norm", "vector_norm"), _along(2)), "normalize": _along(2, default=1),
    **dict.fromkeys(("sort", "argsort", "glu"), _along(1, default=-1)),
    "topk": _along(2, default=-1),
    "flip": _along(1, several=True),
    "roll": _along(2),
    "repeat_interleave": _along(2),
    **dict.fromkeys(("chunk", "split", "tensor_split"), _along(2)),
    "gumbel_softmax": _along(4, default=-1),
    "permute": _permute, "expand": _expand, "repeat": _repeat, "unsqueeze": _unsqueeze,
    **dict.fromkeys(("cat", "concat", "concatenate"), _join(0)), "stack": _join(1),
    "gather": _gather, "getitem": _getitem,
    **dict.fromkeys(("matmul", "bmm", "mm"), _matmul), "einsum": _einsum,
    **dict.fromkeys(("linear", "embedding"), _layer()),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _layer(0)),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _layer(0)),
    "pad": _pad, **dict.fromkeys(("layer_norm", "rms_norm"), _layer_norm), "group_norm": _at_least(2),
    "instance_norm": _instance_norm, "one_hot": _one_hot, "scaled_dot_product_attention": _attention,
    **dict.fromkeys(("tril", "triu"), _at_least(3)), "mT": _at_least(3),
    "new_zeros": _reshape, "new_ones": _reshape, **dict.fromkeys(("to", "type_as"), _move),
}  # fmt: skip
RANDOM = frozenset(
    "rand_like randn_like bernoulli rrelu dropout dropout1d dropout2d dropout3d alpha_dropout "
    "feature_alpha_dropout gumbel_softmax scaled_dot_product_attention".split()
)


def _functions() -> dict[Any, str]:
    """Return the functions by identity: another function of the same name has no rule."""
    names: dict[Any, str] = {}
    for name in RULES:
        for space in (torch, F, operator, torch.special, torch.linalg):
            function = getattr(space, name, None)
            if function is not None:
                names[function] = name
    names[torch.special.expit] = "sigmoid"
    return names


_FUNCTIONS = _functions()


def judge_function(function: Any, args: Arguments, kwargs: Options) -> Any:
    """Return what a function gives for abstract arguments, or raise `NotPerSample`."""
    leaves = _leaves([args, kwargs])
    if not any(isinstance(leaf, (Batch, Weight)) for leaf in leaves):
        raise NotPerSample("the computation depends on the size of the batch")
    name = _FUNCTIONS.get(function)
    if name is None:
        raise NotPerSample(f"{getattr(function, '__name__', function)!r} is not on the list")
    return _run(name, function, args, kwargs)


def judge_method(name: str, args: Arguments, kwargs: Options) -> Any:
    """Return what a method of a tensor gives for abstract arguments, or raise `NotPerSample`."""
    plain = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    if plain not in RULES or (plain != name and not isinstance(args[0], Batch)):
        raise NotPerSample(f"'.{name}()' is not on the list")
    return _run(plain, lambda self, *rest, **options: getattr(self, name)(*rest, **options), args, kwargs)


def judge_module(module: nn.Module, args: Arguments, kwargs: Options) -> Any:
    """Return what a layer of torch gives for abstract arguments, or raise `NotPerSample`."""
    kind = type(module)
    rank = MODULES.get(kind)
    if rank is None or kwargs or len(args) != 1 or not isinstance(args[0], Batch):
        raise NotPerSample(f"{kind.__name__} is not on the list, or gets something other than samples")
    value = args[0]
    if kind in _WITH_DIM:
        dim = getattr(module, "dim", None)
        if not isinstance(dim, int) or dim % value.ndim == 0:
            raise NotPerSample(f"{kind.__name__} goes along the axis of the samples")
    if value.ndim < rank or (kind in _EXACT and value.ndim != rank):
        raise NotPerSample(f"{kind.__name__} takes the samples for another axis")
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and len(module.normalized_shape) >= value.ndim:
        raise NotPerSample(f"{kind.__name__} goes along the axis of the samples")
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        return _checked(kind.__name__, module(value.small), module(value.large))


_WITH_DIM = (nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU)
_CONVOLUTIONS: dict[type[nn.Module], int] = {
    nn.Conv1d: 3, nn.Conv2d: 4, nn.Conv3d: 5,
    nn.ConvTranspose1d: 3, nn.ConvTranspose2d: 4, nn.ConvTranspose3d: 5,
}  # fmt: skip
_EXACT = {
    *_CONVOLUTIONS,
    nn.InstanceNorm1d,
    nn.InstanceNorm2d,
    nn.InstanceNorm3d,
    nn.Softmax2d,
    nn.Unfold,
    nn.Fold,
}
# layers of torch that act on each sample alone, and the least number of axes they need for it
MODULES: dict[type[nn.Module], int] = {
    **dict.fromkeys((
        nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish,
        nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid, nn.Hardshrink, nn.Softshrink,
        nn.Tanhshrink, nn.Threshold, nn.RReLU, nn.LogSigmoid, nn.Sigmoid, nn.Tanh, nn.Dropout,
        nn.AlphaDropout, nn.Embedding,
    ), 1),
    **dict.fromkeys((
        nn.Softmax, nn.LogSoftmax, nn.Softmin, nn.GLU, nn.Flatten, nn.Unflatten, nn.Linear, nn.LayerNorm,
        nn.RMSNorm, nn.GroupNorm, nn.PReLU,
    ), 2),
    **dict.fromkeys((
        nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.FeatureAlphaDropout, nn.MaxPool1d, nn.AvgPool1d,
        nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d, nn.LPPool1d, nn.Upsample, nn.LocalResponseNorm,
        nn.InstanceNorm1d, nn.ConstantPad1d, nn.ReflectionPad1d, nn.ReplicationPad1d, nn.ZeroPad1d, nn.Fold,
        Recurrence,
    ), 3),
    **dict.fromkeys((
        nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.LPPool2d,
        nn.InstanceNorm2d,
        nn.ConstantPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.ZeroPad2d, nn.PixelShuffle,
        nn.PixelUnshuffle, nn.ChannelShuffle, nn.Softmax2d, nn.Unfold, nn.UpsamplingNearest2d,
        nn.UpsamplingBilinear2d,
    ), 4),
    **dict.fromkeys((
        nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d, nn.AdaptiveMaxPool3d, nn.InstanceNorm3d,
        nn.ConstantPad3d, nn.ReplicationPad3d, nn.ReflectionPad3d, nn.ZeroPad3d,
    ), 5),
    **_CONVOLUTIONS,
}  # fmt: skip
RANDOM_MODULES = (
    nn.RReLU, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip


def _run(name: str, function: Any, args: Arguments, kwargs: Options) -> Any:
    leaves = _leaves([args, kwargs])
    for leaf in leaves:
        if isinstance(leaf, Weight):
            raise NotPerSample(f"parameter '{leaf.name}' is used outside its layer")
    if kwargs.get("out") is not None:
        raise NotPerSample(f"'{name}' writes into a tensor passed as out=")
    RULES[name](name, args, kwargs)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        small, large = (function(*_at(args, i), **_at(kwargs, i)) for i in (0, 1))
    return _checked(name, small, large)


def _at(value: Any, which: int) -> Any:
    """The arguments at one of the two batch sizes."""
    if isinstance(value, (Batch, Count)):
        return value[which]
    if isinstance(value, slice):
        return slice(*(_at(part, which) for part in (value.start, value.stop, value.step)))
    if isinstance(value, tuple):
        return tuple(_at(item, which) for item in value)
    if isinstance(value, list):
        return [_at(item, which) for item in value]
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
