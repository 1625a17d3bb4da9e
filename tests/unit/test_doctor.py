"""``doctor``: findings first, each with its evidence and the line to change."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import World
from vlmpatch.tools import cli
from vlmpatch.tools.doctor import doctor, examination, remote, views
from vlmpatch.tools.findings import Finding, redacted
from vlmpatch.tools.view.language import Words

EN = Words("en")


def kinds(findings: examination.Findings) -> dict[str, str]:
    return {finding.code: finding.severity for finding in findings.findings}


def torch(world: World) -> None:
    world.distribution("torch", "2.8.0")
    world.package("torch", "")


def test_a_needed_patch_that_cannot_be_had_is_an_error_and_comes_first(world: World) -> None:
    torch(world)
    world.distribution("fakelib", "1.5")
    id_ = world.patch(world.package("changed", "x = 1\n"), '{ fakelib = ">=1" }')
    findings = examination.examine(world.catalog())
    assert not findings.sound
    (first, *_) = findings.findings
    assert (first.code, first.severity) == ("D04", "error")
    assert id_ in first.title
    lines = views.page(findings, EN).text().splitlines()
    assert lines[2].startswith("D04 error")


def test_what_has_nothing_to_do_is_folded(world: World) -> None:
    torch(world)
    id_ = world.patch("nowhere", '{ fakelib = ">=1" }')
    findings = examination.examine(world.catalog())
    assert findings.spotless
    assert id_ not in views.page(findings, EN).text()
    assert id_ in views.page(findings, EN, everything=True).text()


def test_several_copies_of_a_package_are_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    torch(world)
    for name in ("one", "two"):
        package = world.folder / name / "transformers"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        monkeypatch.syspath_prepend(str(package.parent))
    findings = examination.examine(world.catalog())
    (found,) = [finding for finding in findings.findings if finding.code == "D09"]
    assert "two/transformers" in found.evidence
    assert "one/transformers" in found.evidence


def test_a_package_of_which_only_metadata_is_left_is_named(world: World) -> None:
    world.distribution("torch", "2.8.0")
    findings = examination.examine(world.catalog())
    (found,) = [finding for finding in findings.findings if finding.code == "D05"]
    assert found.evidence == "metadata says 2.8.0, and there is no module torch"
    assert found.fix == "pip install --force-reinstall --no-deps torch"
    world.package("torch", "")
    assert "D05" not in kinds(examination.examine(world.catalog()))


def test_every_view_is_made_of_the_same_findings(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch(world)
    monkeypatch.setenv("VLMPATCH_LOG", "loud")
    known = world.catalog()
    for view in ("text", "all", "json", "markdown", "digest"):
        assert doctor.doctor(known, examination.Asked(), EN, view, strict=True) == 1
    out = capsys.readouterr().out
    assert out.count("D03") == 4
    findings = examination.examine(known)
    assert json.loads(json.dumps(views.data(findings)))["schema"] == views.SCHEMA
    assert views.digest(findings) == views.digest(examination.examine(known))


def test_strict_counts_warnings(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    torch(world)
    asked = examination.Asked(command="swift sft --ddp_static_graph true --gradient_accumulation_steps 2")
    assert doctor.doctor(world.catalog(), asked, EN) == 0
    assert doctor.doctor(world.catalog(), asked, EN, strict=True) == 1


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_was_understood_stands_in_every_view(language: str, world: World) -> None:
    torch(world)
    say = Words(language)
    findings = examination.examine(
        world.catalog(), examination.Asked(command="torchrun t.py --deepspeed zero2"), say
    )
    (launch,) = views.data(findings)["launches"]
    assert (launch["launcher"], launch["engine"], launch["stage"]) == ("torchrun", "DeepSpeed", 2)
    for text in (views.page(findings, say).text(), views.markdown(findings, say)):
        assert "DeepSpeed ZeRO-2" in text


@pytest.mark.parametrize(("language", "said"), [("en", "no training was recognised"), ("zh", "没有识别出")])
def test_a_command_that_trains_nothing_is_no_all_clear(
    language: str, said: str, world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    torch(world)
    asked, say = examination.Asked(command="echo hello"), Words(language)
    findings = examination.examine(world.catalog(), asked, say)
    assert views.data(findings)["launches"] == []
    between = " " if language == "en" else ""  # a Chinese line breaks anywhere
    assert said in between.join(views.page(findings, say).text().splitlines()[:4])
    assert said in views.markdown(findings, say)
    assert doctor.doctor(world.catalog(), asked, say, strict=True) == 0
    assert views.data(examination.examine(world.catalog()))["launches"] is None


def test_backticks_do_not_end_code_in_markdown(world: World) -> None:
    torch(world)
    finding = Finding("L00", "warning", "t", "a`b``c", "")
    findings = examination.examine(world.catalog())._replace(findings=(finding,))
    assert "  - ``` a`b``c ```" in views.markdown(findings, EN)


MODEL = """
from torch.utils.checkpoint import checkpoint
raise SystemExit("this file was run")

class TowerModel(TowerPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)

    def _set_gradient_checkpointing(self, module, value=False):
        pass

    def forward(self, x):
        inputs_embeds.scatter_(0, x, x)
        x = checkpoint(self.block, x)
        return torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=True)
"""


def test_remote_code_is_recognised_by_what_it_does_and_never_run(
    tmp_path: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch(world)
    code = tmp_path / "transformers_modules" / "tower"
    code.mkdir(parents=True)
    (code / "modeling_tower.py").write_text(MODEL)
    (code / "broken.py").write_text("checkpoint(")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path))
    found = {trait.name for trait in remote.traits(str(code / "modeling_tower.py"))}
    assert found == {
        "no-post-init", "old-format", "writes-into-embeddings", "reentrant-by-default", "says-reentrant"
    }  # fmt: skip
    findings = examination.examine(world.catalog())
    assert [finding.code for finding in findings.findings].count("D06") == 5


def test_paths_are_cut_for_an_issue() -> None:
    home = str(Path("~").expanduser())
    assert home not in redacted(f"{home}/secret/model/modeling.py:3 and {home}/.venv")
    assert redacted("/data/alice/env/lib/python3.11/site-packages/torch") == "…/site-packages/torch"
    assert (
        redacted("see https://github.com/a/b and transformers 4.57")
        == "see https://github.com/a/b and transformers 4.57"
    )


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", "--json", "--digest"])
    assert ended.value.code == 2
    assert cli.main([]) == 0
    assert "explain train.log" in capsys.readouterr().out
    assert "torch" not in sys.modules
