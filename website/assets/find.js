// A box that filters the rows of every table on the page; sections without a row left are hidden with them.
document$.subscribe(() => {
  const place = document.querySelector(".vp-find:empty");
  if (!place) return;
  const box = Object.assign(document.createElement("input"), { type: "search", placeholder: place.dataset.label });
  box.setAttribute("aria-label", place.dataset.label);
  place.append(box);
  const rows = [...document.querySelectorAll("article tbody tr")].map((row) => [row, row.textContent.toLowerCase()]);
  const sections = [...document.querySelectorAll("article h2")].map((title) => [title, following(title)]);
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const [row, text] of rows) row.hidden = !words.every((word) => text.includes(word));
    for (const [title, rest] of sections) {
      const tables = rest.flatMap((each) => [...each.querySelectorAll("tbody tr")]);
      const empty = words.length > 0 && tables.every((row) => row.hidden);
      for (const each of [title, ...rest]) each.hidden = empty;
    }
  });
});

/** What stands between `title` and the next heading of its rank. */
function following(title) {
  const found = [];
  for (let next = title.nextElementSibling; next && next.tagName !== "H2"; next = next.nextElementSibling) found.push(next);
  return found;
}
