"""python -m tests.generate                  write every generated file
python -m tests.generate --check          exit 1 when one is not what it is made from
python -m tests.generate --untranslated   list what has no Chinese yet; exit 1 when there is any
python -m tests.generate --translated ID  the Chinese of this patch file says what its English says today
"""

from __future__ import annotations

import argparse
import sys

from tests.generate import stories, untranslated, wanted
from tests.lab import pages
from vlmpatch.tools.explain.stories import FOLDER


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.generate", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--untranslated", action="store_true", help="list what has no Chinese yet")
    parser.add_argument(
        "--translated", nargs="+", metavar="ID", help="patches whose Chinese was read beside the English"
    )
    asked = parser.parse_args()
    if asked.translated:
        left = stories.stamp(asked.translated)
        print("\n".join(f"no Chinese for {id_} in {FOLDER}/" for id_ in sorted(left)) or "noted")
        return 1 if left else 0
    if asked.untranslated:
        owed = untranslated.owed()
        for line in owed:
            print(line)
        if not owed:
            print("everything has its Chinese", file=sys.stderr)  # the list itself is empty
        return 1 if owed else 0
    made = wanted()
    changed = pages.stale(made) if asked.check else pages.write(made)
    for path in changed:
        print(f"{'stale' if asked.check else 'written'}: {path.relative_to(pages.ROOT)}")
    return 1 if asked.check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
