"""``verify``: which runs are chosen, how they are run and judged, and what is said of them."""
