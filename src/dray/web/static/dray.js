// What pages do beyond what HTML does: they stay up to date, show local times, copy, select, and listen to keys.
// Everything works without it. It reacts to attributes (data-…) and knows nothing of single pages.
"use strict";
(() => {
  const body = document.body;
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const one = (selector, root = document) => root.querySelector(selector);
  const main = () => one("#main");

  // Storage may be refused: then a choice lasts as long as the page.
  const kept = (storage, name, fallback) => { try { return window[storage].getItem(name) ?? fallback; } catch { return fallback; } };
  const keep = (storage, name, value) => { try { window[storage].setItem(name, value); } catch { /* see above */ } };

  // Live: the stream names topics, the page fetches its own part and morphs it.

  const WORDS = {
    live: ["Live", "This page shows changes as they happen."],
    polling: ["Live", `This page asks for changes every ${body.dataset.poll} seconds.`],
    held: ["Held", "This page waits until you have closed what you opened."],
    paused: ["Paused", "This page does not change until you go on."],
    offline: ["Offline", "The dashboard or its database does not reply; trying again."],
    ended: ["Signed out", "Load the page again to go on."],
  };
  const EVERY = 500;  // at most one fetch in this time; the server looks each 250, so a change is seen within a second
  const POLL = 1000 * body.dataset.poll;
  const SELECTION_HOLDS = 30000;  // how long selected text keeps a page from changing

  const topics = () => (main()?.dataset.topics || "").split(" ").filter(Boolean);
  const isAway = () => document.hidden || isPaused || isEnded || !topics().length;
  let isPaused = kept("sessionStorage", "dray.paused", "") === "yes";
  let isEnded = false;
  let stream = null, failures = 0;   // of the stream
  let pollTimer = 0, streamTimer = 0;
  let fetchTimer = 0, fetchedAt = 0, misses = 0, isFetching = false, isWanted = false, etag = "";
  let selectedAt = 0;

  function say(state) {
    const box = one("[data-live]");
    if (!box || box.dataset.live === state) return;
    box.dataset.live = state;
    one("[data-word]", box).textContent = WORDS[state][0];
    box.title = WORDS[state][1];
  }

  function pauseSoon(failed, first) {  // twice as long after each failure, and not all tabs at the same moment
    return Math.min(60000, first * 2 ** Math.min(failed, 6)) * (0.75 + Math.random() / 2);
  }

  function connect() {
    clearTimeout(streamTimer);
    if (stream || isAway()) return;
    const events = body.dataset.events;
    if (!events) return poll();
    stream = new EventSource(events);
    stream.addEventListener("open", () => { failures = 0; clearTimeout(pollTimer); pollTimer = 0; say("live"); refresh(); });
    stream.addEventListener("topics", event => {
      const mine = topics();
      if (event.data.split(" ").some(topic => mine.includes(topic))) refresh();
    });
    stream.addEventListener("error", () => {
      // There are too many streams, or the server is gone: the pages it still shows are asked for meanwhile.
      drop();
      streamTimer = setTimeout(connect, pauseSoon(failures++, POLL));
      poll();
    });
  }

  function drop() {
    stream?.close();
    stream = null;
  }

  function poll() {
    clearTimeout(pollTimer);
    if (isAway()) return;
    pollTimer = setTimeout(() => { refresh(); poll(); }, POLL);
  }

  function rest() {
    drop();
    for (const timer of [pollTimer, streamTimer, fetchTimer]) clearTimeout(timer);
    pollTimer = fetchTimer = 0;
    isWanted = false;
  }

  function begin() {
    if (isEnded || !topics().length) return;
    say(isPaused ? "paused" : misses ? "offline" : stream || !body.dataset.events ? "live" : "polling");
    connect();
  }

  function refresh() {
    if (isAway()) return;
    if (isFetching) { isWanted = true; return; }
    if (fetchTimer) return;
    const first = misses ? pauseSoon(misses - 1, EVERY) : EVERY;
    const wait = fetchedAt + first - performance.now();
    if (wait > 0) {
      fetchTimer = setTimeout(() => { fetchTimer = 0; refresh(); }, wait);
      return;
    }
    if (isHeld()) {
      say("held");
      fetchTimer = setTimeout(() => { fetchTimer = 0; refresh(); }, EVERY);
      return;
    }
    load();
  }

  // A question that is open is about a row: the rows must not move below it. Nor below text that is being selected.
  function isHeld() {
    if (one("#main details.ask[open], dialog[open]")) return true;
    const selection = getSelection();
    const isSelected = selection && !selection.isCollapsed && main()?.contains(selection.anchorNode);
    selectedAt = isSelected ? selectedAt || performance.now() : 0;
    return isSelected && performance.now() - selectedAt < SELECTION_HOLDS;
  }

  async function load() {
    isFetching = true;
    isWanted = false;
    fetchedAt = performance.now();
    const url = location.href.split("#")[0];
    try {
      const answer = await fetch(url, {
        headers: { "HX-Request": "true", "If-None-Match": etag },
        cache: "no-store", redirect: "manual", signal: AbortSignal.timeout(15000),
      });
      if (answer.type === "opaqueredirect" || answer.status === 401 || answer.status === 403) return end();
      if (answer.status >= 500) throw new Error(answer.statusText);
      const text = answer.status === 304 ? "" : await answer.text();
      misses = 0;
      if (isAway() || location.href.split("#")[0] !== url) return;
      if (isHeld()) { isWanted = true; return; }
      etag = answer.headers.get("ETag") || "";
      if (text) await morph(text);
      say(stream || !body.dataset.events ? "live" : "polling");
    } catch {
      misses += 1;
      isWanted = true;
      if (!isAway()) say("offline");
    } finally {
      isFetching = false;
      if (isWanted) refresh();
    }
  }

  function end() {
    isEnded = true;
    rest();
    say("ended");
  }

  // How to find what has the focus again, if its row was made again.
  function sameAs(element) {
    if (!main()?.contains(element)) return "";
    const named = (name, of = element) => of.getAttribute(name) === null ? "" : `[${name}="${CSS.escape(of.getAttribute(name))}"]`;
    if (element.id) return `#${CSS.escape(element.id)}`;
    if (element.matches("a[href]")) return `a${named("href")}`;
    const form = element.closest("form") || one("form", element.closest("details") || element);
    const part = element.localName + named("name") + named("value") + named("formaction");
    if (!form) return "";
    return element.matches("summary") ? `details:has(form${named("action", form)}) > summary` : `form${named("action", form)} ${part}`;
  }

  async function morph(text) {
    const focused = document.activeElement, same = sameAs(focused);
    const ticked = new Set(all("[data-select] input[name=id]:checked").map(box => box.value));
    const following = all("[data-follow]").filter(box => box.scrollHeight - box.scrollTop - box.clientHeight < 4).map(box => box.id);
    await htmx.swap({ text, target: "#main", select: "#main", swap: "outerMorph", sourceElement: main() });
    for (const box of all("[data-select] input[name=id]")) box.checked = ticked.has(box.value);  // whichever row it is in now
    for (const id of following) { const box = document.getElementById(id); if (box) box.scrollTop = box.scrollHeight; }
    if (same && document.activeElement !== focused) one(same, main())?.focus({ preventScroll: true });
    times();
    selections();
  }

  // What the visitor has opened, typed or chosen stays; so does what this script has set.
  htmx.registerExtension("dray", {
    htmx_before_morph_attr(element, { attrName }) {
      if (attrName === "open" && element instanceof HTMLDetailsElement) return false;
      const isTyped = "defaultValue" in element && element.type !== "hidden" && element.value !== element.defaultValue;
      return !(attrName === "value" && isTyped);
    },
  });

  function pause() {
    isPaused = !isPaused;
    keep("sessionStorage", "dray.paused", isPaused ? "yes" : "no");
    if (isPaused) { rest(); say("paused"); } else begin();
    pauseButton();
  }

  function pauseButton() {
    const button = one("[data-pause]");
    if (!button) return;
    button.hidden = !topics().length;
    const word = isPaused ? "Go on with live updates" : "Pause live updates";
    one("use", button).setAttribute("href", isPaused ? "#i-running" : "#i-pause");
    one(".sr", button).textContent = word;
    button.title = `${word} (p)`;
  }

  document.addEventListener("visibilitychange", () => { if (document.hidden) rest(); else { begin(); times(); } });
  addEventListener("pagehide", rest);
  addEventListener("pageshow", event => { if (event.persisted) begin(); });

  // An action's message goes after a while, from the address too: loading the page again would repeat it.
  if (new URLSearchParams(location.search).has("said")) setTimeout(() => {
    const url = new URL(location.href);
    for (const name of ["said", "signed"]) url.searchParams.delete(name);
    history.replaceState(history.state, "", url);
    refresh();
  }, 8000);

  // Colours

  const THEMES = { system: "Colours: as the system", light: "Colours: light", dark: "Colours: dark" };
  let theme = document.documentElement.dataset.theme || "system";

  function themeButton() {
    const button = one("[data-theme-button]");
    if (!button) return;
    button.hidden = false;
    button.title = `${THEMES[theme]} (t)`;
    one(".sr", button).textContent = THEMES[theme];
  }

  function nextTheme() {
    const names = Object.keys(THEMES);
    theme = names[(names.indexOf(theme) + 1) % names.length];
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    keep("localStorage", "dray.theme", theme);
    themeButton();
    tell(THEMES[theme]);
  }

  // Times: the server writes UTC.

  const CLOCK = { hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23" };
  const DAY = { day: "numeric", month: "short" };
  const pad = number => String(number).padStart(2, "0");

  function span(seconds) {  // as the server has it (wording.py)
    if (seconds < 60) return `${Math.floor(seconds)}s`;
    const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60);
    if (minutes < 60) return minutes < 10 ? `${minutes}m${pad(Math.floor(seconds % 60))}s` : `${minutes}m`;
    if (hours < 48) return hours < 10 ? `${hours}h${pad(minutes % 60)}m` : `${hours}h`;
    return `${Math.floor(hours / 24)}d`;
  }

  function ago(when) {
    const seconds = (Date.now() - when) / 1000;
    return seconds >= 0 ? `${span(seconds)} ago` : `in ${span(-seconds)}`;
  }

  const isToday = when => when.toDateString() === new Date().toDateString();
  const SHOWN = {
    ago,
    clock: when => when.toLocaleTimeString("en-GB", CLOCK),
    minute: when => when.toLocaleTimeString("en-GB", { ...CLOCK, second: undefined }),
    day: when => when.toLocaleString("en-GB", { ...CLOCK, second: undefined, weekday: "short" }),
    date: when => when.toLocaleString("en-GB", isToday(when) ? CLOCK : { ...DAY, ...CLOCK, year: "numeric" }),
  };

  function times(selector = "time[data-show]") {
    for (const element of all(selector)) {
      const when = new Date(element.dateTime);
      const show = SHOWN[element.dataset.show];
      if (!show || isNaN(when)) continue;
      const text = show(when);
      if (element.textContent !== text) element.textContent = text;
      if (!element.title) element.title = when.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "long" });
    }
  }
  setInterval(() => { if (!document.hidden) times('time[data-show="ago"]'); }, 1000);

  // Copying and telling

  function tell(text) {
    const region = one("[data-tell]");
    if (region) { region.textContent = ""; requestAnimationFrame(() => { region.textContent = text; }); }
  }

  async function copy(button) {
    try {
      await navigator.clipboard.writeText(button.dataset.copy);
    } catch {  // not on a plain http address of a network
      const area = document.createElement("textarea");
      area.value = button.dataset.copy;
      area.className = "sr";
      body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.classList.add("copied");
    setTimeout(() => button.classList.remove("copied"), 1200);
    tell("Copied.");
  }

  // Selecting rows

  const boxes = table => all("input[name=id]", table);

  function selections() {
    for (const table of all("table[data-select]")) {
      const ticked = boxes(table).filter(box => box.checked);
      for (const box of boxes(table)) box.closest("tr")?.classList.toggle("on", box.checked);
      const header = one("[data-all]", table);
      if (header) {
        header.checked = ticked.length > 0 && ticked.length === boxes(table).length;
        header.indeterminate = ticked.length > 0 && !header.checked;
      }
      const bar = one("[data-selbar]", table.closest("form, section, main"));
      if (!bar) continue;
      bar.hidden = ticked.length === 0;
      for (const number of all("[data-selected]", bar)) number.textContent = ticked.length;
    }
  }

  // Keys

  const PLACES = { o: "/", j: "/jobs", f: "/failures", q: "/queues", w: "/workflows", s: "/schedules", t: "/tasks",
    k: "/workers", m: "/metrics", a: "/actions", y: "/system" };
  let isGoing = 0;  // g was pressed: until when its letter may come

  const row = () => document.activeElement?.closest("[data-row]");

  function step(by) {
    const rows = all("[data-row]");
    const next = rows[row() ? rows.indexOf(row()) + by : by > 0 ? 0 : rows.length - 1];
    (one("a[href]", next) || next)?.focus();
    next?.scrollIntoView({ block: "nearest" });
  }

  function tick() {
    const box = row() && one("input[type=checkbox]", row());
    if (!box) return;
    box.checked = !box.checked;
    selections();
  }

  // Goes to the button, of this row, of the selection, of the page; pressing it is another key.
  function reach(verb) {
    const places = [row(), one("[data-selbar]:not([hidden])"), main()];
    for (const place of places.filter(Boolean)) {
      const found = one(`form[action$="/${verb}"] button, button[formaction$="/${verb}"], button[value="${verb}"]`, place);
      if (!found) continue;
      const question = found.closest("details.ask");
      if (question && !question.contains(document.activeElement)) { question.open = true; }
      found.focus();
      return;
    }
  }

  const KEYS = {
    "/": () => one("#q")?.focus(),
    "?": () => one("#keys")?.showModal(),
    g: () => { isGoing = performance.now() + 1500; },
    j: () => step(1),
    k: () => step(-1),
    x: tick,
    r: () => reach("retry"),
    c: () => reach("cancel"),
    y: () => { const button = one("[data-copy]", row() || main()); if (button) copy(button); },
    p: () => { if (topics().length) pause(); },
    t: nextTheme,
  };

  document.addEventListener("keydown", event => {
    const target = event.target;
    const isTyping = target.closest?.("input:not([type=checkbox]), textarea, select, [contenteditable]");
    if (isTyping && event.key === "Escape") target.blur();
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey || event.isComposing || one("dialog[open]")) return;
    if (performance.now() < isGoing) {
      isGoing = 0;
      const place = PLACES[event.key] && body.dataset.root + PLACES[event.key];
      if (place && all("nav a").some(link => link.getAttribute("href") === place)) { event.preventDefault(); location.assign(place); }
      return;
    }
    if (Object.hasOwn(KEYS, event.key)) { event.preventDefault(); KEYS[event.key](); }
    else if (event.key === "Escape") for (const question of all("details.ask[open]")) question.open = false;
  });

  document.addEventListener("click", event => {
    const button = event.target.closest?.("button");
    if (button?.matches("[data-copy]")) copy(button);
    else if (button?.matches("[data-pause]")) pause();
    else if (button?.matches("[data-theme-button]")) nextTheme();
    else if (button?.matches("[data-keys]")) one("#keys")?.showModal();
    // One question at a time; a click beside it closes it.
    for (const question of all("details.ask[open]")) if (!question.contains(event.target)) question.open = false;
  });

  document.addEventListener("change", event => {
    const table = event.target.closest?.("table[data-select]");
    if (!table) return;
    if (event.target.matches("[data-all]")) for (const box of boxes(table)) box.checked = event.target.checked;
    selections();
  });

  // Begin

  for (const element of all("[data-live], [data-keys]")) element.hidden = false;
  if (!topics().length) for (const element of all("[data-live]")) element.hidden = true;
  const here = one(".side [aria-current]"), menu = here?.closest(".in");
  if (menu) menu.scrollLeft = here.offsetLeft + here.offsetWidth + 40 - menu.clientWidth;  // on a phone, to where it is seen
  themeButton();
  pauseButton();
  times();
  selections();
  begin();
})();
