"""Files of problems: lists of coefficients as text, and dimod's own."""
