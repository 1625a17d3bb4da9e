"""The patches that will act, by the failure that each ends; what concerns the launch and the model first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from vlmpatch.catalog.model import Catalog, Entry
from vlmpatch.tools.explain.failures import Failure, Pair
from vlmpatch.tools.lint.launch_config import LaunchConfig

_OWN_CODE = "transformers_modules."
_STAGES = {  # modules that one stage of ZeRO alone imports
    "deepspeed.runtime.zero.stage_1_and_2": (1, 2),
    "deepspeed.runtime.zero.stage3": (3,),
    "deepspeed.runtime.zero.parameter_offload": (3,),
    "deepspeed.runtime.zero.partition_parameters": (3,),
    "deepspeed.runtime.zero.partitioned_param_coordinator": (3,),
}


class Group(NamedTuple):
    """Patches that end one failure.

    Attributes:
        failure: its id.
        title: what it is.
        ids: of the patches.
        place: ``launch`` where it goes wrong with what was asked about, ``here`` where it can go wrong,
            ``elsewhere`` where it cannot: another engine, another model's own code.
    """

    failure: str
    title: Pair
    ids: tuple[str, ...]
    place: str


def groups(
    catalog: Catalog,
    known: dict[str, Failure],
    acting: Iterable[str],
    wanted: Mapping[str, str],
    launches: Sequence[LaunchConfig],
    models: Sequence[str],
) -> tuple[Group, ...]:
    """The groups in the order in which they are worth reading.

    Args:
        catalog: what is known of the patches.
        known: what is known of the failures.
        acting: ids of the patches that will act.
        wanted: those that end what goes wrong with the launch, and the failure that goes wrong.
        launches: what was asked about.
        models: names and kinds of the models that were named.
    """
    held: dict[tuple[str, str], list[str]] = {}
    for id_ in acting:
        entry = catalog.entries[id_]
        concerns = _concerns(entry, launches, models)
        place = "launch" if id_ in wanted else "here" if concerns else "elsewhere"
        held.setdefault((place, wanted.get(id_, entry.failures[0])), []).append(id_)
    made = [
        Group(failure, known[failure].title if failure in known else ("", ""), tuple(ids), place)
        for (place, failure), ids in held.items()
    ]
    return tuple(sorted(made, key=lambda group: (_PLACES.index(group.place), _order(known, group.failure))))


_PLACES = ("launch", "here", "elsewhere")


def _order(known: dict[str, Failure], failure: str) -> int:
    return known[failure].order if failure in known else 1 << 30


def _concerns(entry: Entry, launches: Sequence[LaunchConfig], models: Sequence[str]) -> bool:
    """Whether this launch and this model can meet what ``entry`` fixes."""
    own = [target.rpartition("modeling_")[2] for target in entry.targets if target.startswith(_OWN_CODE)]
    if own:
        return any(name[:7] in model.lower() for name in own for model in models)
    # Beside a stage's own module, DeepSpeed's engine, which every stage imports, says nothing.
    telling = [target for target in entry.targets if target in _STAGES] or entry.targets
    return not launches or any(_runs(target, launch) for target in telling for launch in launches)


def _runs(target: str, launch: LaunchConfig) -> bool:
    """Whether ``launch`` imports ``target``, as far as its engine tells."""
    if target in _STAGES:
        return launch.stage in _STAGES[target]
    if target.startswith("deepspeed."):
        return launch.deepspeed
    return launch.fsdp if ".fsdp." in target else True
