// The box of the start page: what `explain.js` says of the pasted text, as a person reads it.
document$.subscribe(() => {
  const form = document.querySelector(".vp-paste form");
  if (!form) return;
  const answer = document.querySelector(".vp-answer");
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const known = await symptoms();
    const text = form.querySelector("textarea").value;
    tell(answer, vlmpatchExplain(text, known), known, form.dataset);
  });
});

const CHINESE = document.documentElement.lang.startsWith("zh");
const MARK = CHINESE
  ? { colon: "：", open: "（", close: "）", comma: "、", stop: "。" }
  : { colon: ": ", open: " (", close: ")", comma: ", ", stop: ". " };
const SENTENCE = /^(?:[A-Z][a-z]+ |[\u4e00-\u9fff])/;  // a line of advice that is no code
const SAY = CHINESE
  ? {
      seen: "日志中", why: "原因", active: "该次运行已启用 vlmpatch：VLMPATCH_LOG=info 会显示它做了什么。",
      add: "安装 vlmpatch，然后在训练脚本第一行加上：", or: "或者在启动命令前加上：",
      patches: "补丁", ranges: "适用版本见各补丁的页面", more: "完整说明", line: "第 {line} 行",
      unknown: "这段文本里没有 vlmpatch 认识的问题。", maybe: "可能是 vlmpatch 认识的问题，但文本中的信息不足以确定。",
      error: "其中第一个未被捕获的错误：", perhaps: "可能是", none: "其中没有错误信息。",
      cut: "报错在异常之前就被截断了；请一直粘贴到写明错误的那一行。", empty: "请先粘贴报错或日志的结尾。",
      instead: "它显示的是：", ground: "这条报错不在已知之列；它的类型或它所结束的程序部分只能说明：", hint: "这是警告而不是错误：文本中没有迹象表明运行失败。",
      shortened: "文本太长，只读了结尾；要读整个文件请用命令行。",
    }
  : {
      seen: "In the log", why: "Why", active: "vlmpatch was active in that run: VLMPATCH_LOG=info shows what it did.",
      add: "Install vlmpatch, and make this the first line of the training script:", or: "or put this before the command:",
      patches: "Patches", ranges: "the page of each names its versions", more: "The whole page", line: "line {line}",
      unknown: "This text shows no failure that vlmpatch knows.",
      maybe: "This may be a failure that vlmpatch knows; the text does not say enough to be certain.",
      error: "The first error in it that was not caught:", perhaps: "Perhaps", none: "It contains no error.",
      cut: "The traceback is cut off before its exception; paste it down to the line that names the error.",
      empty: "Paste a traceback or the end of a log first.", instead: "It shows this instead:",
      ground: "The message is not known here; its kind, or the part of the program it ends in, says this much:",
      hint: "This is a warning, not an error: nothing in the text says that the run failed.",
      shortened: "The text is long, so only its end was read. The command line reads a whole file.",
    };

/** What is known of failures, loaded once, and not before somebody asks. */
function symptoms() {
  if (window.vlmpatchKnown) return Promise.resolve(window.vlmpatchKnown);
  const source = document.querySelector('script[src*="assets/explain.js"]').src.replace("explain.js", "symptoms.js");
  return new Promise((resolve, reject) => {
    const script = Object.assign(document.createElement("script"), { src: source, onerror: reject });
    script.onload = () => resolve(window.vlmpatchKnown);
    document.head.append(script);
  });
}

function tell(place, found, known, folders) {
  const of = (id) => known.failures.find((failure) => failure.id === id), pick = (pair) => pair[CHINESE ? 1 : 0];
  place.replaceChildren();
  place.classList.toggle("vp-unknown", !found.failure);
  const add = (tag, text, label) => {
    const made = document.createElement(tag);
    if (label) made.append(Object.assign(document.createElement("strong"), { textContent: label + MARK.colon }));
    made.append(text);
    place.append(made);
    return made;
  };
  const link = (href, text) => Object.assign(document.createElement("a"), { href, textContent: text });
  const advise = (lines) => lines.forEach((line) => add(SENTENCE.test(line) ? "p" : "pre", line));
  if (found.empty) return void add("p", SAY.empty);
  const failure = found.failure && of(found.failure);
  if (failure) {
    add("h3", `${failure.id} · ${pick(failure.title)}`);
    if (found.kind === "hint") add("p", SAY.hint);
    if (found.active) add("p", SAY.active);
    else if (found.patches.length) {
      add("p", SAY.add);
      add("pre", "import vlmpatch");
      add("p", SAY.or);
      add("pre", "python -m vlmpatch run …");
    }
    add("p", pick(failure.cause), SAY.why);
    add("p", found.seen + MARK.open + SAY.line.replace("{line}", found.line) + MARK.close, SAY.seen);
    if (found.patches.length) patches(add("p", "", SAY.patches), found.patches, folders, link);
    else advise(pick(failure.advice));
    add("p", link(`${folders.failures}${failure.id}.html`, SAY.more + MARK.colon + failure.id));
  } else {
    add("h3", found.perhaps ? SAY.maybe : SAY.unknown);
    const other = found.instead || found.ground, instead = other && of(other), perhaps = found.perhaps && of(found.perhaps);
    if (found.line === null) add("p", SAY.none);
    else add("p", found.cut ? SAY.cut : found.instead ? SAY.instead : SAY.error);
    if (found.seen) add("p", found.seen + MARK.open + SAY.line.replace("{line}", found.line) + MARK.close, SAY.seen);
    if (perhaps) add("p", link(`${folders.failures}${perhaps.id}.html`, `${perhaps.id} · ${pick(perhaps.title)}`), SAY.perhaps);
    if (found.ground) add("p", SAY.ground);
    if (instead) add("p", pick(instead.title) + MARK.stop + pick(instead.cause), SAY.why);
    if (instead) advise(pick(instead.advice));
  }
  if (found.shortened) add("p", SAY.shortened);
}

function patches(place, ids, folders, link) {
  ids.forEach((id, index) => place.append(...(index ? [MARK.comma] : []), link(`${folders.patches}${id}.html`, id)));
  place.append(MARK.open + SAY.ranges + MARK.close);
}
