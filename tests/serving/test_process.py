"""What holds for a process that generates."""

import gc
import sys

import torch

from serving.process import prepare_process


def test_what_a_process_is_made_of_is_not_gone_through_again_and_again() -> None:
    num_threads = torch.get_num_threads()
    prepare_process(num_threads)
    num_frozen = gc.get_freeze_count()
    assert num_frozen > 10_000
    later: list[list[int]] = [[]]
    prepare_process(num_threads)
    assert gc.get_freeze_count() == num_frozen
    assert any(each is later for each in gc.get_objects()), "what comes later is collected"
    assert sys.getswitchinterval() == 0.0005
