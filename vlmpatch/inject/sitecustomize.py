"""Put first on PYTHONPATH by ``python -m vlmpatch run``: every Python process below imports vlmpatch.

Python imports ``sitecustomize`` at start-up by itself. This one imports the very vlmpatch that ``run``
came from, by its place and not by name, so that nothing else of that environment leaks in; then it
runs the ``sitecustomize`` it stands in front of. Nothing is written anywhere, so nothing stays behind.
"""

import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_HERE)


def _execute(spec: object) -> None:
    module: ModuleType = module_from_spec(spec)  # type: ignore[arg-type]
    sys.modules[module.__name__] = module
    module.__spec__.loader.exec_module(module)  # type: ignore[union-attr]


def _activate() -> None:
    if "vlmpatch" in sys.modules:
        return
    try:
        origin = os.path.join(_PACKAGE, "__init__.py")
        _execute(spec_from_file_location("vlmpatch", origin, submodule_search_locations=[_PACKAGE]))
    except Exception as error:
        sys.modules.pop("vlmpatch", None)
        print(f"vlmpatch run: inactive in this process ({sys.executable}): {error!r}", file=sys.stderr)


def _chain() -> None:
    others = [
        entry for entry in sys.path if os.path.realpath(entry or os.getcwd()) != os.path.realpath(_HERE)
    ]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        _execute(spec)


_activate()
_chain()
