"""Benchmarks of the project itself, and what several benchmarks use."""
