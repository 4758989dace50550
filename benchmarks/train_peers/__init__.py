"""The training loops that ours is measured against, each as its user would write it."""
