"""Models and folders as files of this machine."""
