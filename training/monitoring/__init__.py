"""What is observed while a run trains: metrics, trackers, loss, hanging steps, a full disk."""
