"""What DeepSpeed imports in the process of a worker."""

import subprocess
import sys

IMPORT_ENGINE = """
import sys
import deepspeed
from deepspeed.runtime import compiler
from training.deepspeed import process

compile_functions = compiler.compile
process._import_muon_uncompiled()
import deepspeed.runtime.zero.stage3
from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam
from deepspeed.runtime.zero.muon.original_muon import muon_update
assert compiler.compile is compile_functions
print(MuonWithAuxAdam.__name__, muon_update.__name__, "torch._inductor.compile_fx" in sys.modules)
"""


def test_engine_is_imported_without_the_compiler_of_an_unused_optimizer() -> None:
    command = [sys.executable, "-c", IMPORT_ENGINE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-3:] == ["MuonWithAuxAdam", "muon_update", "False"]
