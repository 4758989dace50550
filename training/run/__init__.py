"""The folder of a run: record, events, metrics, lease and log."""
