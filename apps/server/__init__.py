"""The process of `serve run`: start, stop, log and deploy file."""
