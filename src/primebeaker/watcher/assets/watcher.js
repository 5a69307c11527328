// Curves, local times, copying, selection and live updates. Text is set as text; no HTML is inserted but this server's.
(() => {
  "use strict";
  const base = document.body.dataset.base || "";
  const palette = ["#0f766e", "#c2410c", "#1d5fa8", "#a21caf", "#4d7c0f", "#b45309", "#6d3fb0", "#be123c", "#0e7490", "#525252"];
  const darkPalette = ["#5ad1c2", "#fb923c", "#7db8f5", "#e879f9", "#a3e635", "#f2b04c", "#c0a0f5", "#fb7185", "#67e8f9", "#d4d4d4"];
  const dashes = [[], [6, 4], [2, 3], [10, 4, 2, 4]];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const make = (tag, text, className) => { const node = document.createElement(tag); if (text !== undefined) node.textContent = text; if (className) node.className = className; return node; };
  const short = (value) => value == null ? "–" : Math.abs(value) >= 1e5 || (value !== 0 && Math.abs(value) < 1e-3) ? value.toExponential(2) : String(+value.toPrecision(5));

  const localTimes = (root) => {
    for (const node of root.querySelectorAll("time[datetime]")) {
      const when = new Date(node.dateTime);
      if (!Number.isNaN(+when)) node.textContent = when.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
    }
    for (const node of root.querySelectorAll("[data-stale]")) {
      const when = Date.parse(node.dataset.stale);
      node.hidden = !(Date.now() - when > 24 * 3600 * 1000);
    }
  };

  // Curves.
  const smooth = (values, weight) => {
    if (!weight) return values;
    let last = null, debias = 0;
    return values.map((value) => {
      if (value == null) return null;
      last = (last ?? 0) * weight + (1 - weight) * value;
      debias = debias * weight + (1 - weight);
      return last / debias;
    });
  };

  const table = (lines) => {
    const fold = make("details"), box = make("div"), grid = make("table"), body = make("tbody"), head = make("tr");
    fold.append(make("summary", "Values"), box);
    for (const name of [lines[0].x, ...lines.map((line) => line.label)]) { const cell = make("th", name); cell.scope = "col"; head.append(cell); }
    const top = make("thead"); top.append(head); grid.append(top, body); box.append(grid);
    fold.addEventListener("toggle", () => {
      if (!fold.open || body.childElementCount) return;
      const steps = [...new Set(lines.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b).slice(0, 2000);
      const maps = lines.map((line) => new Map(line.points.map((point) => [point[0], point[1]])));
      for (const step of steps) {
        const row = make("tr"); row.append(make("td", lines[0].x === "time" ? new Date(step * 1000).toLocaleString() : String(step)));
        for (const map of maps) row.append(make("td", short(map.get(step))));
        body.append(row);
      }
    });
    return fold;
  };

  const draw = (holder, name, lines, options) => {
    const card = make("div", undefined, "chart"), title = make("h3"), note = make("span");
    // A long name breaks after a slash, not within a word.
    name.split("/").forEach((part, index) => { if (index) title.append("/", make("wbr")); title.append(part); });
    const odd = lines.reduce((sum, line) => sum + line.non_finite, 0);
    note.textContent = [odd ? `${odd} not finite` : "", lines.some((line) => line.truncated) ? "file cut" : ""].filter(Boolean).join(", ");
    title.append(note); card.append(title); holder.append(card);
    const steps = [...new Set(lines.flatMap((line) => line.points.map((point) => point[0])))].sort((a, b) => a - b), timed = lines[0].x === "time";
    const colours = dark.matches ? darkPalette : palette;
    const data = [steps], series = [timed ? { label: "time", value: (_, value) => value == null ? "–" : new Date(value * 1000).toLocaleString() } : { label: "step" }];
    lines.forEach((line, index) => {
      const map = new Map(line.points.map((point) => [point[0], point[1]]));
      const values = steps.map((step) => map.get(step) ?? null);
      const colour = colours[line.colour % colours.length];
      const thin = { stroke: colour + (line.superseded || options.smoothing ? "66" : ""), width: line.superseded ? 1 : 1.6, dash: line.superseded ? [2, 4] : dashes[Math.floor(line.colour / colours.length) % 4], spanGaps: true, points: { show: steps.length < 40, size: 5 } };
      data.push(values); series.push({ label: line.label, value: (_, value) => short(value), ...thin });
      if (options.smoothing && !line.superseded) { data.push(smooth(values, options.smoothing)); series.push({ label: line.label + " smoothed", stroke: colour, width: 2, spanGaps: true, points: { show: false }, value: (_, value) => short(value) }); }
    });
    const ink = css("--muted"), grid = { stroke: css("--line"), width: 1 };
    const marks = { hooks: { draw: (plot) => {
      const context = plot.ctx; context.save(); context.fillStyle = css("--accent");
      for (const step of timed ? [] : options.marks) { const x = plot.valToPos(step, "x", true); if (x >= plot.bbox.left && x <= plot.bbox.left + plot.bbox.width) { context.beginPath(); context.moveTo(x - 4, plot.bbox.top + plot.bbox.height); context.lineTo(x + 4, plot.bbox.top + plot.bbox.height); context.lineTo(x, plot.bbox.top + plot.bbox.height - 7); context.fill(); } }
      context.restore();
    } } };
    const positive = lines.every((line) => line.points.every((point) => point[1] > 0));
    const plot = new uPlot({
      width: Math.max(card.clientWidth - 26, 240), height: 210, plugins: [marks], series,
      scales: { x: { time: timed }, y: options.log && positive ? { distr: 3 } : {} },
      axes: [{ stroke: ink, grid, ticks: grid, label: timed ? "time" : "step", labelSize: 18, size: timed ? 42 : 30 }, { stroke: ink, grid, ticks: grid, size: 58, values: (_, ticks) => ticks.map((tick) => tick == null ? "" : short(tick)) }],
      cursor: { drag: { x: true, y: false }, sync: { key: timed ? "times" : "steps" } }, legend: { live: true },
    }, data, card);
    const reset = make("button", "reset zoom", "copy"); reset.type = "button"; reset.addEventListener("click", () => plot.setData(data)); title.append(reset);
    card.append(table(lines));
    new ResizeObserver(() => plot.setSize({ width: Math.max(card.clientWidth - 26, 240), height: 210 })).observe(card);
  };

  const curves = (section) => {
    const holder = section.querySelector("[data-charts]"), marks = (section.dataset.steps || "").split(",").filter(Boolean).map(Number);
    const places = section.dataset.metrics ? [{ url: section.dataset.metrics, label: "" }] : (section.dataset.overlay || "").split(";").filter(Boolean).map((part) => { const [url, label] = part.split("|"); return { url, label }; });
    const options = { smoothing: 0, log: false, marks, added: [] };
    let answers = [], drawn = "";
    const render = () => {
      const names = [...new Set(answers.flatMap((answer) => answer.data.series.map((line) => line.metric)))];
      holder.replaceChildren();
      const sources = answers.flatMap((answer) => answer.data.sources);
      for (const problem of new Set(sources.filter((source) => source.error).map((source) => `${source.source === "wandb" ? "W&B " : ""}${source.path}: ${source.error}`))) holder.append(make("p", problem, "note"));
      if (!names.length) { if (!holder.childElementCount) holder.append(make("p", sources.length ? "The metric files hold no numbers yet." : "No curve was found: neither metrics.jsonl nor a wandb directory lies in the run directory, and no W&B run is known.", "muted")); return; }
      for (const name of names) {
        const lines = answers.flatMap((answer, index) => answer.data.series.filter((line) => line.metric === name).map((line) => ({ ...line, colour: places.length > 1 ? index : 0, label: (answer.label || name.split("/").pop()) + (line.superseded ? ` (attempt ${line.attempt}, superseded)` : "") })));
        draw(holder, name, lines, options);
      }
    };
    const load = async () => {
      const results = await Promise.all(places.map(async (source) => {
        const query = options.added.map((name) => "metric=" + encodeURIComponent(name)).join("&");
        try { const reply = await fetch(source.url + (query ? "?" + query : ""), { headers: { accept: "application/json" } }); return reply.ok ? { label: source.label, data: await reply.json() } : null; } catch { return null; }
      }));
      answers = results.filter(Boolean);
      const list = section.querySelector("datalist");
      if (list && answers.length) list.replaceChildren(...answers[0].data.available.map((name) => { const option = make("option"); option.value = name; return option; }));
      // Equal curves stay as they are, with their zoom and open folds.
      const now = JSON.stringify(answers.map((answer) => [answer.data.series, answer.data.sources]));
      if (now !== drawn) { drawn = now; render(); }
    };
    section.querySelector("[data-smooth]")?.addEventListener("input", (event) => { options.smoothing = +event.target.value; render(); });
    section.querySelector("[data-log]")?.addEventListener("change", (event) => { options.log = event.target.checked; render(); });
    section.querySelector("[data-add]")?.addEventListener("change", (event) => {
      const name = event.target.value.trim(); if (!name) return;
      const shown = [...new Set(answers.flatMap((answer) => answer.data.series.map((line) => line.metric)))];
      options.added = [name, ...(options.added.length ? options.added : shown)].filter((item, index, all) => all.indexOf(item) === index).slice(0, 12); event.target.value = ""; load();
    });
    section.reload = load;
    dark.addEventListener("change", render);
    load();
  };

  // Copying.
  const tables = window.watcherTables;
  const cells = (id) => [...document.querySelectorAll(`#${CSS.escape(id)} tr`)].map((row) => [...row.children].map((cell) => cell.innerText.replace(/\s+/g, " ").trim()));
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("button"); if (!button) return;
    const copy = async (text) => { const before = button.textContent; try { await navigator.clipboard.writeText(text); button.textContent = "copied"; } catch { button.textContent = "not allowed"; } setTimeout(() => { button.textContent = before; }, 1200); };
    if (button.dataset.copy) await copy(button.dataset.copy);
    else if (button.dataset.csv) await copy(cells(button.dataset.csv).map((row) => row.map((cell) => `"${cell.replace(/"/g, '""')}"`).join(",")).join("\n"));
    else if (button.dataset.markdown) { const rows = cells(button.dataset.markdown).map((row) => `| ${row.map((cell) => cell.replace(/\|/g, "\\|")).join(" | ")} |`); rows.splice(1, 0, rows[0].replace(/[^|]+/g, " --- ")); await copy(rows.join("\n")); }
    else if (button.dataset.compare) location.href = button.dataset.compare + "?" + tables.picked().map((key) => "ref=" + key).join("&");
  });

  // Live updates: only what changed on this page is replaced; folds, focus, selection and scroll stay.
  const say = (text, state) => { const line = document.getElementById("connection"); line.className = "connection " + state; line.querySelector(".text").textContent = text; };
  let tag = null, known = document.body.dataset.generation, seen = new Date(), wait = 1000;
  // Where the focus stands, found again by its own name or by its place below the next named element.
  const standing = (node, live) => {
    if (!node || node === live || !live.contains(node)) return null;
    if (node.id) return () => document.getElementById(node.id);
    const home = node.parentElement.closest("[id]"), tag = node.tagName, at = [...home.querySelectorAll(tag)].indexOf(node);
    return () => document.getElementById(home.id)?.querySelectorAll(tag)[at];
  };
  const refresh = async () => {
    const rows = tables.count(), long = rows > 100, address = new URL(location.href);
    if (long) address.searchParams.set("limit", String(Math.min(rows, 1000)));
    const reply = await fetch(address, tag ? { headers: { "if-none-match": tag } } : {});
    if (!reply.ok) return;
    tag = reply.headers.get("etag");
    const fresh = new DOMParser().parseFromString(await reply.text(), "text/html").getElementById("live"), live = document.getElementById("live");
    if (!fresh) return;
    if (long) { tables.patch(fresh); localTimes(live); return; }
    const open = [...live.querySelectorAll("details[open][id]")].map((node) => node.id), focus = standing(document.activeElement, live);
    const old = [...live.children], next = [...fresh.children];
    // What stands at the top of the view stays there, whatever grows above it or is shorter for an instant.
    const anchor = old.findIndex((node) => node.getBoundingClientRect().bottom > 60), top = anchor < 0 ? 0 : old[anchor].getBoundingClientRect().top;
    if (old.length === next.length && old.every((node, index) => node.tagName === next[index].tagName && node.className === next[index].className)) old.forEach((node, index) => { if (node.matches(".curves")) node.reload?.(); else if (!node.matches("form") && node.outerHTML !== next[index].outerHTML) node.replaceWith(document.importNode(next[index], true)); });
    else live.replaceChildren(...next.map((node) => document.importNode(node, true)));
    for (const id of open) { const node = document.getElementById(id); if (node) node.open = true; }
    if (focus && document.activeElement === document.body) focus()?.focus({ preventScroll: true });
    setUp(live);
    if (anchor >= 0 && live.children[anchor]) scrollBy({ top: live.children[anchor].getBoundingClientRect().top - top, behavior: "instant" });
  };
  const listen = () => {
    const events = new EventSource(base + "/api/events");
    events.addEventListener("open", () => { wait = 1000; seen = new Date(); say("live", "on"); });
    events.addEventListener("generation", (event) => { seen = new Date(); say("live", "on"); if (event.data !== known && event.data !== "-1") { known = event.data; refresh(); } });
    events.addEventListener("scan", (event) => { const scan = JSON.parse(event.data); say(scan.running ? `scanning… ${scan.files_seen ? scan.files_seen.toLocaleString() + " files" : ""}` : "live", "on"); });
    events.addEventListener("error", () => { events.close(); say(`offline, last update ${seen.toLocaleTimeString()}`, "off"); setTimeout(listen, wait); wait = Math.min(wait * 2, 30000); });
  };
  const setUp = (root) => { localTimes(root); const own = root.querySelector(".node.self rect"); if (own) { const box = own.closest(".scroll"); box.scrollLeft = +own.getAttribute("x") - Math.min(260, box.clientWidth / 4); } tables.setUp(); for (const section of root.querySelectorAll(".curves")) if (!section.reload) curves(section); };
  document.addEventListener("htmx:afterSettle", () => setUp(document));
  setUp(document);
  if (document.body.dataset.generation !== undefined) listen();
})();
