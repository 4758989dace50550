"""How pipelines of Ray Data are executed: in order, with bounded memory, without progress bars."""

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

TASK_CPUS = 0.5
"""Logical CPUs of a task; the cluster must have as many beside those of the workers."""
READER_CPUS = 0.1
"""Logical CPUs of a task that reads the rows of a loop: decompression only, so that a small cluster
has room for it beside the workers."""
_CHECK_MEMORY_BYTES = 64 << 20

Work = Callable[[Mapping[str, Any]], Iterator[Any]]


def make_options(memory_bytes: int) -> Any:
    """Return the options of an execution that takes at most so much of Ray's object store.

    The order of the results is that of the inputs. Ray Data starts no task whose results might
    exceed the limit, but always runs one, whose results may exceed it by their own size.
    """
    from ray.data import ExecutionOptions, ExecutionResources

    limits: Any = ExecutionResources
    return ExecutionOptions(
        preserve_order=True, resource_limits=limits(object_store_memory=memory_bytes)
    )


def number_items(num_items: int, work: Work) -> Any:
    """Return a data set with the results of `work` for each number below `num_items`."""
    import ray.data

    silence()
    return _apply(ray.data.range(num_items, override_num_blocks=num_items), work)


def run_over(
    items: Sequence[Mapping[str, Any]], work: Work
) -> Generator[Mapping[str, Any], None, None]:
    """Execute `work` for each item over the cluster; yields the rows of its results, in order.

    Closing the generator ends the pipeline.
    """
    import ray.data

    silence()
    made: Any = ray.data.from_items(list(items), override_num_blocks=len(items))
    results = _apply(made, work)
    results.context.execution_options = make_options(_CHECK_MEMORY_BYTES)
    yield from results.iter_rows()


def _apply(inputs: Any, work: Work) -> Any:
    results = inputs.map_batches(
        work, batch_size=1, batch_format="numpy", num_cpus=TASK_CPUS, zero_copy_batch=True
    )
    # Each row is a block of its own: a worker receives whole blocks.
    results.context.target_max_block_size = 1
    return results


def silence() -> None:
    """Disable Ray Data's progress bars and messages about executions in this process."""
    from ray.data import DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    # It would warn once that the progress bars are disabled.
    logging.getLogger("ray.data._internal.progress").setLevel(logging.ERROR)
