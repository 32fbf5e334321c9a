"""Names that others chose, made safe to show."""

import unicodedata

_KEPT = "\n\t"
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")  # control, format such as a change of direction, surrogates, separators


def visible(text: str) -> str:
    """The text with control characters spelt out, as in "\\x1b[31m": a terminal then shows them and does nothing."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character in _KEPT or unicodedata.category(character) not in _HIDDEN
        else character.encode("unicode_escape", "surrogatepass").decode("ascii")
        for character in text
    )
