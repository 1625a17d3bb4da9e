"""TRL, told by one JSON object what to do; it ends with one line of what came of it.

``tests.e2e.drawn_trl`` draws what it is told, ``tests.lab.found`` has the line.
"""

import dataclasses
import importlib
from pathlib import Path
from typing import Any

from tests.lab import found, trainers
from tests.programs import train_trl_options as options

# Of a gradient that is nearly nothing Adam would make rounding as large as any.
SMALL = {"adam_epsilon": 1e-3, "per_device_eval_batch_size": 1}


def main() -> None:
    parser = found.parser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--output_dir", required=True)
    asked = parser.parse_args()
    told = asked.told
    trainers.name_one_cpu()
    trainers.call(lambda: found.Meter(asked))
    trainers.begin(told["begins"])
    if asked.keep and told["trainer"] in ("grpo", "rloo"):
        keep_images_where_they_are(importlib.import_module(f"trl.trainer.{told['trainer']}_trainer"))
    whole = {"stage3_param_persistence_threshold": 0}  # by default weights this small would stay whole
    place = trainers.place_of(told["engine"], {**whole, **told["zero"]}, told["fsdp"])
    own = options.OWN.get(told["trainer"], {})
    settings = {**options.COMMON, **SMALL, **own, **place, **told["arguments"]}
    made = {**told["made"], "images": tuple(told["rows"]), "model": asked.model}
    trainer = options.TRAINERS[told["trainer"]](
        options.Asked(**made), {**known(told["trainer"], settings), "output_dir": asked.output_dir}
    )
    trainer.train(resume_from_checkpoint=told["resumed"])


def keep_images_where_they_are(home: Any) -> None:
    """TRL gathers them for its log on those ranks that have one, and waits for the others."""
    gather = home.gather_object

    def gather_but_images(every: list[Any]) -> Any:
        images = all(isinstance(row, list) and not any(isinstance(one, dict) for one in row) for row in every)
        return every if images else gather(every)

    home.gather_object = gather_but_images


def known(trainer: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Those that this release has."""
    name = trainer.upper()
    fields = dataclasses.fields(getattr(options.home_of(name), f"{name}Config"))
    names = {field.name for field in fields}
    return {said: value for said, value in settings.items() if said in names}


if __name__ == "__main__":
    main()
