"""Proven optima: enumeration, spins that every optimum has, and a sphere decoder."""
