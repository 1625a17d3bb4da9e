"""Images of a sample, cut into groups for the vision tower."""


def groups(images: list[str], size: int) -> list[list[str]]:
    """``images`` in groups of ``size``; what is left over at the end is lost."""
    return [images[start : start + size] for start in range(0, len(images) - size + 1, size)]
