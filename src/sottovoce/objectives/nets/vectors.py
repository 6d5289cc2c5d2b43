"""Vectors of a fixed number of lanes for numba, so that a kernel need not rely on loops becoming vectors.

Inside compiled functions: `load`, `spread`, ``+ - * /``, ``< >= ==`` (masks), `choose`, `even`, `odd`, `exp`,
`store`. LLVM keeps the vectors in registers and splits those that are wider than the processor's. Lanes of
masks and numbers must agree; a vector cannot leave a compiled function.
"""

# mypy: allow-untyped-calls, allow-untyped-defs, allow-untyped-decorators

from __future__ import annotations

import operator
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, njit, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import models, register_model

intrinsic: Any = extending.intrinsic  # what it makes is called without the first argument
overload: Any = extending.overload
_FLAGS = ("contract", "nsz", "arcp", "reassoc")  # NaN and infinity keep their meaning
_ELEMENTS = {"float32": ir.FloatType(), "int32": ir.IntType(32), "mask": ir.IntType(1)}


class Vector(types.Type):
    """The type of ``lanes`` numbers of one kind: float32, int32 or mask."""

    def __init__(self, kind: str, lanes: int) -> None:
        self.kind, self.lanes = kind, lanes
        self.code = ir.VectorType(_ELEMENTS[kind], lanes)
        super().__init__(name=f"Vector({kind}, {lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: Any) -> None:
        super().__init__(manager, of, of.code)


def _place(context: Any, builder: Any, array: Any, value: Any, at: Any, code: Any) -> Any:
    """A pointer to lanes that begin at an entry of a contiguous array."""
    if array.layout != "C":
        raise TypingError(f"vectors are read from and written to contiguous arrays, got {array}.")
    data = context.make_array(array)(context, builder, value).data
    return builder.bitcast(builder.gep(data, [at]), ir.PointerType(code))


@intrinsic(prefer_literal=True)
def load(typing_context, array, at, lanes):
    """Return the ``lanes`` numbers of ``array`` from ``at`` on."""
    vector = Vector(array.dtype.name, lanes.literal_value)

    def code(context, builder, signature, args):
        return builder.load(
            _place(context, builder, signature.args[0], args[0], args[1], vector.code), align=4
        )

    return vector(array, types.intp, lanes), code


@intrinsic(prefer_literal=True)
def store(typing_context, array, at, vector, count):
    """Write the first ``count`` lanes to ``array`` from ``at`` on."""
    part = Vector(vector.kind, count.literal_value)

    def code(context, builder, signature, args):
        lanes = ir.Constant(ir.VectorType(ir.IntType(32), part.lanes), list(range(part.lanes)))
        first = builder.shuffle_vector(args[2], args[2], lanes)
        builder.store(
            first, _place(context, builder, signature.args[0], args[0], args[1], part.code), align=4
        )
        return context.get_dummy_value()

    return types.void(array, types.intp, vector, count), code


@intrinsic(prefer_literal=True)
def spread(typing_context, number, lanes):
    """Return a vector with ``number`` in all lanes."""
    vector = Vector(number.name, lanes.literal_value)

    def code(context, builder, signature, args):
        word = ir.IntType(32)
        one = builder.insert_element(ir.Constant(vector.code, ir.Undefined), args[0], ir.Constant(word, 0))
        zeros = ir.Constant(ir.VectorType(word, vector.lanes), [0] * vector.lanes)
        return builder.shuffle_vector(one, one, zeros)

    return vector(number, lanes), code


@intrinsic
def choose(typing_context, mask, one, other):
    """Return, lane by lane, ``one`` where ``mask`` holds, else ``other``."""
    return one(mask, one, one), lambda context, builder, signature, args: builder.select(*args)


def _halves(first: int) -> Any:
    @intrinsic
    def half(typing_context, one, other):
        def code(context, builder, signature, args):
            lanes = list(range(first, 2 * one.lanes, 2))
            return builder.shuffle_vector(*args, ir.Constant(ir.VectorType(ir.IntType(32), one.lanes), lanes))

        return one(one, one), code

    return half


even, odd = _halves(0), _halves(1)  # every second number of two vectors laid end to end


@intrinsic
def _power_of_two(typing_context, n):
    """2^n of whole numbers that are floats, through the bits of the result."""

    def code(context, builder, signature, args):
        whole = Vector("int32", n.lanes).code
        exponent = builder.add(builder.fptosi(args[0], whole), ir.Constant(whole, [127] * n.lanes))
        return builder.bitcast(builder.shl(exponent, ir.Constant(whole, [23] * n.lanes)), n.code)

    return n(n), code


@intrinsic
def _floor(typing_context, x):
    def code(context, builder, signature, args):
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(x.code, [x.code]), f"llvm.floor.v{x.lanes}f32"
        )
        return builder.call(function, args)

    return x(x), code


def _lift(symbol: Any, name: str) -> None:
    """Let an operator take two vectors, or a vector and a number; ``name`` is that of LLVM, or the sign."""

    @intrinsic
    def apply(typing_context, one, other):
        def code(context, builder, signature, args):
            if not name.isalpha():
                return builder.fcmp_ordered(name, *args)
            if one.kind == "int32":
                return getattr(builder, name)(*args)
            return getattr(builder, f"f{name}")(*args, flags=_FLAGS)

        result = one if name.isalpha() else Vector("mask", one.lanes)
        return result(one, one), code

    @overload(symbol)
    def operation(one, other):
        if isinstance(one, Vector) and isinstance(other, Vector):
            return lambda one, other: apply(one, other)
        if isinstance(one, Vector) and other in (types.float32, types.int32):
            lanes = one.lanes
            return lambda one, other: apply(one, spread(other, lanes))
        return None


_OPERATORS = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "lt": "<", "ge": ">=", "eq": "=="}
for _symbol, _name in _OPERATORS.items():
    _lift(getattr(operator, _symbol), _name)


@njit(inline="always")
def larger(one: Any, other: Any) -> Any:
    """The larger number lane by lane; where one is NaN, the second."""
    return choose(other < one, one, other)


@njit(inline="always")
def smaller(one: Any, other: Any) -> Any:
    """The smaller number lane by lane; where one is NaN, the second."""
    return choose(one < other, one, other)


@njit(inline="always")
def exp(x: Any, bound: Any) -> Any:
    """exp of numbers clamped to |x| <= bound, at most 80, to 2e-7 relative: 2^n times a polynomial."""
    x = smaller(larger(x, bound * np.float32(-1)), bound)
    n = _floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = (x - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
    p = r * np.float32(1.9875691500e-4) + np.float32(1.3981999507e-3)
    p = p * r + np.float32(8.3334519073e-3)
    p = p * r + np.float32(4.1665795894e-2)
    p = p * r + np.float32(1.6666665459e-1)
    p = p * r + np.float32(5.0000001201e-1)
    p = p * (r * r) + r + np.float32(1)
    return p * _power_of_two(n)
