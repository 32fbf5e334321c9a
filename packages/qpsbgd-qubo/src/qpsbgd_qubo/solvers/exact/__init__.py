"""Proven optima: enumeration, spins that every optimum must have, and a sphere decoder."""
