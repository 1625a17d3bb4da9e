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
    "Where": "场景",
    "Why": "原因",
    "Patches": "补丁",
    "Do this": "这样做",
    "or": "或",
    "More": "更多",
    "line {line}": "第 {line} 行",
    "applies": "适用",
    "not here": "不适用",
    "perhaps": "可能适用",
    "Perhaps": "可能是",
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
    "The log has the message only; other programs print it too. Its traceback would tell.": (
        "日志里只有这条消息,其他程序也会打印它;有了它的 traceback 才能确定。"
    ),
    "Severity": "严重程度",
    "Needs": "适用版本",
    "Source": "源文件",
    "Switch off": "关闭",
    "Ended by": "由谁解决",
    "--{old} is gone from transformers {since} on.": "transformers {since} 起已没有 --{old}。",
    "A long time-out does not end a hang, it only shows it later.": "加长超时不能解决卡死,只会更晚发现。",
    "A model's own code calls checkpoint() without use_reentrant.": (
        "模型自带的代码调用 checkpoint() 时没有写明 use_reentrant。"
    ),
    "A model's own code has checkpointing in the format from before transformers 4.35.": (
        "模型自带的代码使用 transformers 4.35 之前的检查点写法。"
    ),
    "A model's own code never calls post_init(), which transformers 5 needs.": (
        "模型自带的代码从不调用 post_init(),而 transformers 5 需要它。"
    ),
    "A model's own code says use_reentrant=True.": "模型自带的代码写明了 use_reentrant=True。",
    "A model's own code writes image features into the embeddings.": (
        "模型自带的代码把图像特征原地写入 embedding。"
    ),
    "Checkpointing is off, which costs memory; against these failures it is not needed.": (
        "检查点已关闭,这会多占显存;为避免这些失败并不需要这样做。"
    ),
    "LLaMA-Factory fills in use_reentrant_gc: true where nothing is said.": (
        "未写明时 LLaMA-Factory 会填入 use_reentrant_gc: true。"
    ),
    "Launch environment": "启动环境",
    "LoRA with checkpointing under ZeRO-3 ends in a CheckpointError.": (
        "ZeRO-3 下 LoRA 加检查点会以 CheckpointError 结束。"
    ),
    "Looking for unused parameters costs time every step.": "查找未使用的参数会让每一步变慢。",
    "No release ends these yet": "尚无版本能取代这些补丁",
    "Nothing gathers the weights when the model is saved.": "保存模型时没有收集权重。",
    "Only the first and the last micro-batch of each step count, without an error.": (
        "每步只有第一个和最后一个 micro batch 有效,而且没有报错。"
    ),
    "Only the last micro-batch of each step counts, without an error.": (
        "每步只有最后一个 micro batch 有效,而且没有报错。"
    ),
    "Packages, in {folder}": "软件包,位于 {folder}",
    "Patches that have nothing to do here": "在这里无事可做的补丁",
    "Patches that will act here": "在这里会生效的补丁",
    "Ranks that send tokens to different experts wait for each other.": (
        "把 token 送往不同专家的各 rank 会互相等待。"
    ),
    "Reentrant checkpointing is asked for, which fails or trains wrongly here.": (
        "指定了 reentrant 检查点,在这里会报错或算错梯度。"
    ),
    "The model cannot be read.": "无法读取该模型。",
    "The version of {name} is in doubt.": "{name} 的版本存疑。",
    "There are several copies of {name}; the first is used.": "{name} 有多份,使用的是第一份。",
    "Files of vlmpatch are not as they were installed.": "vlmpatch 的文件与安装时不一致。",
    "There is no torch here: this is probably the wrong Python.": "这里没有 torch:多半用错了 Python。",
    "This could not be read.": "此处无法读取。",
    "This setting is not understood.": "无法理解该设置。",
    "Up to {wanted} image slices a step, {size} a call: the vision tower is called several times.": (
        "每步最多 {wanted} 个图像切片,每次调用 {size} 个:视觉塔会被多次调用。"
    ),
    "What an upgrade would end": "升级后可以去掉的补丁",
    "a DeepSpeed or accelerate configuration": "DeepSpeed 或 accelerate 的配置文件",
    "a launch line or a shell script; it is not run": "启动命令或 shell 脚本;不会执行",
    "a log, - for standard input, a failure (F3) or a patch id": (
        "日志文件,- 表示标准输入,失败编号(F3)或补丁 id"
    ),
    "a model's folder or config.json; its code is not run": "模型目录或 config.json;不会执行其代码",
    "activate the environment you train in, then run this again": "激活训练用的环境,然后重新运行",
    "as data": "以数据(JSON)输出",
    "command": "命令",
    "editable": "可编辑安装",
    "error": "错误",
    "every patch vlmpatch knows": "列出所有补丁",
    "exit with 1 on warnings too": "有警告时也以 1 退出",
    "generate() with checkpointing on loses its KV cache half way.": (
        "开着检查点调用 generate() 会在中途丢掉 KV cache。"
    ),
    "give each of them an image; a blank one will do": "让每条样本都带一张图(空白图即可)",
    "here: {version}": "当前:{version}",
    "leave it out, unless a part of the model is never used": "去掉它,除非模型有一部分从不使用",
    "not installed": "未安装",
    "not installed here": "当前环境未安装",
    "note": "提示",
    "nothing: vlmpatch ends this ({failure})": "无需改动:vlmpatch 会解决({failure})",
    "python -m vlmpatch COMMAND --help says more.": "详见 python -m vlmpatch COMMAND --help。",
    "run a command with vlmpatch active in every Python process below it": (
        "运行一条命令,并在其下每个 Python 进程中启用 vlmpatch"
    ),
    "run what? python -m vlmpatch run torchrun …": "要运行什么?python -m vlmpatch run torchrun …",
    "static_graph with gradient accumulation ends in an internal assertion of torch.": (
        "static_graph 配合梯度累积会触发 torch 的内部断言。"
    ),
    "the command": "命令",
    "the command as you would type it": "原样写出的命令",
    "the language; the locale's, if not given": "语言;不写则按 locale",
    "upgrade vlmpatch, or report this": "升级 vlmpatch,或报告此问题",
    "vlmpatch lets vision-language models train with gradient checkpointing.": (
        "vlmpatch 让视觉语言模型能在开启梯度检查点时正常训练。"
    ),
    "warning": "警告",
    "what a log shows, or what a failure or a patch is": "说明日志里的失败,或某个失败、某个补丁",
    "what stands in the way here, and what would be patched": "检查当前环境有什么问题、会打哪些补丁",
    "which patches would go with which upgrade": "哪些补丁会随哪次升级而不再需要",
    "{acting} patches will act; {errors} error(s), {warnings} warning(s)": (
        "{acting} 个补丁会生效;{errors} 个错误,{warnings} 个警告"
    ),
    "{count} patches have nothing to do here; --all lists them.": (
        "另有 {count} 个补丁在这里无事可做;--all 可列出。"
    ),
    "{id} is needed here and cannot be had.": "这里需要 {id},但无法启用。",
    "{package} {version} ends {count} of them": "{package} {version} 会去掉 {count} 个",
    "{without} of {rows} samples have no image: ranks then wait for each other.": (
        "{rows} 条样本中有 {without} 条没有图像:各 rank 会互相等待。"
    ),
    "A run has failed:": "训练失败了:",
    "Before a run:": "训练之前:",
    "To train with it:": "带上它训练:",
    "or, in a script:": "或写进脚本:",
    "After an upgrade:": "升级之后:",
    "{id} is no patch id; `python -m vlmpatch list` prints them": (
        "没有名为 {id} 的补丁;`python -m vlmpatch list` 会列出全部"
    ),
    "There is no torch in {python}: run this with the Python that trains.": (
        "{python} 里没有 torch:请用训练所用的 Python 运行。"
    ),
    "starting": "启动中",
    "without vlmpatch": "不用 vlmpatch",
    "with vlmpatch": "使用 vlmpatch",
    "two ranks over gloo on the CPU, float32": "CPU 上两个 rank(gloo),float32",
    "two GPUs, NCCL, bfloat16": "两块 GPU,NCCL,bfloat16",
    "gradients are right ({detail} off)": "梯度正确(相对误差 {detail})",
    "ends with {detail}": "报错退出:{detail}",
    "{detail} trainable tensors get no gradient": "{detail} 个可训练张量没有梯度",
    "gradients are wrong, {detail} off": "梯度错误,相对误差 {detail}",
    "gradients differ between the ranks, by {detail}": "各 rank 的梯度不一致,相差 {detail}",
    "could not be run: {detail}": "无法运行:{detail}",
    "you said so in so many words, so it stands, with a warning": "这是用户的显式选择,保持不变并给出警告",
    "nothing to mend showed in this run": "这次运行没有出现需要修复的问题",
    "this machine cannot run it, with vlmpatch or without": "这台机器无论是否使用 vlmpatch 都无法运行它",
    "gathers a step: {calls}": "每步 all-gather 次数:{calls}",
    "run": "运行",
    "without": "不用",
    "with": "使用",
    "cost": "开销",
    "Needed here, and no tiny run shows it (a framework's or a script's own): {ids}": (
        "此环境需要,但没有小型运行可以展示(属于框架或脚本自身):{ids}"
    ),
    "{good} of {all} runs are as they should be, in {seconds} s; {spare} patches are not needed here.": (
        "{all} 次运行中 {good} 次符合预期,用时 {seconds} 秒;{spare} 个补丁在此环境不需要。"
    ),
    "try the patches here: tiny two-rank trainings, bare and patched": (
        "在当前环境试跑补丁:两个 rank 的小型训练,不用与使用 vlmpatch 各一次"
    ),
    "every run of this patch": "该补丁的全部运行",
    "the GPUs where there are two, else the CPU, if not given": "不写则有两块 GPU 时用 GPU,否则用 CPU",
    "To see that it works here:": "看看在这里是否有效:",
}
