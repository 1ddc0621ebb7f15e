// The reader of documents, and the news of a run that goes on. Only asks the server that the page is from, and
// puts what it answers into the page as text, never as markup; the page itself comes as the server escaped it.
"use strict";
(function () {
  const by = (id) => document.getElementById(id);
  let shown = null, made = null, asked = 0;

  async function ask(path, values) {
    const query = new URLSearchParams(values || {});
    const answer = await fetch(path + (query.size ? "?" + query : ""), { credentials: "omit", cache: "no-store" });
    const found = await answer.json();
    if (!answer.ok) throw new Error(found.error || answer.statusText);
    return found;
  }
  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }
  const whole = (value) => Math.round(value).toLocaleString("en");

  function spans(tokens, first, here) {
    return tokens.map(([id, text, separator], at) => {
      const one = element("span", text || "·", separator ? "t eot" : "t");
      one.title = id + " at " + (first + at) + (separator ? ", the separator" : "");
      if (first + at === here) one.classList.add("here");
      return one;
    });
  }

  function show(found, here, quietly) {
    shown = found;
    by("shown").hidden = false;
    by("shown-title").textContent = found.number
      ? "Document " + whole(found.number) + " of " + whole(found.documents) + " in " + found.shard + (found.in_run ? ", " + whole(found.in_run) + " of the run" : "")
      : "The end of a document that begins earlier, in " + found.shard;
    const parts = [found.shard + ":" + found.begin, "row " + (found.row === null ? "unknown" : whole(found.row)) + " of " + found.path, whole(found.end - found.begin) + " tokens here"];
    const place = by("shown-place");
    place.replaceChildren(element("bdi", parts.join(" · ")));
    for (const [text, there] of [["it begins in ", found.continued_from], ["it goes on in ", found.continued_in]]) {
      if (!there) continue;
      const link = element("a", there.shard + ":" + there.offset);
      link.href = "#token=" + there.shard + ":" + there.offset;
      place.append(" · " + text, link);
    }
    by("shown-text").replaceChildren(...spans(found.tokens, found.first, here));
    by("rest").hidden = found.first + found.tokens.length >= found.end;
    by("traced").hidden = true;
    const token = here === undefined ? found.begin : here;
    const trace = found.program + " trace " + found.run + " " + found.shard + ":" + token;
    by("command").textContent = trace + (found.in_run ? "\n" + found.program + " show " + found.run + " --document " + found.in_run : "");
    by("shard").value = found.shard;
    by("number").value = found.number || "";
    by("offset").value = by("document").value = "";
    if (!quietly) history.replaceState(null, "", "#token=" + found.shard + ":" + token);
    const marked = document.querySelector("#shown-text .here");
    if (marked) marked.scrollIntoView({ block: "center" });
    by("told").textContent = "";
  }

  // Of several that were asked for, the last one is shown, whichever answer comes last.
  async function go(values, here, quietly) {
    const turn = ++asked;
    by("told").textContent = "Reading …";
    try {
      const found = await ask("api/document", values);
      if (turn === asked) show(found, here, quietly);
    } catch (error) { if (turn === asked) by("told").textContent = error.message; }
  }
  function goToToken(place, here) {
    const at = place.lastIndexOf(":"), offset = Number(place.slice(at + 1));
    return go({ shard: place.slice(0, at), token: offset }, here ? offset : undefined);
  }

  by("go").addEventListener("submit", (event) => {
    event.preventDefault();
    const shard = by("shard").value.trim(), number = by("number").value, offset = by("offset").value;
    if (by("document").value) go({ document: by("document").value });
    else if (offset) go({ shard, token: offset }, Number(offset));
    else go({ shard, number: number || 1 });
  });
  const step = (by_how_many) => {
    if (!shown) return go({ shard: by("shard").value.trim(), number: 1 });
    if (by_how_many > 0 && shown.end < shown.shard_tokens) return goToToken(shown.shard + ":" + shown.end);
    if (by_how_many < 0 && shown.begin > 0) return goToToken(shown.shard + ":" + (shown.begin - 1));
    const names = [...by("shards").children].map((one) => one.value), at = names.indexOf(shown.shard) + by_how_many;
    if (at < 0 || at >= names.length) { by("told").textContent = "There is nothing more that way."; return undefined; }
    return by_how_many > 0 ? go({ shard: names[at], token: 0 }) : go({ shard: names[at], token: -1 });
  };
  by("next").addEventListener("click", () => step(1));
  by("previous").addEventListener("click", () => step(-1));
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input, select, textarea")) return;
    if (event.key === "j") step(1);
    else if (event.key === "k") step(-1);
    else if (event.key === "/") { event.preventDefault(); by("needle").focus(); }
  });
  by("rest").addEventListener("click", async () => {
    const first = shown.first + shown.tokens.length;
    try {
      const more = await ask("api/document", { shard: shown.shard, token: first, first });
      shown.tokens.push(...more.tokens);
      by("shown-text").append(...spans(more.tokens, first));
      by("rest").hidden = first + more.tokens.length >= shown.end;
    } catch (error) { by("told").textContent = error.message; }
  });
  by("find").addEventListener("submit", async (event) => {
    event.preventDefault();
    const shard = by("shard").value.trim(), text = by("needle").value;
    if (!text) return;
    let begin = 0;
    const last = /^#token=(.*):(\d+)$/.exec(decodeURIComponent(location.hash));
    if (last && last[1] === shard) begin = Number(last[2]) + 1;
    try {
      for (;;) {
        by("told").textContent = "Searching from token " + whole(begin) + " …";
        const found = await ask("api/search", { shard, text, begin });
        if (found.place) { await go({ shard, token: found.place.offset }, found.place.offset); by("shown").focus(); return; }
        if (found.next >= found.tokens) { by("told").textContent = "It is not in the rest of " + shard + "."; return; }
        begin = found.next;
      }
    } catch (error) { by("told").textContent = error.message; }
  });
  by("trace").addEventListener("click", async () => {
    by("told").textContent = "Looking for its row, here and then on the hub …";
    try {
      const found = await ask("api/trace", { shard: shown.shard, token: shown.begin });
      by("traced").replaceChildren(...found.rows.map(([name, value]) => {
        const row = element("tr"), head = element("th", name);
        head.scope = "row";
        const cell = element("td");
        cell.append(element("bdi", value));
        row.append(head, cell);
        return row;
      }));
      by("traced").hidden = false;
      by("told").textContent = "";
    } catch (error) { by("told").textContent = error.message; }
  });
  const followHash = () => {
    const found = /^#token=(.+:\d+)$/.exec(decodeURIComponent(location.hash));
    if (found) goToToken(found[1], true);
    else showFirst();
  };
  // Something to read, before anybody has asked for it.
  function showFirst() {
    const first = by("shards").dataset.first;
    if (!first || shown || asked) return;
    by("shard").value = by("shard").value || first;
    go({ shard: first, number: 1 }, undefined, true);
  }
  addEventListener("hashchange", followHash);
  followHash();

  // --- news

  function bar(label, value, title) {
    const line = element("p"), meter = element("progress");
    meter.max = 1;
    meter.value = value;
    meter.setAttribute("aria-label", title);
    line.append(element("span", label), meter);
    return line;
  }
  function news(found) {
    const place = by("live"), parts = [];
    for (const one of [by("now"), document.querySelector('nav a[href="#now"]')]) one.hidden = found.complete && !found.at_work;
    if (!found.at_work) parts.push(element("p", found.complete ? "Nobody is at work on it: it is complete." : "Nobody is at work on it, and it is not finished.", "quiet"));
    else parts.push(element("p", found.at_work, "quiet"));
    if (found.latest) {
      const { share, line, details } = found.latest;
      parts.push(bar(line, share, "How far the run is"), element("p", details, "quiet"));
      for (const one of [...found.latest.running, ...found.latest.downloads]) parts.push(bar(one.title + " · " + one.line, one.share, one.title));
    }
    if (found.notices.length) {
      const list = element("ul", undefined, "log");
      for (const one of found.notices) {
        const item = element("li");
        item.append(element("span", one.after + " ", "quiet"), element("bdi", one.text));
        list.append(item);
      }
      parts.push(element("h3", "Notices"), list);
    }
    place.replaceChildren(...parts);
    if (found.speed) charts.drawSpeed(found.speed);
  }
  // There may be more of them when the run has gone on.
  const named = (details) => (details.closest("figure, section").id || "") + details.firstElementChild.textContent.split(",")[0];
  async function renew() {
    const answer = await fetch("./", { credentials: "omit", cache: "no-store" });
    if (!answer.ok) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const open = new Set([...document.querySelectorAll(".facts details[open]")].map(named));
    const fresh = page.querySelectorAll(".facts");
    document.querySelectorAll(".facts").forEach((one, at) => one.replaceWith(fresh[at]));
    for (const one of document.querySelectorAll(".facts details")) if (open.has(named(one))) one.open = true;
    for (const part of ["header .state", "#shards", "#readable"]) document.querySelector(part).replaceWith(page.querySelector(part));
    charts.drawAll();
    showFirst();
  }
  async function look() {
    try {
      const found = await ask("api/now");
      if (made !== null && found.made !== made) await renew();
      made = found.made;
      news(found);
    } catch (error) {
      by("live").replaceChildren(element("p", "fwconvert browse does not answer any more: " + error.message, "note"));
    }
    setTimeout(look, document.hidden ? 10000 : 2000);
  }
  look();
})();
