"""The commands of `tuneserve` that speak to an application: over HTTP alone, wherever it is."""
