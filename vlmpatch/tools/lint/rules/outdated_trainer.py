"""A script's own Trainer that does not take what the installed transformers passes to it."""

from __future__ import annotations

from collections.abc import Iterator

from vlmpatch.tools.explain.diagnose import printable
from vlmpatch.tools.findings import Finding
from vlmpatch.tools.lint.context import Around, inside, known
from vlmpatch.tools.lint.launch_config import LaunchConfig

_ENDED_BY = {
    "compute_loss": "overridden-compute-loss",
    "_get_train_sampler": "overridden-train-sampler",
    "training_step": "trainer-training-step-signature",
    "tokenizer": "trainer-tokenizer-argument",
}


def check(launch: LaunchConfig, around: Around) -> Iterator[Finding]:
    for each in launch.outdated:
        if inside(around, "transformers", f">={each.since}.dev0"):
            title = around.say(
                "The script's Trainer is older than transformers {since}, which calls {name} in another way: "
                "a TypeError where it is reached.",
                name=each.name,
                since=each.since,
            )
            by = (_ENDED_BY[each.name],) if each.name in _ENDED_BY else ()
            failure = "D" if by else "F28"
            yield known(around, "L17", failure, title, printable(each.where), each.instead, by)
