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
const SAY = CHINESE
  ? {
      seen: "日志中", why: "原因", active: "该次运行中 vlmpatch 已启用：请看 VLMPATCH_LOG=info 的输出。",
      patches: "补丁", ranges: "适用版本见各补丁的页面", more: "完整说明", add: "加上这一行", line: "第 {line} 行",
      unknown: "其中没有 vlmpatch 认识的失败。", maybe: "可能是 vlmpatch 认识的失败：其中的信息不足以确定。", error: "其中第一个未被捕获的错误：", perhaps: "也许是",
      cut: "报错在异常之前被截断；需要直到写明错误的那一行。", empty: "没有内容。", none: "其中没有任何错误。",
      instead: "它显示的是：", hint: "这是警告而不是错误：日志没有说运行失败。",
      shortened: "文本太长，只读了结尾；整个文件请用命令行。",
    }
  : {
      seen: "Seen", why: "Why", active: "vlmpatch was active in that run: VLMPATCH_LOG=info shows what it did.",
      patches: "Patches", ranges: "the page of each names its versions", more: "The whole page", add: "Add this line",
      line: "line {line}", unknown: "No failure that vlmpatch knows shows in this text.",
      maybe: "Perhaps a failure that vlmpatch knows: the text does not say enough to be certain.",
      error: "The first error in it that nobody caught:", perhaps: "Perhaps", none: "No error shows in it at all.",
      cut: "The traceback is cut off before its exception; paste it down to the line that names the error.",
      empty: "There is nothing in the box.", instead: "What it shows instead:",
      hint: "This is a warning, not an error: nothing in the text says that the run failed.",
      shortened: "The text is long: only its end was read. The command line reads the whole file.",
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
    if (label) made.append(Object.assign(document.createElement("strong"), { textContent: `${label}: ` }));
    made.append(text);
    place.append(made);
    return made;
  };
  const link = (href, text) => Object.assign(document.createElement("a"), { href, textContent: text });
  if (found.empty) return void add("p", SAY.empty);
  const failure = found.failure && of(found.failure);
  if (failure) {
    add("h3", `${failure.id} · ${pick(failure.title)}`);
    add("p", `${found.seen} (${SAY.line.replace("{line}", found.line)})`, SAY.seen);
    if (found.kind === "hint") add("p", SAY.hint);
    add("p", pick(failure.cause), SAY.why);
    if (found.patches.length) patches(add("p", "", SAY.patches), found.patches, folders, link);
    if (found.active) add("p", SAY.active);
    else if (found.patches.length) add("pre", "import vlmpatch", "");
    else for (const line of pick(failure.advice)) add("pre", line);
    add("p", link(`${folders.failures}${failure.id}.html`, `${SAY.more}: ${failure.id}`));
  } else {
    add("h3", found.perhaps ? SAY.maybe : SAY.unknown);
    const instead = found.instead && of(found.instead), perhaps = found.perhaps && of(found.perhaps);
    if (found.line === null) add("p", SAY.none);
    else add("p", found.cut ? SAY.cut : instead ? SAY.instead : SAY.error);
    if (found.seen) add("p", `${found.seen} (${SAY.line.replace("{line}", found.line)})`, SAY.seen);
    if (perhaps) add("p", link(`${folders.failures}${perhaps.id}.html`, `${perhaps.id} · ${pick(perhaps.title)}`), SAY.perhaps);
    if (instead) add("p", `${pick(instead.title)}. ${pick(instead.cause)}`, SAY.why);
    for (const line of instead ? pick(instead.advice) : []) add("pre", line);
  }
  if (found.shortened) add("p", SAY.shortened);
}

function patches(place, ids, folders, link) {
  ids.forEach((id, index) => place.append(...(index ? [", "] : []), link(`${folders.patches}${id}.html`, id)));
  place.append(` (${SAY.ranges})`);
}
