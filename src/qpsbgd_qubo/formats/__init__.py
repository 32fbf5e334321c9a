"""Files of problems, one module per format."""
