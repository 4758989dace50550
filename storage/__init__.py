"""The files that Tuneserve stores on disk: their layout, and durable writes.

This is the lowest layer: it depends on no other package of Tuneserve, on no model and on no HTTP.
`storage.durable` writes files that survive a crash; `storage.layout` names them.
"""
