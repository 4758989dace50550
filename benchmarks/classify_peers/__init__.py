"""The programs that `benchmarks.classify` compares."""
