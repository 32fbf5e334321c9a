"""The experiments: settings as frozen dataclasses, results as JSON files."""
