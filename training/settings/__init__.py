"""The parts of a spec, and reading and checking it."""
