"""How the tools speak: pages for a terminal, English and Chinese."""
