"""Protection of the page: access, allowed calls, uploads."""
