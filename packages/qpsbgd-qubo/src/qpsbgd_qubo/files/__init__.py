"""Files written whole or not at all, compressed input, names that are safe to show, and the cache folder."""
