"""The logical CPUs that the application's own deployments hold for good, each written once.

A fine-tune can never have them, so the queue subtracts their sum and the generator's. This module
imports nothing, so that the page may read it without the model code.
"""

API_CPUS = 0.1
QUEUE_CPUS = 0.1
PAGE_CPUS = 0.1
INGRESS_CPUS = 0.1
