"""The check of a model from elsewhere, in a process of its own with limits of time and memory.

`python -m serving.store.import_check DIRECTORY` prints one JSON object: `{"memory": ...}` as
`ModelMemory` for a model that may be imported, `{"refusal": "..."}` for one that may not.
`serving.store.import_process` starts it; only this process imports torch.
"""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

from serving.model_checks import check_model_directory, find_cache_repository
from serving.store.process_limits import lift_memory_limit, limit_cpu, limit_memory

logger = logging.getLogger(__name__)

_NICENESS = 10


def check_directory(directory: Path) -> dict[str, Any]:
    """Check a model under limits; returns the JSON object that the module describes."""
    weights = directory.glob("*.safetensors")
    mapped_bytes = sum(path.stat().st_size for path in weights if path.is_file())
    limit_cpu()
    try:
        limit_memory(mapped_bytes)
        check_model_directory(directory, links_stay_in=find_cache_repository(directory))
        # The libraries are our own and map more than the model may take.
        lift_memory_limit()
        from transformers.utils import logging as transformers_logging

        from serving.store.inspection import inspect_model

        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        limit_memory(mapped_bytes)
        memory = inspect_model(directory)
    except MemoryError:
        return {"refusal": "checking it takes more memory than a model's description may"}
    except Exception as exc:  # whatever fails here, the model's content is what made it fail
        logger.info("the model is refused", exc_info=exc)
        reason = str(exc).replace(str(directory), directory.name) or type(exc).__name__
        return {"refusal": reason}
    return {"memory": memory.model_dump()}


def main() -> None:
    """Check the directory that the command line names and print what was found."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    with os.fdopen(os.dup(1), "w") as output:
        os.dup2(2, 1)  # what a library prints must not mix with the answer
        os.nice(_NICENESS)  # answers to requests go first
        json.dump(check_directory(Path(sys.argv[1])), output)
    os._exit(0)  # the end of the interpreter would only free what the end of the process frees


if __name__ == "__main__":
    main()
