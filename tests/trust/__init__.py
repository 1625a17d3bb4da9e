"""What vlmpatch promises its host, generated from the catalog: see ``python -m tests.trust``."""
