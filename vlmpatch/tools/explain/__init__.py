"""``explain``: from a log to the failure it shows."""
