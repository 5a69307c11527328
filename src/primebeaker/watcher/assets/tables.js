// Tables: rows picked for a comparison, columns that are shown, and rows far from the view taken out of the page.
(() => {
  "use strict";
  const MOST = 10, CHUNK = 100;
  const make = (tag, text) => { const node = document.createElement(tag); if (text !== undefined) node.textContent = text; return node; };

  // Picked rows outlive filters, further pages and live updates.
  const picked = new Set();
  const boxes = () => document.querySelectorAll("input[name=ref]");
  const showPicked = () => {
    for (const box of boxes()) { box.checked = picked.has(box.value); box.disabled = !box.checked && picked.size >= MOST; }
    const button = document.querySelector("[data-compare]"), clear = document.querySelector("[data-clear]");
    if (button) { button.disabled = picked.size < 2; button.textContent = picked.size ? `Compare ${picked.size}` : "Compare"; }
    if (clear) clear.hidden = picked.size === 0;
  };
  document.addEventListener("change", (event) => {
    if (!event.target.matches("input[name=ref]")) return;
    if (event.target.checked) picked.add(event.target.value); else picked.delete(event.target.value);
    showPicked();
  });
  document.addEventListener("click", (event) => { if (event.target.closest("[data-clear]")) { picked.clear(); showPicked(); } });

  // Columns: the choice is kept in this browser, by the names of the heads.
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
  const place = "watcher.hidden-columns";
  const hidden = () => { try { return new Set(JSON.parse(localStorage.getItem(place) || "[]")); } catch { return new Set(); } };
  const headNames = (table) => [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  const applyColumns = (table) => {
    const off = hidden();
    sheet.replaceSync(headNames(table).map((name, index) => (index > 1 && off.has(name) ? `table.rows tr > :nth-child(${index + 1}) { display: none; }` : "")).join("\n"));
  };
  const chooser = (box, table) => {
    box.replaceChildren();
    headNames(table).forEach((name, index) => {
      if (index < 2) return;
      const label = make("label"), check = make("input");
      check.type = "checkbox"; check.checked = !hidden().has(name);
      check.addEventListener("change", () => {
        const off = hidden();
        if (check.checked) off.delete(name); else off.add(name);
        try { localStorage.setItem(place, JSON.stringify([...off])); } catch { /* private windows keep nothing */ }
        applyColumns(table);
      });
      label.append(check, " " + name); box.append(label);
    });
  };

  // Rows: bodies of a hundred rows that are far from the view give way to one empty row of their height.
  const folded = new WeakMap();
  const fold = (body) => {
    if (folded.has(body) || body.contains(document.activeElement)) return;
    const height = body.getBoundingClientRect().height;
    if (!height) return;
    const row = make("tr"), cell = make("td");
    cell.colSpan = 99; cell.style.height = height + "px"; row.className = "space"; row.setAttribute("aria-hidden", "true"); row.append(cell);
    folded.set(body, [...body.rows]);
    body.replaceChildren(row);
  };
  const unfold = (body) => { const rows = folded.get(body); if (rows) { folded.delete(body); body.replaceChildren(...rows); showPicked(); } };
  const near = new IntersectionObserver((entries) => { for (const entry of entries) if (entry.isIntersecting) unfold(entry.target); else fold(entry.target); }, { rootMargin: "1500px 0px" });
  const chunks = () => document.querySelectorAll("tbody.chunk");
  const chunk = () => {
    const last = document.getElementById("rows");
    if (!last) return;
    while (last.rows.length >= 2 * CHUNK) {
      const body = make("tbody"); body.className = "chunk";
      body.append(...[...last.rows].slice(0, CHUNK));
      last.before(body); near.observe(body);
    }
    last.closest("table").setAttribute("aria-rowcount", String(count() + 1));
  };
  const allRows = () => [...[...chunks()].flatMap((body) => folded.get(body) || [...body.rows]), ...(document.getElementById("rows")?.rows || [])];
  const count = () => allRows().length;
  // Of a long table only the rows that changed are replaced, wherever they are.
  const patch = (fresh) => {
    const known = new Map(allRows().map((row) => [row.id, row]));
    for (const next of fresh.querySelectorAll("#rows > tr[id]")) {
      const old = known.get(next.id);
      if (!old || old.textContent === next.textContent) continue;
      const row = document.importNode(next, true);
      for (const body of chunks()) { const rows = folded.get(body); const at = rows ? rows.indexOf(old) : -1; if (at >= 0) rows[at] = row; }
      if (old.isConnected) old.replaceWith(row);
    }
    showPicked();
  };

  const setUp = () => {
    for (const box of boxes()) if (box.checked && picked.size < MOST) picked.add(box.value);
    const table = document.querySelector("table.rows"), box = document.querySelector("[data-columns]");
    if (table) applyColumns(table);
    if (table && box && !box.childElementCount) chooser(box, table);
    if (box) box.closest("details").hidden = !table;
    chunk();
    showPicked();
  };
  window.watcherTables = { setUp, picked: () => [...picked], patch, count };
})();
