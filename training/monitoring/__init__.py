"""What is observed while a run trains: metrics, trackers, loss trend, hanging steps."""
