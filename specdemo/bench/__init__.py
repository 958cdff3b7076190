"""Benchmarks: who is how fast, on what, and why."""
