"""Words of messages."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as "1 step" or "2,000 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
