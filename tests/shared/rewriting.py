"""Files that a test writes again and again."""


def rewritten(path, content):
    """The path, with this content: a new file, because to empty an old one takes ext4 milliseconds."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return path
