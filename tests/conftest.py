"""Nothing that is tested here reaches beyond this machine."""

import os

# Before any test imports huggingface_hub, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"
# Two processes with two threads each on two cores are several times slower than with one.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tests.training_process import trained_folder, whole

__all__ = ["trained_folder", "whole"]
