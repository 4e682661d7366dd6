"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("data").textContent);
  const tabs = ["drawing", "source", "text", "notes"].map((name) => $("tab-" + name));
  const places = { drawing: 0, text: 1, source: 2, notes: 3 };
  const preview = $("preview");
  let chosen = -1;
  let looked = null;
  let tab = "drawing";

  // What lies compressed in the page, by chunk, once unpacked.
  const unpacked = new Map();
  function details(k) {
    const number = Math.floor(k / data.chunk);
    if (!unpacked.has(number)) {
      const bytes = Uint8Array.from(atob(data.chunks[number]), (c) => c.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
      unpacked.set(number, new Response(stream).json());
    }
    return unpacked.get(number).then((columns) => columns.map((column) => column[k % data.chunk]));
  }

  function drawing(text, name) {
    const svg = document.importNode(new DOMParser().parseFromString(text, "image/svg+xml").documentElement, true);
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", name);
    return svg;
  }

  function element(tag, text) {
    const made = document.createElement(tag);
    made.textContent = text;
    return made;
  }

  const us = (value) => (value === null ? "-" : value.toLocaleString("en", { maximumSignificantDigits: 4 }));
  function words(k) {
    const [plans, kernels, modelled, time, verdict] = data.rows[k];
    const measured = time === null ? "" : `, ${us(time)} us as a call takes`;
    return `${kernels} kernel${kernels === 1 ? "" : "s"} (${plans}), modelled ${us(modelled)} us${measured}, ${verdict}`;
  }

  // The graph that is selected.
  async function fill() {
    if (chosen < 0) return;
    const k = chosen;
    const found = await details(k);
    if (k !== chosen) return;
    const text = found[places[tab]];
    const none = "This graph was not compiled: there is no source. Its picture and its text say what it computes.";
    $("panel").replaceChildren(tab === "drawing" ? drawing(text, `graph ${k}`) : element("pre", text || none));
    $("panel").setAttribute("aria-labelledby", "tab-" + tab);
  }

  function choose(k) {
    chosen = k;
    $("h-details").textContent = `Graph ${k}`;
    $("figures").textContent = words(k);
    for (const mark of document.querySelectorAll(".mark")) mark.setAttribute("aria-selected", String(Number(mark.dataset.k) === k));
    for (const row of $("graphs").tBodies[0].rows) row.classList.toggle("chosen", Number(row.dataset.k) === k);
    return fill();
  }

  function show(name, focus) {
    tab = name;
    for (const t of tabs) {
      const own = t.id === "tab-" + name;
      t.setAttribute("aria-selected", String(own));
      t.tabIndex = own ? 0 : -1;
      if (own && focus) t.focus();
    }
    fill();
  }

  for (const [i, t] of tabs.entries()) {
    t.addEventListener("click", () => show(t.id.slice(4), false));
    t.addEventListener("keydown", (e) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key];
      if (step) show(tabs[(i + step + tabs.length) % tabs.length].id.slice(4), true);
    });
  }

  // The graph under the mouse, or under the keyboard's focus.
  async function look(mark) {
    const k = Number(mark.dataset.k);
    looked = mark;
    const found = await details(k);
    if (looked !== mark) return;
    preview.replaceChildren(element("p", `Graph ${k}: ${words(k)}`), drawing(found[0], `graph ${k}`));
    preview.hidden = false;
    place();
  }

  function place() {
    if (looked === null || preview.hidden) return;
    const at = looked.getBoundingClientRect();
    const [w, h] = [preview.offsetWidth, preview.offsetHeight];
    const left = at.right + 14 + w < innerWidth ? at.right + 14 : Math.max(at.left - 14 - w, 8);
    preview.style.left = `${left}px`;
    preview.style.top = `${Math.min(Math.max(at.top - h / 2, 8), Math.max(innerHeight - h - 8, 8))}px`;
  }

  function leave() {
    looked = null;
    preview.hidden = true;
  }

  // Listeners are on what is around a chart: Chromium lets the keyboard stop at an SVG that listens for focus.
  for (const chart of document.querySelectorAll(".plot")) {
    const marks = [...chart.querySelectorAll(".mark")];
    const across = (mark) => mark.transform.baseVal[0].matrix.e;
    marks.sort((a, b) => across(a) - across(b));
    if (marks.length) marks[0].setAttribute("tabindex", "0");
    const go = (i) => {
      for (const mark of marks) mark.setAttribute("tabindex", "-1");
      marks[i].setAttribute("tabindex", "0");
      marks[i].focus();
    };
    const of = (e) => e.target.closest(".mark");
    const open = (mark) => { show("source", false); choose(Number(mark.dataset.k)); };
    chart.addEventListener("mouseover", (e) => { const mark = of(e); if (mark) look(mark); else leave(); });
    chart.addEventListener("mouseleave", leave);
    chart.addEventListener("focusin", (e) => { const mark = of(e); if (mark) look(mark); });
    chart.addEventListener("focusout", leave);
    chart.addEventListener("click", (e) => { const mark = of(e); if (mark) open(mark); });
    chart.addEventListener("keydown", (e) => {
      const mark = of(e);
      if (!mark) return;
      const i = marks.indexOf(mark);
      const to = { ArrowRight: i + 1, ArrowDown: i + 1, ArrowLeft: i - 1, ArrowUp: i - 1, Home: 0, End: marks.length - 1 }[e.key];
      if (to !== undefined) go(Math.min(Math.max(to, 0), marks.length - 1));
      else if (e.key === "Enter" || e.key === " ") open(mark);
      else if (e.key === "Escape") leave();
      else return;
      e.preventDefault();
    });
  }
  addEventListener("scroll", place, { passive: true });

  // The table of all graphs.
  const body = $("graphs").tBodies[0];
  const rows = data.rows.map(([plans, kernels, modelled, time, verdict], k) => {
    const row = document.createElement("tr");
    row.dataset.k = k;
    const open = element("button", String(k));
    open.setAttribute("aria-label", `select graph ${k}`);
    const first = document.createElement("td");
    first.append(open);
    row.append(first, ...[plans, kernels, us(modelled), us(time), verdict].map((x) => element("td", x)));
    return row;
  });
  body.addEventListener("click", (e) => {
    const row = e.target.closest("tr");
    if (row) choose(Number(row.dataset.k)).then(() => { if (e.target.closest("button")) $("details").scrollIntoView({ block: "nearest" }); });
  });

  let column = -1;
  let falling = false;
  function fillTable() {
    const wanted = $("filter").value.toLowerCase();
    const key = (k) => (column < 0 ? k : data.rows[k][column]);
    const order = rows.map((_, k) => k).filter((k) => data.rows[k][0].toLowerCase().includes(wanted));
    order.sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (x === null || y === null) return (x === null) - (y === null) || a - b;
      return (x < y ? -1 : x > y ? 1 : 0) * (falling ? -1 : 1) || a - b;
    });
    body.replaceChildren(...order.map((k) => rows[k]));
    $("shown").textContent = `${order.length} of ${rows.length}`;
  }
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => {
      const by = Number(button.dataset.sort);
      falling = by === column && !falling;
      column = by;
      for (const th of document.querySelectorAll("#graphs th")) th.removeAttribute("aria-sort");
      button.closest("th").setAttribute("aria-sort", falling ? "descending" : "ascending");
      fillTable();
    });
  }
  $("filter").addEventListener("input", fillTable);
  fillTable();

  const first = data.rows.findIndex((row) => row[5] === "runs");
  if (rows.length) choose(Math.max(first, 0));
  else $("panel").textContent = "The search found no graph.";
})();
