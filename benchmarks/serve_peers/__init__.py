"""What `benchmarks.serve` measures, and how it asks."""
