// Filters of the compatibility table. What is asked for stands in the address, so that a view can be handed on.
document$.subscribe(() => {
  const form = document.querySelector(".vp-filters"), table = document.querySelector(".vp-results");
  if (!form || !table) return;
  const stacks = JSON.parse(table.dataset.stacks), rows = [...table.querySelectorAll("tbody tr")];
  const ofStack = ["transformers", "deepspeed", "torch", "framework"], ofRow = ["engine", "family"];
  const given = new URLSearchParams(location.search);
  for (const field of form.elements) if (field.name && given.has(field.name)) field.value = given.get(field.name);
  form.hidden = false;

  function show() {
    const asked = Object.fromEntries([...new FormData(form)].filter(([, value]) => value));
    const words = (asked.text || "").toLowerCase().split(/\s+/).filter(Boolean);
    const fits = (stack) => ofStack.every((name) => !asked[name] || stacks[stack][name] === asked[name]);
    let shown = 0, runs = 0;
    for (const row of rows) {
      const marks = [...row.querySelectorAll("li")];
      for (const mark of marks) mark.hidden = !fits(mark.dataset.stack);
      const left = marks.filter((mark) => !mark.hidden);
      const wanted = ofRow.every((name) => !asked[name] || row.dataset[name] === asked[name]);
      const said = words.every((word) => row.textContent.toLowerCase().includes(word));
      row.hidden = !left.length || !wanted || !said;
      if (row.hidden) continue;
      shown += 1;
      runs += left.length;
      summarise(row.querySelector("summary"), left);
    }
    const { none } = form.dataset;
    form.querySelector("output").value = shown ? form.dataset.shown.replace("{rows}", shown).replace("{runs}", runs) : none;
    const query = new URLSearchParams(asked).toString();
    history.replaceState(null, "", (query ? `?${query}` : location.pathname) + location.hash);
  }

  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  show();
});

/** Count the marks that are left, by kind, in the order in which they first stand. */
function summarise(summary, marks) {
  const counted = new Map();
  for (const mark of marks) counted.set(mark.dataset.kind, (counted.get(mark.dataset.kind) || 0) + 1);
  summary.replaceChildren(
    ...[...counted].map(([kind, count]) => {
      const sign = marks.find((mark) => mark.dataset.kind === kind).firstChild.textContent.replace("*", "");
      return Object.assign(document.createElement("span"), { className: `vp-${kind}`, textContent: `${sign} × ${count}` });
    }),
  );
}
