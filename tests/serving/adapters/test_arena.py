"""Tensors of one block do not overlap, and what does not fit is allocated separately."""

import torch

from serving.adapters.arena import Arena, Layout

CPU = torch.device("cpu")
LAYOUTS: list[Layout] = [((3, 5), torch.bfloat16), ((7,), torch.float32), ((2, 2), torch.float16)]


def test_tensors_are_aligned_and_do_not_overlap() -> None:
    arena = Arena(LAYOUTS, CPU)
    tensors = [arena.allocate(shape, dtype) for shape, dtype in LAYOUTS]
    for number, tensor in enumerate(tensors):
        tensor.fill_(number + 1)
    for number, (tensor, (shape, dtype)) in enumerate(zip(tensors, LAYOUTS, strict=True)):
        assert (tuple(tensor.shape), tensor.dtype) == (tuple(shape), dtype)
        assert bool((tensor == number + 1).all())
        assert tensor.data_ptr() - tensors[0].data_ptr() == 64 * number
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == 1


def test_tensor_without_room_is_separate() -> None:
    arena = Arena(LAYOUTS[:1], CPU)
    first = arena.allocate(*LAYOUTS[0]).fill_(1)
    second = arena.allocate(*LAYOUTS[1]).fill_(2)
    assert bool((first == 1).all())
    assert second.untyped_storage().data_ptr() != first.untyped_storage().data_ptr()
