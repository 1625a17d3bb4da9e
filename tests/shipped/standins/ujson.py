from json import dump, dumps, load, loads

__all__ = ["dump", "dumps", "load", "loads"]
