"""The files that Tuneserve stores on disk: their layout, and durable writes.

It depends on no model, on no HTTP, and on no other package of Tuneserve but `system`.
`storage.durable` writes files that survive a crash; `storage.layout` names them.
"""
