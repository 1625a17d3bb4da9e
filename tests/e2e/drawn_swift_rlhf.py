"""``swift rlhf`` with arguments drawn at random: what it logs and learns, bare and with vlmpatch.

    python -m tests.e2e.drawn_swift_rlhf swift460 --kinds qwen2_vl,llava_files --count 40 --seed 0

DPO, KTO, reward models, and GRPO, whose answers come from the model that is trained, by chance that is the
same on every engine. What is drawn beside that, what is right and what is printed is as in
``tests.e2e.drawn_swift``.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence

from tests.e2e import drawing, drawn_swift
from tests.e2e.drawing import Told, some
from tests.lab import envs

VERBS = ("dpo", "kto", "grpo", "grpo", "rm")
WORDS: dict[str, drawing.Words] = {
    "dpo": {
        "beta": (0.3,),
        "rpo_alpha": (1.0,),
        "label_smoothing": (0.1,),
        "ld_alpha": (0.5,),
        "loss_type": ("hinge", "ipo"),
    },
    "kto": {"beta": (0.3,), "desirable_weight": (1.3,), "loss_type": ("apo_zero_unpaired",)},
    "rm": {"center_rewards_coefficient": (0.01,)},
    "grpo": {
        "beta": (0.0, 0.1),
        "num_iterations": (2,),
        "steps_per_generation": (2,),
        "epsilon_high": (0.28,),
        "temperature": (0.7,),
        "loss_type": ("bnpo", "dr_grpo"),
        "importance_sampling_level": ("sequence",),
        "overlong_filter": (True,),
        "scale_rewards": ("batch", "none"),
    },
}
GENERATED = {"reward_funcs": ["worth"], "num_generations": 2, "max_completion_length": 8, "use_vllm": False}
IN_TWOS = {"per_device_train_batch_size": 2, "per_device_eval_batch_size": 2}
IN_PAIRS = ("kto", "grpo")
NOT_OF_ANSWERS = ("streaming", "loss_scale", "acc_strategy", "group_by_length", "max_length", "padding_side")


def drawn(stack: envs.Stack, seed: int, count: int, kinds: Sequence[str]) -> list[Told]:
    """What ``count`` trainings are told."""
    chance, old = random.Random(seed), stack.name.startswith("swift3")
    return [more(chance, drawn_swift.draw(chance, old, kinds, VERBS)) for _ in range(count)]


def more(chance: random.Random, told: Told) -> Told:
    """With what its verb knows beside that."""
    arguments = dict(told["arguments"])
    verb = arguments["rlhf_type"]
    arguments |= some(chance, WORDS[verb])
    if verb in IN_PAIRS:
        arguments |= IN_TWOS
        arguments.pop("streaming", None)  # there are not rows enough
    if verb == "rm" and told["engine"] == "zero3":  # its head begins with other random numbers there
        known = {name: value for name, value in told["zero"].items() if name in drawing.ZERO}
        told = {**told, "engine": "zero2", "zero": known}
    if verb == "grpo":
        arguments = {name: value for name, value in arguments.items() if name not in NOT_OF_ANSWERS}
        arguments |= GENERATED
    return {**told, "arguments": arguments}


def main() -> int:
    return drawing.main("drawn_swift_rlhf", __doc__, drawn_swift.KINDS, drawn, drawn_swift.perform)


if __name__ == "__main__":
    sys.exit(main())
