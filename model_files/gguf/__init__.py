"""Conversion of a model directory to GGUF with llama.cpp's own programs, and its verification."""
