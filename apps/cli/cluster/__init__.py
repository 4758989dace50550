"""The command `tuneserve cluster`."""
