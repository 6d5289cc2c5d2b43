"use strict";
// The page computes no number: it asks (live) or looks up (offline), and shows text that Python wrote.
(async () => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const token = new URLSearchParams(location.search).get("token");
  const $ = id => document.getElementById(id);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let scene = data.scene, setting = {...data.scene.setting}, chosen = [0], view = null, queries = 0;

  // ---- asking --------------------------------------------------------------------------------------------
  async function ask(what, extra = {}) {
    const response = await fetch("/" + what, {
      method: "POST", headers: {"Content-Type": "application/json", "X-Sottovoce-Token": token},
      body: JSON.stringify({setting, ...extra}),
    });
    const answer = await response.json();
    if (answer.refused) throw new Error(answer.refused);
    return answer;
  }

  function lookedUp() {
    const t = scene.adjustable ? Number($("rounds").value) : scene.rounds;
    const stored = data.views[t + "|" + chosen.join(",")];
    if (!stored) throw new Error("This file holds single observers" + (data.pairs ? " and pairs" : "") +
      "; start `sottovoce explore` for larger coalitions.");
    return {...stored, rows: stored.rows.map((k, u) => ({...data.rows[k], name: scene.names[u], looks: chosen.includes(u)}))};
  }

  const say = text => { $("alert").textContent = text; };

  // ---- the picture ---------------------------------------------------------------------------------------
  const shown = await Bokeh.embed.embed_item(data.graph, "graph");
  const lines = await Bokeh.embed.embed_item(data.course_plot, "course");
  const all = [...Bokeh.documents];
  const named = name => all.map(d => d.get_model_by_name(name)).find(m => m != null);
  const nodes = named("nodes"), edges = named("edges"), mates = named("mates"), plot = named("plot"), tool = named("pen");
  const tap = named("tap"), course = named("course"), coursePlot = named("course-plot");
  const viewOf = (views, model) => {
    for (const one of views) if (one.model === model) return one;
    return null;
  };
  const plotView = viewOf(shown, plot) ?? [...shown][0];
  let busy = false;

  function colors() {
    const style = getComputedStyle(document.documentElement);
    const of = name => style.getPropertyValue(name).trim();
    const ink = of("--ink"), soft = of("--soft"), band = of("--band"), line = of("--line");
    for (const p of [plot, coursePlot]) {
      p.background_fill_color = band; p.border_fill_color = band; p.outline_line_color = null;
    }
    for (const name of ["edge-glyph", "mate-glyph"]) named(name).line_color = soft;
    for (const name of ["name-glyph", "number-glyph"]) named(name).text_color = ink;
    named("node-glyph").line_color = ink;
    for (const name of ["x-axis", "y-axis"]) {
      const axis = named(name);
      axis.axis_label_text_color = ink; axis.major_label_text_color = ink; axis.axis_line_color = soft;
      axis.major_tick_line_color = soft; axis.minor_tick_line_color = null;
    }
    named("legend").label_text_color = ink;
    named("legend").background_fill_color = band;
    named("grid").grid_line_color = line;
  }

  function draw() {
    busy = true;
    const P = scene.positions, rows = view ? view.rows : null;
    nodes.data = {
      x: P.map(p => p[0]), y: P.map(p => p[1]), id: P.map((_, k) => k), name: scene.names,
      share: P.map((_, k) => rows && rows[k].value !== null ? rows[k].value : 0),
      number: P.map((_, k) => !rows || rows[k].looks || scene.n > 60 || innerWidth < 560 ? "" : rows[k].share),
      words: P.map((_, k) => !rows ? "" : rows[k].looks ? "looks" : `share ${rows[k].share}, epsilon ${rows[k].epsilon}: ${rows[k].words}`),
      marker: P.map((_, k) => chosen.includes(k) ? "square" : rows && rows[k].determined ? "diamond" : "circle"),
      size: P.map((_, k) => (chosen.includes(k) ? 1.15 : rows && rows[k].determined ? 1.35 : 1) * (scene.n > 60 ? 11 : 20)),
      thick: P.map((_, k) => chosen.includes(k) ? 4 : 1.2),
      label: P.map((_, k) => scene.n <= 60 ? scene.names[k] : ""),
    };
    const ends = (list, k, c) => list.map(e => P[e[k]][c]);
    const segments = list => ({x0: ends(list, 0, 0), y0: ends(list, 0, 1), x1: ends(list, 1, 0), y1: ends(list, 1, 1)});
    edges.data = segments(scene.edges);
    const some = scene.partners && scene.partners.length < scene.n * (scene.n - 1) / 2 ? scene.partners : [];
    mates.data = segments(some);
    nodes.selected.indices = [];
    if (!tool.active) for (const [range, c] of [[plot.x_range, 0], [plot.y_range, 1]]) {
      const at = P.map(p => p[c]), low = Math.min(...at), high = Math.max(...at), pad = 0.14 * (high - low || 1);
      range.setv({start: low - pad, end: high + pad});
    }
    busy = false;
  }

  function choose(list) {
    chosen = [...new Set(list)].sort((a, b) => a - b);
    refresh();
  }

  nodes.selected.properties.indices.change.connect(() => {
    const hit = nodes.selected.indices;
    if (busy || !hit.length) return;
    const last = hit[hit.length - 1];
    setTimeout(() => {
      if (last >= scene.n) return;
      if (!shift) choose([last]);
      else choose(chosen.includes(last) && chosen.length > 1 ? chosen.filter(v => v !== last) : [...chosen, last]);
    }, 0);
  });
  let shift = false;
  $("graph").addEventListener("pointerdown", e => { shift = e.shiftKey; }, true);
  $("graph").addEventListener("pointerup", e => { shift = e.shiftKey; }, true);

  // ---- the words and the table -----------------------------------------------------------------------------
  const element = (tag, text, options = {}) => Object.assign(document.createElement(tag), {textContent: text}, options);

  function table() {
    const body = $("nodes").tBodies[0];
    if (body.rows.length !== scene.n || body.dataset.names !== scene.names.join("\n")) {
      body.replaceChildren();
      body.dataset.names = scene.names.join("\n");
      scene.names.forEach((name, v) => {
        const row = body.insertRow();
        const head = document.createElement("th");
        head.scope = "row";
        const button = element("button", name, {type: "button"});
        button.addEventListener("click", e => choose(e.shiftKey ? [...chosen, v] : [v]));
        head.append(button);
        row.append(head);
        const box = Object.assign(document.createElement("input"), {type: "checkbox"});
        box.setAttribute("aria-label", name + " colludes");
        box.addEventListener("change", () => {
          if (box.checked) choose([...chosen, v]);
          else if (chosen.length > 1) choose(chosen.filter(u => u !== v));
          else box.checked = true;
        });
        row.insertCell().append(box);
        row.insertCell().className = "words";
        for (let k = 0; k < 5; k++) row.insertCell().className = "num";
      });
    }
    view.rows.forEach((learned, v) => {
      const row = body.rows[v], cells = row.cells;
      row.className = learned.looks ? "looks" : learned.determined ? "known" : "";
      cells[0].firstChild.setAttribute("aria-pressed", String(learned.looks));
      cells[1].firstChild.checked = learned.looks;
      const values = [learned.share, learned.epsilon, learned.published, learned.published_epsilon, learned.looks ? "–" : scene.local.epsilon];
      values.forEach((text, k) => { cells[k + 3].textContent = text; });
      cells[2].textContent = learned.looks ? "looks" : learned.words + (learned.label === "exact" ? "" : ` (${learned.label})`);
    });
  }

  function facts() {
    const list = $("facts");
    list.replaceChildren();
    const put = (name, text) => { if (text) list.append(element("dt", name), element("dd", text)); };
    put("graph", `${scene.graph.length > 60 ? "drawn" : scene.graph}: ${scene.n} participants, ${scene.edges.length} links`);
    put("plan", `${scene.algorithm} over ${scene.protocol}` + (scene.steps > 1 ? `, ${scene.steps} steps` : ""));
    put("noise", `${scene.noise} times the clip`);
    put("protects", `when ${scene.adjacency}`);
    put("local privacy", `epsilon ${scene.local.epsilon} at delta ${scene.delta}: the best guess is right ${scene.local.words}, whatever the others do`);
    put("error", scene.error ? `± ${scene.error}; ` + scene.useful.words : scene.useful.words);
    put("useful", scene.useful.verdict);
    put("cost", scene.cost);
    if (scene.partners) put("partners", `${scene.partners.length} pairs share keys` + (scene.partners.length < scene.n * (scene.n - 1) / 2 ? " (dashed)" : ": everybody with everybody"));
    for (const note of scene.notes) put("note", note);
  }

  async function refresh() {
    const turn = ++queries;
    try {
      const next = data.live ? await ask("view", {observers: chosen}) : lookedUp();
      if (turn !== queries) return;
      view = next;
      say("");
    } catch (problem) { if (turn === queries) { say(problem.message); document.body.dataset.ready = String(turn); } return; }
    $("summary").textContent = view.summary;
    $("computes").textContent = view.computes;
    draw();
    table();
    document.body.dataset.ready = String(turn);
    document.body.dataset.observers = view.observers.join(",");
    document.body.dataset.rounds = String(view.rounds);
    try {
      const over = !scene.adjustable ? null : data.live ? await ask("course", {observers: chosen}) : data.courses[chosen.join(",")] ?? null;
      if (turn === queries) showCourse(over);
    } catch (problem) { if (turn === queries) say(problem.message); }
  }

  function showCourse(over) {
    $("course-part").hidden = !over;
    if (!over) return;
    coursePlot.x_range.setv({start: over.rounds[0] - 0.3, end: over.rounds[over.rounds.length - 1] + 0.3});
    const none = over.rounds.map(() => NaN);
    course.data = {rounds: over.rounds, worst: over.worst, mean: over.mean, published: over.published ?? none};
    $("course-words").textContent = over.words;
    document.body.dataset.course = String(over.rounds.length);
  }

  // ---- the plan --------------------------------------------------------------------------------------------
  function slider() {
    $("rounds-row").hidden = !scene.adjustable;
    const range = $("rounds");
    range.max = Math.max(scene.most_rounds, 1);
    range.value = scene.rounds;
    $("rounds-shown").value = scene.rounds;
  }

  function fill() {
    const form = $("setting");
    if (!form) return;
    for (const [name, value] of Object.entries(setting)) {
      const field = form.elements[name];
      if (field) field.value = value === null || value === undefined ? "" : String(value);
    }
    if (setting.edges) form.elements.graph.value = "drawn";
    else if (!setting.graph) form.elements.graph.value = "as in the file";
    fit();
    for (const id of ["draw", "add", "join", "remove"]) $(id).disabled = !scene.can_draw;
  }

  function fit() {
    const form = $("setting");
    for (const label of form.querySelectorAll("[data-for]"))
      label.hidden = !label.dataset.for.split(" ").includes(form.elements.protocol.value);
  }

  async function change(next) {
    const before = setting;
    setting = {...setting, ...next};
    try {
      scene = await ask("scene");
      setting = {...scene.setting, positions: setting.edges ? scene.positions : null};
      chosen = chosen.filter(v => v < scene.n);
      if (!chosen.length) chosen = [0];
      say("");
      fill(); slider(); facts();
      if ($("matrix-details").open) matrix();
      await refresh();
    } catch (problem) { setting = before; say(problem.message); draw(); document.body.dataset.ready = String(++queries); }
  }

  async function matrix() {
    const place = $("matrix");
    let content;
    try {
      content = data.live ? await ask("matrix") : data.matrices[scene.adjustable ? $("rounds").value : scene.rounds];
    } catch (problem) { place.textContent = problem.message; return; }
    if (!content) { place.textContent = "Too many participants for a matrix on a page."; return; }
    const grid = document.createElement("table"), head = grid.createTHead().insertRow();
    head.append(element("th", "learned of \\ by", {scope: "col"}));
    scene.names.forEach(name => head.append(element("th", name, {scope: "col", className: "num"})));
    const body = grid.createTBody();
    content.shown.forEach((texts, u) => {
      const row = body.insertRow();
      row.append(element("th", scene.names[u], {scope: "row"}));
      texts.forEach((text, v) => {
        const cell = row.insertCell();
        cell.textContent = text;
        const value = content.values[u][v];
        if (value === null) cell.className = "own";
        else cell.style.background = data.palette[Math.min(data.palette.length - 1, Math.floor(value * data.palette.length))];
      });
    });
    place.replaceChildren(grid);
    document.body.dataset.matrix = String(view.rounds);
  }

  $("matrix-details").addEventListener("toggle", () => { if ($("matrix-details").open) matrix(); });
  let later = null;
  $("rounds").addEventListener("input", () => {
    $("rounds-shown").value = $("rounds").value;
    clearTimeout(later);
    later = setTimeout(async () => {
      if (data.live) await change({rounds: Number($("rounds").value)});
      else { await refresh(); if ($("matrix-details").open) matrix(); }
    }, data.live ? 60 : 0);
  });

  if (data.live) {
    $("setting").addEventListener("change", fit);
    $("setting").addEventListener("submit", e => {
      e.preventDefault();
      const f = $("setting").elements, next = {};
      const graph = f.graph.value.trim();
      if (graph !== "drawn" && graph !== "as in the file" && graph !== (setting.graph ?? ""))
        Object.assign(next, {graph, edges: null, names: null, positions: null, rounds: null});
      if (f.protocol.value !== setting.protocol) next.rounds = null;
      next.protocol = f.protocol.value;
      next.tree = f.tree.value || "bfs";
      next.fresh = Number(f.fresh.value) || 0.1;
      next.partners = f.partners.value === "" ? null : Number(f.partners.value);
      next.tolerate = Number(f.tolerate.value) || 1;
      next.noise = Number(f.noise.value);
      next.delta = Number(f.delta.value);
      next.seed = Number(f.seed.value) || 0;
      change(next);
    });

    const drawn = (names, edges, positions) => change({graph: null, edges, names, positions, rounds: setting.rounds});
    const copy = () => [scene.names.slice(), scene.edges.map(e => e.slice()), scene.positions.map(p => p.slice())];
    const fresh = names => { let k = names.length; while (names.includes("node " + k)) k++; return "node " + k; };
    const add = (place = null) => {
      const [names, links, points] = copy();
      const near = points[chosen[0]];
      const turn = 2.4 * names.length;
      points.push(place ?? [near[0] + 0.35 * Math.cos(turn), near[1] + 0.35 * Math.sin(turn)]);
      for (const v of chosen) links.push([v, names.length]);
      names.push(fresh(names));
      drawn(names, links, points);
    };
    $("add").addEventListener("click", () => add());
    $("join").addEventListener("click", () => {
      if (chosen.length !== 2) return say("Choose two participants to join or part.");
      const [names, links, points] = copy(), [a, b] = chosen;
      const rest = links.filter(e => !(e.includes(a) && e.includes(b)));
      drawn(names, rest.length < links.length ? rest : [...links, [a, b]], points);
    });
    $("remove").addEventListener("click", () => {
      const removed = new Set(chosen), place = new Map();
      scene.names.forEach((_, v) => { if (!removed.has(v)) place.set(v, place.size); });
      if (place.size < 2) return say("At least two participants must stay.");
      const [names, links, points] = copy();
      const rest = links.filter(e => !removed.has(e[0]) && !removed.has(e[1])).map(e => e.map(v => place.get(v)));
      const before = chosen;
      chosen = [0];
      drawn(names.filter((_, v) => !removed.has(v)), rest, points.filter((_, v) => !removed.has(v))).then(() => {
        if (scene.names.length === names.length) { chosen = before; refresh(); }
      });
    });
    $("draw").addEventListener("click", () => {
      const on = $("draw").getAttribute("aria-pressed") !== "true";
      $("draw").setAttribute("aria-pressed", String(on));
      $("draw-help").hidden = !on;
      tool.active = on;
      tap.active = !on;
    });
    nodes.properties.data.change.connect(() => moved());
    nodes.patching.connect(() => moved());
    nodes.streaming.connect(() => moved());
    const moved = () => {
      if (busy || !tool.active) return;
      const x = Array.from(nodes.data.x), y = Array.from(nodes.data.y);
      if (x.length === scene.n) {
        scene.positions = x.map((_, k) => [x[k], y[k]]);
        if (setting.edges) setting.positions = scene.positions;
        const ends = (k, c) => scene.edges.map(e => scene.positions[e[k]][c]);
        edges.data = {x0: ends(0, 0), y0: ends(0, 1), x1: ends(1, 0), y1: ends(1, 1)};
      } else if (x.length > scene.n) {
        add([x[x.length - 1], y[y.length - 1]]);
      } else draw();
    };
  }

  // ---- saving ----------------------------------------------------------------------------------------------
  function save(name, blob) {
    const link = Object.assign(document.createElement("a"), {href: URL.createObjectURL(blob), download: name});
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  $("save-plan").disabled = !scene.by_hand;
  $("save-plan").addEventListener("click", async () => {
    try {
      save("plan.toml", new Blob([data.live ? (await ask("plan")).text : data.plan], {type: "application/toml"}));
    } catch (problem) { say(problem.message); }
  });
  const picture = async kind => {
    const layer = plotView.export(kind, true);
    save("network." + kind, await layer.to_blob());
  };
  $("save-svg").addEventListener("click", () => picture("svg"));
  $("save-png").addEventListener("click", () => picture("png"));

  dark.addEventListener("change", colors);
  colors(); fill(); slider(); facts();
  await refresh();
})();
