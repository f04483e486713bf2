/** The console: puts its parts together and passes on what an operator does. */

import { Refusal, wantsKey } from "../asking.js";
import { byId, element, icon, setText } from "../call/dom.js";
import { Board } from "./board.js";
import { CallView } from "./call_view.js";
import { confirm } from "./confirm.js";
import { EnginesView } from "./engines_view.js";
import { FiguresView } from "./figures_view.js";
import { drain, hangUp, hasKey, readCall, setKey } from "./gateway.js";
import { LiveView, RecentView } from "./lists_view.js";
import { Recent } from "./recent.js";
import { Stream } from "./stream.js";
import { agentOf, statusOf, troubleOf } from "./words.js";

const LINKS = { connecting: "Connecting", live: "Live", lost: "Reconnecting", paused: "Paused" };

/** @type {Record<string, [string, string]>} */
const WAITS = {
  gateway_unreachable: ["The gateway does not answer", "The console tries again by itself."],
  warming: ["The gateway is starting", "Its models are loading; it takes a few seconds more."],
  too_many_consoles: ["Too many consoles are open", "This one opens as soon as another is closed."],
  too_many_attempts: ["Too many wrong keys", "The gateway asks you to wait a little before the next attempt."],
};

const board = new Board();
const asked = { open: openCall, hangUp: askHangUp };
const views = {
  figures: new FiguresView(byId("figures")),
  live: new LiveView({ list: byId("live-rows"), empty: byId("live-empty"), count: byId("live-count") }, asked),
  recent: new RecentView({ list: byId("recent-rows"), empty: byId("recent-empty"), more: byId("more") }, asked),
  call: new CallView(byId("detail"), { hangUp: askHangUp, close: closeCall }),
  engines: new EnginesView({ body: byId("engines-body"), overload: byId("overload") }),
};
const recent = new Recent(
  /** @type {HTMLInputElement} */ (byId("filter")),
  byId("more"),
  (found, hasMore, query) => views.recent.show(found, hasMore, query, board.openId),
);
const stream = new Stream({ told, link: showLink, refused: (refusal) => openLogin(refusal) });

// --- what is told ---------------------------------------------------------------------------------------------

/** @param {string} event @param {any} what */
function told(event, what) {
  if (event === "end") return notice("end", "info", "The server has drained", "It takes no calls any more, and stops.");
  if (event === "snapshot") {
    notice("end", "info", "");
    show("board");
    recent.refresh(0);
  }
  if (board.apply(event, what)) recent.refresh();
  if (event === "snapshot" && board.openId === null) openNamed();
  else if (board.open && !board.open.whole) fetchCall(board.open.id);
  if (what.points || event === "snapshot") views.figures.draw(board);
  draw();
}

function draw() {
  if (!board.server) return;
  const [tone, text] = statusOf(board.server);
  const state = byId("server-state");
  setText(state, text);
  state.className = `pill state tone ${tone}`;
  state.hidden = false;
  const draining = board.server.stage !== "open";
  byId("drain").hidden = draining;
  const [title, reason] = troubleOf(board.server);
  notice("unwell", "bad", title, reason);
  notice("gateway", "warn", board.server.notice ? "Engines here are fakes" : "", board.server.notice);
  views.live.draw(board);
  views.engines.draw(board);
  views.call.draw(board.open, board.open ? board.age(board.open.summary) : 0);
}

/** @param {"connecting" | "live" | "lost" | "paused"} link @param {Refusal | null} refusal */
function showLink(link, refusal) {
  const pill = byId("link");
  if (link === "connecting" && pill.dataset.link === "lost") return;
  pill.dataset.link = link;
  setText(pill, LINKS[link]);
  byId("console").dataset.link = link;
  byId("sign-out").hidden = !hasKey();
  if (!refusal) return;
  const [title, text] = WAITS[refusal.code] ?? ["The gateway refuses the console", `It says: ${refusal.code}.`];
  setText(byId("waiting-title"), title);
  setText(byId("waiting-text"), text);
  if (byId("console").dataset.view === "waiting") show("waiting");
}

/** @param {"waiting" | "login" | "board"} view */
function show(view) {
  byId("console").dataset.view = view;
  for (const name of ["waiting", "login", "board"]) byId(name).hidden = name !== view;
  byId("link").hidden = view === "login";
  if (view !== "board") byId("drain").hidden = byId("server-state").hidden = true;
}

/** A notice by name; without a title it goes. @param {string} name @param {string} tone @param {string} title @param {string} [text] */
function notice(name, tone, title, text = "") {
  const known = byId("notices").querySelector(`[data-notice="${name}"]`);
  if (title === "") return known?.remove();
  const key = `${title} ${text}`;
  if (known instanceof HTMLElement && known.dataset.key === key) return;
  const made = element(
    "div",
    { class: `notice ${tone}`, "data-notice": name, "data-key": key },
    icon(tone === "info" ? "info" : "alert"),
    element("div", {}, element("strong", {}, title), text),
  );
  if (known) known.replaceWith(made);
  else byId("notices").append(made);
}

/** The call that the address names. */
function openNamed() {
  let name = "";
  try {
    name = decodeURIComponent(location.hash.slice(1));
  } catch {
    // Nothing that we have written.
  }
  const partOfThePage = document.getElementById(name) !== null;
  if (name !== "" && !partOfThePage && name !== board.openId) openCall(name);
}

// --- one call -------------------------------------------------------------------------------------------------

/** @param {string} id */
async function openCall(id) {
  if (board.openId === id) return closeCall();
  board.shut();
  board.openId = id;
  history.replaceState(null, "", `#${encodeURIComponent(id)}`);
  draw();
  views.recent.rows.mark(id);
  await fetchCall(id);
  if (board.openId === id) views.call.focus();
}

const NOT_KEPT = ["This call is not kept any more", "It ended too long ago, or the server was started anew."];
const NOT_READ = ["This call cannot be read now", "Open it again in a moment."];
const fetching = new Set();

/** @param {string} id */
async function fetchCall(id) {
  if (fetching.has(id)) return;
  fetching.add(id);
  try {
    const record = await readCall(id);
    if (board.openId === id) board.merge(record, true);
    notice("action", "warn", "");
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    if (board.openId === id && (error.status === 404 || !board.open)) {
      const [title, text] = error.status === 404 ? NOT_KEPT : NOT_READ;
      notice("action", "warn", title, text);
      closeCall();
    }
  } finally {
    fetching.delete(id);
    draw();
  }
}

function closeCall() {
  const id = board.openId;
  board.shut();
  history.replaceState(null, "", location.pathname);
  draw();
  views.recent.rows.mark(null);
  if (id === null) return;
  views.live.rows.focus(id);
  views.recent.rows.focus(id);
}

/** @param {string} id */
async function askHangUp(id) {
  const call = board.calls.get(id);
  const who = call ? agentOf(call.summary) : id;
  if (!(await confirm(`Hang up the call with ${who}?`, "The caller is cut off at once, without a goodbye.", "Hang up"))) return;
  await act(() => hangUp(id));
}

byId("drain").addEventListener("click", async () => {
  const { live, drain_s: seconds } = board.server;
  const calls = live === 0 ? "No call is up now." : `${live === 1 ? "One call is" : `${live} calls are`} up now.`;
  const text =
    `${calls} New calls are refused from now on. Calls that are up may go on for ${Math.round(seconds)} s; then callers ` +
    "hear a goodbye and are hung up. After the last call the server stops. This cannot be taken back.";
  if (await confirm("Drain the server?", text, "Drain")) await act(drain);
});

/** @param {() => Promise<unknown>} action */
async function act(action) {
  try {
    await action();
    notice("action", "warn", "");
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    if (wantsKey(error.code)) return openLogin(error);
    if (error.code === "call_not_found") notice("action", "info", "That call has ended already");
    else notice("action", "bad", "That could not be done", WAITS[error.code]?.[0] ?? `The gateway says: ${error.code}.`);
  }
}

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && board.openId !== null && !document.querySelector("dialog[open]")) closeCall();
  const typing = event.target instanceof Element && event.target.closest("input, select, textarea");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    byId("filter").focus();
  }
});

window.addEventListener("hashchange", openNamed);

// Ages grow between two messages.
setInterval(() => document.hidden || draw(), 1_000);

// --- coming in ------------------------------------------------------------------------------------------------

/** @param {Refusal} refusal */
function openLogin(refusal) {
  stream.close();
  const wrong = refusal.code !== "missing_api_key";
  setKey(null);
  const problem = byId("login-problem");
  setText(problem, refusal.code === "key_out_of_scope" ? "That key opens calls, not the console." : "That key is not accepted.");
  problem.hidden = !wrong;
  byId("sign-out").hidden = true;
  show("login");
  byId("login-key").setAttribute("aria-invalid", String(wrong));
  byId("login-key").focus();
}

byId("login-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const input = /** @type {HTMLInputElement} */ (byId("login-key"));
  const key = input.value.trim();
  if (key === "") return;
  setKey(key);
  input.value = "";
  show("waiting");
  stream.open();
});

byId("sign-out").addEventListener("click", () => {
  setKey(null);
  closeCall();
  board.calls.clear();
  draw();
  recent.clear();
  openLogin(new Refusal("missing_api_key", 401));
});

stream.open();
