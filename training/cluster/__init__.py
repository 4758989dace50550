"""The Ray cluster that trains: its state, Ray Train's trainer, and retries."""
