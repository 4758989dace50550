"""What people start: the HTTP API, the web page, the queue of fine-tunes, the command line.

This room composes `training` and `serving` and holds no model code.
"""
