"""Images and image processors from untrusted sources, for training and serving alike."""
