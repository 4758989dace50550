"""The contenders of `benchmarks.serve` and its load generator."""
