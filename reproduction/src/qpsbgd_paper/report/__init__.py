"""Results as tables, figures and pages; trains nothing."""
