"""Programs that a launcher starts, as a user would write them; no test imports one."""
