"""What of a launch could not be read, and why."""

from __future__ import annotations

from typing import NamedTuple

from vlmpatch.tools.view.language import Words

MISSING = "{about} is not there"
UNSAID = "what {about} holds is not said here"
TOO_MUCH = "this fills in more than is read"
QUOTE = "No closing quotation"
BRACKET = "No closing bracket"
NO_YAML = "cannot be read without PyYAML (pip install pyyaml)"
NO_SETTINGS = "holds no settings"
NO_FILE = "is no regular file"
ALIASES = "its aliases make it too large"
SENTENCES = (MISSING, UNSAID, TOO_MUCH, QUOTE, BRACKET, NO_YAML, NO_SETTINGS, NO_FILE, ALIASES)


class Unread(NamedTuple):
    """A place, and an English sentence: one of those above, with ``about`` filled in, or an error's own."""

    where: str
    what: str
    about: str = ""

    def said(self, say: Words) -> str:
        """All of it, in the language of ``say``."""
        what = say(self.what, about=self.about) if self.about else say(self.what)
        return f"{self.where}: {what}"
