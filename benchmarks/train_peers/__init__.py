"""The training loops that ours is compared with, each as its users would write it."""
