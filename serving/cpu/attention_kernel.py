"""Attention of one new token per request over a paged cache, compiled for the CPU by Numba.

One call computes a whole layer without the GIL. With torch operators the thread would reacquire the
GIL thousands of times per step and block other threads.
"""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba.extending import intrinsic

Indices = np.ndarray[Any, np.dtype[np.int64]]

_FEWEST_SHARING = 4
"""Thread count from which torch is faster: torch uses all threads, this kernel only one."""


def can_attend(query: torch.Tensor) -> bool:
    """Return whether `attend` supports tensors like `query` and is faster than torch."""
    return query.dtype in _KERNELS and torch.get_num_threads() < _FEWEST_SHARING


def attend(
    query: torch.Tensor,  # [Q, H, D]
    rows: Indices,  # [N] of the Q, one for each request
    keys: torch.Tensor,  # [T, H_kv, D]
    values: torch.Tensor,  # [T, H_kv, D_v]
    places: torch.Tensor,  # [K] indices into T, grouped by request
    spans: Indices,  # [N, 2]: start and end of each request's group in `places`
    scale: float,
    outputs: torch.Tensor,  # [Q, H, D_v]; only `rows` are written
) -> None:
    """Attend from each request's row to all its positions: `softmax(q kᵀ · scale) v`, in fp32.

    Each group of `H / H_kv` consecutive heads shares one key and value head.
    """
    _KERNELS[query.dtype](
        _to_array(query.contiguous()),
        np.ascontiguousarray(rows),
        _to_array(keys.contiguous()),
        _to_array(values.contiguous()),
        places.numpy(),
        np.ascontiguousarray(spans),
        np.float32(scale),
        _to_array(outputs),
    )


def _to_array(tensor: torch.Tensor) -> "np.ndarray[Any, Any]":
    """View a tensor as a NumPy array; bf16 as its bits (uint16), since NumPy has no bf16."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def _reinterpret(source: Any, target: Any, make: Callable[[], Any]) -> Any:
    """Return a function for kernels that reinterprets a number's bits as another type."""

    def define(context: Any, number: Any) -> Any:  # noqa: ARG001 - as Numba calls it
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            return builder.bitcast(args[0], make())

        return target(source), generate

    return intrinsic(define)


_as_float = _reinterpret(numba.uint32, numba.float32, ir.FloatType)
_as_bits = _reinterpret(numba.float32, numba.uint32, lambda: ir.IntType(32))


_Compile = Callable[[Callable[..., Any]], Callable[..., Any]]
_inline: _Compile = numba.njit(inline="always")
# Sums may be reordered, but infinities and NaN are preserved.
_unlock: _Compile = numba.njit(nogil=True, fastmath={"reassoc", "contract", "arcp", "nsz"})


@_inline
def _read_bf16(bits: Any) -> Any:
    return _as_float(np.uint32(bits) << np.uint32(16))


@_inline
def _write_bf16(number: Any) -> Any:
    """Round to nearest, ties to even."""
    bits = _as_bits(number)
    is_odd = (bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16((bits + np.uint32(0x7FFF) + is_odd) >> np.uint32(16))


@_inline
def _keep(number: Any) -> Any:
    return number


def _compile(read: Any, write: Any) -> Any:
    @_unlock
    def kernel(
        query: Any,
        rows: Any,
        keys: Any,
        values: Any,
        places: Any,
        spans: Any,
        scale: Any,
        outputs: Any,
    ) -> None:
        num_heads, size = query.shape[1:]
        num_kv_heads, value_size = values.shape[1:]
        num_sharing = num_heads // num_kv_heads
        asking = np.empty((num_heads, size), np.float32)
        found = np.empty((num_heads, value_size), np.float32)
        for request in range(len(rows)):
            row = rows[request]
            own = places[spans[request, 0] : spans[request, 1]]
            weights = np.empty((num_heads, len(own)), np.float32)
            for head in range(num_heads):
                for i in range(size):
                    asking[head, i] = read(query[row, head, i]) * scale
            for j in range(len(own)):
                place = own[j]
                for shared in range(num_kv_heads):
                    for head in range(shared * num_sharing, (shared + 1) * num_sharing):
                        product = np.float32(0)
                        for i in range(size):
                            product += asking[head, i] * read(keys[place, shared, i])
                        weights[head, j] = product
            for head in range(num_heads):
                highest = weights[head, 0]
                for j in range(len(own)):
                    highest = max(highest, weights[head, j])
                total = np.float32(0)
                for j in range(len(own)):
                    weights[head, j] = np.exp(weights[head, j] - highest)
                    total += weights[head, j]
                part = np.float32(1) / total
                for j in range(len(own)):
                    weights[head, j] *= part
            found[:] = 0
            for j in range(len(own)):
                place = own[j]
                for shared in range(num_kv_heads):
                    for head in range(shared * num_sharing, (shared + 1) * num_sharing):
                        weight = weights[head, j]
                        for i in range(value_size):
                            found[head, i] += weight * read(values[place, shared, i])
            for head in range(num_heads):
                for i in range(value_size):
                    outputs[row, head, i] = write(found[head, i])

    return kernel


_KERNELS = {
    torch.float32: _compile(_keep, _keep),
    torch.bfloat16: _compile(_read_bf16, _write_bf16),
}
