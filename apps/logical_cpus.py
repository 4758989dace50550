"""Logical CPUs that the application's own deployments reserve permanently, each defined once.

They are never available to a run, so the queue subtracts their sum and the generator's CPUs. This
module imports nothing, so that the page can read it without the model code.
"""

API_CPUS = 0.1
QUEUE_CPUS = 0.1
PAGE_CPUS = 0.1
INGRESS_CPUS = 0.1
