"use strict";
// Sorts, filters and unfolds what is in the page already; nothing here makes markup, and nothing is fetched.
(() => {
  const root = document.documentElement;
  const find = (id) => document.getElementById(id);

  const made = (name, text, attributes = {}) => {
    const node = document.createElement(name);
    node.textContent = text;
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };

  // --- theme: the system's, until the reader chooses
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const toggle = made("button", "", { type: "button" });
  const isDark = () => (root.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
  const label = () => { toggle.textContent = isDark() ? "\u2600 Light" : "\u263E Dark"; };
  toggle.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    label();
    try { localStorage.setItem("tricklecast-theme", root.dataset.theme); } catch { /* no storage: not kept */ }
  });
  try {
    const kept = localStorage.getItem("tricklecast-theme");
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch { /* no storage: the system's */ }
  dark.addEventListener("change", label);
  label();
  document.querySelector("header").append(toggle);

  // --- times: the reader's own on hover
  const local = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  const tell = (event) => {
    const time = event.target.closest?.("time[datetime]");
    if (time && !time.title) time.title = local.format(new Date(time.dateTime));
  };
  document.addEventListener("mouseover", tell);
  document.addEventListener("focusin", tell);

  // --- printing unfolds everything
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const details of folded) details.open = true;
  });
  addEventListener("afterprint", () => {
    for (const details of folded) details.open = false;
  });

  // --- commands: one click to copy
  for (const code of document.querySelectorAll(".copy")) {
    const button = made("button", "Copy", { type: "button" });
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(code);
        button.textContent = "Selected: copy it";
      }
    });
    code.after(" ", button);
  }

  const table = find("episode-table");
  if (!table) return;

  // --- what is in the table
  const headings = [...table.tHead.rows[0].cells];
  const columns = headings.map((th) => th.textContent.toLowerCase().replace(/[^a-z]+/g, "-").replace(/-$/, "") || "rank");
  const written = (cell) => cell.querySelector("[title]:not(a)")?.title ?? cell.textContent;
  const key = (cell, numeric) => {
    if (numeric) return Number(cell.dataset.v ?? cell.textContent.replaceAll(",", ""));
    return cell.querySelector("time")?.dateTime || written(cell).toLowerCase();
  };
  const rows = [...table.tBodies].map((body) => {
    const cells = [...body.rows[0].cells];
    const keys = cells.map((cell, at) => key(cell, headings[at].className === "n"));
    const [, severity, kind, , , node, release] = cells.map(written);
    return { body, keys, severity: severity.slice(2), class: kind, node, release, text: null };
  });

  // --- filters
  const form = find("filters");
  const text = find("filter-text");
  const selects = Object.fromEntries(["severity", "class", "node", "release"].map((kind) => [kind, find(`filter-${kind}`)]));
  for (const [kind, select] of Object.entries(selects)) {
    const names = [...new Set(rows.map((row) => row[kind]))].sort();
    select.append(made("option", "all", { value: "" }), ...names.map((name) => made("option", name, { value: name })));
    select.closest("label").hidden = names.length < 2;
  }
  form.hidden = false;

  let sorted = { column: 0, descending: false };

  const holds = (row, words) => {
    row.text ??= row.body.textContent.toLowerCase();
    return words.every((word) => row.text.includes(word));
  };

  const filter = () => {
    const words = text.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = Object.entries(selects).filter(([, select]) => select.value);
    let shown = 0;
    for (const row of rows) {
      const fits = wanted.every(([kind, select]) => row[kind] === select.value) && (!words.length || holds(row, words));
      row.body.hidden = !fits;
      shown += fits;
    }
    find("shown").textContent = shown === rows.length ? `${rows.length} shown` : `${shown} of ${rows.length} shown`;
  };

  const sort = () => {
    const { column, descending } = sorted;
    const sign = descending ? -1 : 1;
    const order = (a, b) => {
      const [x, y] = [a.keys[column], b.keys[column]];
      const by = typeof x === "number" ? x - y : x < y ? -1 : x > y ? 1 : 0;
      return by * sign || a.keys[0] - b.keys[0];
    };
    table.append(...[...rows].sort(order).map((row) => row.body));
    headings.forEach((th, at) => {
      th.setAttribute("aria-sort", at !== column ? "none" : descending ? "descending" : "ascending");
    });
  };

  headings.forEach((th, at) => {
    const button = made("button", th.textContent, { type: "button" });
    th.replaceChildren(button);
    button.addEventListener("click", () => {
      const numeric = typeof rows[0].keys[at] === "number" && at > 0;
      sorted = { column: at, descending: sorted.column === at ? !sorted.descending : numeric };
      sort();
      keep();
    });
  });

  // --- the state is in the address, so that a link shows what its sender saw
  const keep = () => {
    const state = new URLSearchParams();
    if (text.value) state.set("q", text.value);
    for (const [kind, select] of Object.entries(selects)) if (select.value) state.set(kind, select.value);
    if (sorted.column || sorted.descending) state.set("sort", (sorted.descending ? "-" : "") + columns[sorted.column]);
    try { history.replaceState(null, "", `#${state}`); } catch { /* a page without an address */ }
  };

  const restore = () => {
    const hash = location.hash.slice(1);
    const episode = rows.find((row) => row.body.id === hash);
    if (episode) return reveal(episode);
    if (!hash.includes("=")) return undefined;
    const state = new URLSearchParams(hash);
    text.value = state.get("q") ?? "";
    for (const [kind, select] of Object.entries(selects)) {
      const wanted = state.get(kind) ?? "";
      select.value = [...select.options].some((option) => option.value === wanted) ? wanted : "";
    }
    const order = state.get("sort") ?? "";
    const column = columns.indexOf(order.replace(/^-/, ""));
    sorted = { column: Math.max(0, column), descending: column >= 0 && order.startsWith("-") };
    filter();
    sort();
    return undefined;
  };

  const reveal = (row) => {
    if (row.body.hidden) {
      form.reset();
      filter();
    }
    row.body.querySelector("details").open = true;
    row.body.scrollIntoView({ block: "start" });
  };

  // --- folding
  const unfold = find("unfold");
  unfold.addEventListener("click", () => {
    const open = unfold.textContent === "Unfold all";
    for (const row of rows) if (!row.body.hidden) row.body.querySelector("details").open = open;
    unfold.textContent = open ? "Fold all" : "Unfold all";
  });
  table.addEventListener("click", (event) => {
    const row = event.target.closest("tbody > tr:first-child");
    if (!row || event.target.closest("a") || String(getSelection())) return;
    const details = row.parentElement.querySelector("details");
    details.open = !details.open;
  });

  form.addEventListener("input", () => { filter(); keep(); });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(() => { filter(); keep(); }));
  addEventListener("hashchange", restore);
  filter();
  sort();
  restore();
})();
