"""A small model of any class that transformers has, and something that it takes.

How small it can be is found by trying: sizes that many configurations have a name for (``sizes``,
``configurations``), then the class's own proportions, each width divided by one number (``narrowed``). What
it is fed is found the same way, by the names of what its forward takes (``feeds``, ``offered``). What no such
rule can know of a family is a line of ``singles``; why a class cannot be made, where that was looked at, is
an entry of ``unmade.toml``. ``trying.fed`` returns the first model that trains on something.
"""
