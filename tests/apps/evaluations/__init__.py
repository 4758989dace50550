"""Tests of evaluations of models."""
