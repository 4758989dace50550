"""Where everything that Tuneserve keeps lies on disk, and how it is written so that it stays.

The lowest room of the house: it knows no model and no HTTP, and imports none of the other rooms.
`storage.durable` writes files that survive a crash; `storage.layout` names them.
"""
