"""English and Chinese: which one to speak, and the sentences of the views in both."""

from __future__ import annotations

from collections.abc import Mapping

LANGUAGES = ("en", "zh")


def language(environ: Mapping[str, str]) -> str:
    """The language that the locale asks for."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "LANGUAGE"):
        if value := environ.get(name, ""):
            return "zh" if value.lower().startswith("zh") else "en"
    return "en"


class Words:
    """Says things in one language.

    Args:
        language: one of ``LANGUAGES``.
    """

    def __init__(self, language: str) -> None:
        self.language = language

    def __call__(self, english: str, **values: object) -> str:
        """``english``, or its translation, with ``values`` filled in."""
        text = english if self.language == "en" else _CHINESE.get(english, english)
        return text.format(**values) if values else text

    def pick(self, pair: tuple[str, str]) -> str:
        """The one of an English and a Chinese text that is asked for."""
        return pair[self.language == "zh"]


_CHINESE = {
    "Seen": "看到",
    "Why": "原因",
    "Patches": "补丁",
    "Do this": "这样做",
    "or": "或",
    "More": "更多",
    "line {line}": "第 {line} 行",
    "applies": "适用",
    "not here": "不适用",
    "perhaps": "可能适用",
    "from the log": "来自日志",
    "in this environment": "来自当前环境",
    "nothing of {name} shows in the log, and it is not installed here": (
        "日志中看不到 {name},当前环境也没有安装"
    ),
    "none yet; the advice below is what helps": "暂时没有;请按下面的建议处理",
    "It was active in that run.": "该次运行启用了 vlmpatch。",
    "It left no trace in that run: it was not active, or had nothing to say.": (
        "该次运行中没有 vlmpatch 的痕迹:未启用,或没有需要提示的内容。"
    ),
    "It was active and the run failed all the same: VLMPATCH_LOG=info shows what it did. Until then:": (
        "vlmpatch 已启用但仍然失败:用 VLMPATCH_LOG=info 查看它做了什么。在此之前:"
    ),
    "first line of the script": "放在脚本第一行",
    "your command": "原来的命令",
    "the first error": "最早的错误",
    "ranks {ranks}": "rank {ranks}",
    "rank {ranks}": "rank {ranks}",
    "No failure that vlmpatch knows shows in this log.": "这份日志里没有 vlmpatch 认识的失败。",
    "The first error in it that nobody caught:": "其中第一个没有被捕获的错误:",
    "No error shows in it at all.": "其中看不到任何错误。",
    "What it shows instead:": "它显示的是:",
    "This is a warning, not an error: nothing in the log says that the run failed.": (
        "这只是警告:日志里看不到运行失败。"
    ),
    "Severity": "严重程度",
    "Needs": "适用版本",
    "Source": "源文件",
    "Switch off": "关闭",
    "Ended by": "由谁解决",
}
