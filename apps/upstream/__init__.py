"""Text from other servers: OpenAI-compatible upstreams, and vLLM through Ray Serve."""
