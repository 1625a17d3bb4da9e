"""``doctor --model``: what a model is, its own patches, what was measured, and what each engine comes to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from vlmpatch.catalog.location import default_path
from vlmpatch.catalog.model import State, Status
from vlmpatch.catalog.read import read as read_catalog
from vlmpatch.tools.doctor import acting, engines, measured, models
from vlmpatch.tools.explain import failures
from vlmpatch.tools.lint import model
from vlmpatch.tools.lint.command import read
from vlmpatch.tools.lint.context import Around
from vlmpatch.tools.lint.model import Model
from vlmpatch.tools.view.language import Words

SAY = Words("en")
INSTALLED = {"transformers": "4.57.6", "deepspeed": "0.18.2", "torch": "2.8.0"}
QWEN2_VL = {
    "architectures": ["Qwen2VLForConditionalGeneration"],
    "model_type": "qwen2_vl",
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "video_token_id": 151656,
    "vision_config": {"depth": 32, "embed_dim": 1280, "model_type": "qwen2_vl"},
}
MINICPM = {
    "architectures": ["MiniCPMV"],
    "model_type": "minicpmv",
    "auto_map": {"AutoModel": "modeling_minicpmv.MiniCPMV", "AutoConfig": "org/repo--configuration.Config"},
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "vision_config": {"num_hidden_layers": 27, "hidden_size": 1152, "model_type": "siglip_vision_model"},
}
INTERNVL = {
    "model_type": "internvl_chat",
    "auto_map": {"AutoModel": "modeling_internvl_chat.InternVLChatModel"},
    "llm_config": {"model_type": "qwen2", "num_hidden_layers": 36, "hidden_size": 2048},
    "vision_config": {"num_hidden_layers": 24, "hidden_size": 1024},
}
LLAVA = {"model_type": "llava_llama", "num_hidden_layers": 32, "hidden_size": 4096, "mm_vision_tower": "clip"}
OMNI = {
    "model_type": "qwen2_5_omni",
    "thinker_config": {
        "text_config": {"num_hidden_layers": 36, "hidden_size": 2048},
        "vision_config": {"depth": 32, "hidden_size": 1280},
        "audio_config": {"encoder_layers": 32, "d_model": 1280},
    },
}


def given(folder: Path, config: dict[str, Any], **files: str) -> Model:
    (folder / "config.json").write_text(json.dumps(config))
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    found = model.read(str(folder))
    assert isinstance(found, Model)
    return found


def said(of: Model, **states: State) -> dict[str, str]:
    catalog = read_catalog(default_path())
    patches = [Status(id_, states.get(id_.replace("-", "_"), State.ARMED), "") for id_ in catalog.entries]
    return dict(models.described(of, catalog, patches, (), INSTALLED, SAY).rows)


@pytest.mark.parametrize(
    ("config", "towers", "takes"),
    [
        (QWEN2_VL, [("language", 28, 3584), ("vision", 32, 1280)], ("images", "videos")),
        (MINICPM, [("language", 28, 3584), ("vision", 27, 1152)], ("images",)),
        (INTERNVL, [("language", 36, 2048), ("vision", 24, 1024)], ("images",)),
        (LLAVA, [("language", 32, 4096), ("vision", None, None)], ("images",)),
        (OMNI, [("language", 36, 2048), ("vision", 32, 1280), ("audio", 32, 1280)], ("images", "audio")),
        ({"model_type": "qwen2", "num_hidden_layers": 2, "hidden_size": 8}, [("language", 2, 8)], ()),
    ],
)
def test_towers_and_what_they_take(
    config: dict[str, Any],
    towers: list[Any],
    takes: tuple[str, ...],
    tmp_path: Path,
) -> None:
    found = given(tmp_path, config)
    assert [(tower.name, tower.layers, tower.width) for tower in found.towers] == towers
    assert found.takes == takes


def test_its_own_code_is_read_or_named(tmp_path: Path) -> None:
    found = given(tmp_path, MINICPM, modeling_minicpmv="class A: pass")
    assert found.code == ("configuration.py", "modeling_minicpmv.py")
    assert said(found)["Its own code"] == (
        "read: modeling_minicpmv.py; nothing known to fail; not here, so not read: configuration.py"
    )
    (tmp_path / "plain").mkdir()
    assert said(given(tmp_path / "plain", QWEN2_VL))["Its own code"] == "none: transformers has it"


def test_its_own_patches_are_named_with_their_state(tmp_path: Path) -> None:
    own = said(given(tmp_path, MINICPM), minicpmv_position_table=State.NOT_NEEDED)["Its own patches"]
    assert "minicpmv-slice-groups (F11: armed)" in own
    assert "minicpmv-position-table (F14: not needed)" in own
    assert "trainer-zero3-last-save (F12: armed)" in own
    assert "stale-rope-deltas" not in own
    assert said(given(tmp_path, QWEN2_VL))["Its own patches"] == (
        "stale-rope-deltas (F34: armed), zero3-asked-device (F11: armed), "
        "image-taken-for-packing (F134: armed), packed-rows-on-three-axes (F136: armed)"
    )
    assert said(given(tmp_path, INTERNVL))["Its own patches"].startswith("none")


def test_what_was_measured_is_that_of_the_nearest_stack() -> None:
    near = measured.mixed("qwen2_vl", "4.46.0"), measured.mixed("qwen2_vl", "4.57.6")
    assert [each and each.on for each in near] == [
        "transformers 4.45, DeepSpeed 0.15.4",
        "transformers 4.57, DeepSpeed 0.18.2",
    ]
    assert near[1] is not None
    assert set(near[1].right["zero3"]) >= {"full", "lora"}
    newest = measured.trained("llava", None)
    assert newest is not None
    assert newest.on.startswith("transformers 5.")
    assert measured.trained("nothing", "4.57.6") is None
    assert measured.mixed("nothing", "4.57.6") is None


def test_what_was_measured_is_said_of_the_family(tmp_path: Path) -> None:
    assert (
        "24 tensors without a gradient without vlmpatch, right with it"
        in (said(given(tmp_path, {"model_type": "llava"}))["Measured"])
    )
    assert said(given(tmp_path, MINICPM))["Measured"] == "docs/minicpm-v.md"
    assert said(given(tmp_path, INTERNVL))["Measured"] == "no model of this kind is in the records"


def around(ending: Mapping[str, tuple[str, ...]] | None = None) -> Around:
    return Around(None, INSTALLED, ending or {}, SAY)


def test_each_engine_is_judged_by_the_rules() -> None:
    bare = {each.engine.name: each.judged for each in engines.choices("lora", None, around())}
    assert {name: judged.wrong for name, judged in bare.items()} == {
        "DDP": ("L15",),
        "ZeRO-1": ("L16",),
        "ZeRO-2": ("L11", "L16"),
        "ZeRO-3": ("L16",),
    }
    ending = {"F3": ("a",), "F5": ("b",), "F18": ("zero2-lost-micro-batches",)}
    assert not any(each.judged.left for each in engines.choices("lora", None, around(ending)))
    full = {each.engine.name: each.judged.wrong for each in engines.choices("full", None, around())}
    assert full == {"DDP": (), "ZeRO-1": (), "ZeRO-2": ("L11",), "ZeRO-3": ()}


def test_states_are_whole_or_divided() -> None:
    full = [engines.states(engine, "full") for engine in engines.ENGINES]
    assert full == [(16, 0), (4, 12), (2, 14), (0, 16)]
    assert [engines.states(engine, "lora") for engine in engines.ENGINES] == [(2, 0)] * 3 + [(0, 2)]


def test_states_are_those_of_the_model_where_its_size_is_known(tmp_path: Path) -> None:
    index = {"metadata": {"total_size": 2 * 7 * engines.GIB}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    found = given(tmp_path, QWEN2_VL | {"torch_dtype": "bfloat16"})
    assert found.parameters == 7 * engines.GIB
    rows = dict(engines.row(each, found, SAY) for each in engines.choices("full", found, around()))
    assert rows["DDP"].startswith("112.0 GiB of states a GPU; measured right with vlmpatch")
    assert rows["ZeRO-2"].startswith("14.0 GiB + 98.0 GiB / ranks of states a GPU")
    bare = dict(engines.row(each, None, SAY) for each in engines.choices("full", None, around()))
    said = "4 B + 12 B / ranks of states a parameter; nothing known goes wrong for certain (L19)"
    assert bare["ZeRO-1"] == said
    newer = around()._replace(installed={**INSTALLED, "transformers": "5.1.0", "deepspeed": "0.19.8"})
    newer_rows = dict(engines.row(each, None, SAY) for each in engines.choices("full", None, newer))
    assert newer_rows["ZeRO-2"].endswith("; nothing known goes wrong")


@pytest.mark.parametrize("total", ["{", '{"metadata": 3}', '{"metadata": {"total_size": "much"}}', "[]"])
def test_a_broken_index_says_nothing_of_the_size(total: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(total)
    assert given(tmp_path, QWEN2_VL).parameters is None


def test_what_zero3_gathers_is_what_was_measured() -> None:
    """The figures of the view are those of docs/zero3-gathers.md, DeepSpeed 0.18.2."""
    page = (Path(__file__).parents[2] / "docs" / "zero3-gathers.md").read_text()
    found = re.findall(r"^\| 0\.18\.2 \| (\w+), ([\w-]+)[^|]*\| \d+ \| ([\d.]+)", page, re.MULTILINE)
    figures = {(tuning.lower(), how): figure for tuning, how, figure in found}
    for tuning, (ours, bare) in engines.GATHERED.items():
        assert figures[tuning, "vlmpatch"] == ours
        others = [figures.get((tuning, how)) for how in ("non-reentrant", "reentrant")]
        assert bare == "–".join(filter(None, others))


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", True),
        ("Qwen/Qwen3-Omni-30B-A3B", True),
        ("zai-org/GLM-4.5V", True),
        ("Qwen/Qwen3-VL-8B-Instruct", False),
        ("Qwen/Qwen3-30B-A3B", False),
    ],
)
def test_a_mixture_is_known_by_its_name(name: str, told: bool) -> None:
    assert model.mixture(name) is told


def grouped(line: str, wanted: dict[str, str], *named: str) -> dict[str, list[tuple[str, tuple[str, ...]]]]:
    catalog = read_catalog(default_path())
    launches = read(line, "the command").launches if line else ()
    known = failures.read(catalog.path).known
    made: dict[str, list[tuple[str, tuple[str, ...]]]] = {}
    for group in acting.groups(catalog, known, catalog.entries, wanted, launches, named):
        made.setdefault(group.place, []).append((group.failure, group.ids))
    return made


def test_patches_are_grouped_by_what_they_end_the_likely_first() -> None:
    found = grouped("torchrun train.py --use_lora true", {"gradient-checkpointing-default": "F3"})
    assert list(found) == ["launch", "here", "elsewhere"]
    assert found["launch"] == [("F3", ("gradient-checkpointing-default",))]
    here, elsewhere = ({id_ for _, ids in found[place] for id_ in ids} for place in ("here", "elsewhere"))
    assert {"zero3-recompute-release", "zero2-lost-micro-batches", "minicpmv-slice-groups"} <= elsewhere
    assert {"vision-input-grads", "batches-without-images"} <= here
    assert sum(len(ids) for groups in found.values() for _, ids in groups) == len(
        read_catalog(default_path()).entries
    )


def test_the_engine_and_the_model_decide_what_is_likely() -> None:
    found = grouped("deepspeed train.py --deepspeed zero3", {}, "openbmb/MiniCPM-V-2_6")
    place = {id_: where for where, groups in found.items() for _, ids in groups for id_ in ids}
    assert place["zero3-recompute-release"] == place["minicpmv-slice-groups"] == "here"
    assert place["zero2-lost-micro-batches"] == place["fsdp2-sparse-experts"] == "elsewhere"
    assert {where for where in grouped("", {})} == {"here", "elsewhere"}
