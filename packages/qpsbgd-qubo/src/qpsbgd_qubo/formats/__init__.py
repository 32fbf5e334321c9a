"""Files of problems: lists of coefficients as text."""
