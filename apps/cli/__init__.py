"""Commands of `tuneserve` that use an application over HTTP, or its local machine and storage."""
