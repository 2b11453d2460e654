/**
 * The base of every page's script: the URLs of the server's parts, DOM elements, and requests with the user's token.
 *
 * On a server with access control the user signs in with a token. The tab keeps it (sessionStorage) until it is closed
 * or the user signs out. It is sent in the header `Authorization` only, so it stands in no URL and no log; and since
 * the browser never sends it by itself, no other site's page can make the server do anything in the user's name.
 */

const KEY = "tricklecast.token";
const data = document.documentElement.dataset;

/** Whether the server asks for tokens. */
export const hasTokens = data.tokens !== undefined;

/** The channel that the page is about; empty on pages about none. */
export const channel = data.channel ?? "";

/** The URL of all channels, as `http://127.0.0.1:2939/trickle`. */
export const channels = (() => {
  const url = new URL(location.origin);
  if (data.channelsPort) url.port = data.channelsPort;
  return url.origin + (data.base ?? "");
})();

/**
 * The URL of a channel, or of something below it.
 * @param {string} name the channel's name
 * @param {...(string | number)} rest path segments below it, as a seq
 */
export function channelUrl(name, ...rest) {
  return [channels, name, ...rest].map((part, at) => (at ? encodeURIComponent(part) : part)).join("/");
}

/**
 * Makes an element.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Record<string, unknown>} [properties] DOM properties; names with a dash are set as attributes
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[T]}
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-")) made.setAttribute(name, String(value));
    else Object.assign(made, { [name]: value });
  }
  made.append(...children);
  return made;
}

/**
 * Makes an icon of `templates/icons.html`.
 * @param {string} name
 */
export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/**
 * Finds an element of the page's template.
 * @template {HTMLElement} [T=HTMLElement]
 * @param {string} id
 * @returns {T}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element #${id}`);
  return /** @type {T} */ (found);
}

/**
 * What the browser keeps; in a frame of a page that may store nothing, only this page keeps it.
 * @param {() => Storage} open
 */
function storeOf(open) {
  try {
    return open();
  } catch {
    /** @type {Map<string, string>} */
    const values = new Map();
    return {
      /** @param {string} key */
      getItem: (key) => values.get(key) ?? null,
      /** @param {string} key @param {string} value */
      setItem: (key, value) => void values.set(key, value),
      /** @param {string} key */
      removeItem: (key) => void values.delete(key),
    };
  }
}

/** Where the tab keeps the token. */
const store = storeOf(() => window.sessionStorage);
/** The user's choices, for all later visits. */
export const kept = storeOf(() => window.localStorage);

/** The token that the user has signed in with, or null. */
export function token() {
  return store.getItem(KEY);
}

/** Forgets the token, and begins anew without one. */
function signOut() {
  store.removeItem(KEY);
  location.reload();
}

/** @type {Promise<boolean> | null} */
let asking = null;

/**
 * Asks the user for a token. Requests that fail at the same time share one dialog.
 * @param {string} [why] what was wrong with the last one
 * @returns {Promise<boolean>} whether the user has given one
 */
export function signIn(why = "") {
  asking ??= ask(why).finally(() => (asking = null));
  return asking;
}

/** Whether the user is being asked for a token. */
export const isAsking = () => asking !== null;

/** @param {string} why */
function ask(why) {
  const field = element("input", {
    type: "password", name: "token", id: "token-field", required: true, autocomplete: "off", spellcheck: false,
    pattern: "\\s*[!-~]+\\s*", title: "A token has letters, digits and signs of ASCII, and no spaces.",
  });
  const cancel = element("button", { type: "button" }, "Cancel");
  const form = element("form", { method: "dialog" },
    element("h2", { id: "token-title" }, "Sign in"),
    element("p", {}, "This server asks for an access token. This tab keeps it until you close it or sign out."),
    element("label", { htmlFor: "token-field" }, "Access token"),
    field,
    element("p", { className: "notice bad", role: "alert", hidden: !why }, why),
    element("div", { className: "actions" }, cancel, element("button", { className: "primary" }, "Sign in")),
  );
  const dialog = element("dialog", { "aria-labelledby": "token-title" }, form);
  document.body.append(dialog);
  return new Promise((resolve) => {
    let given = false;
    form.addEventListener("submit", () => {
      store.setItem(KEY, field.value.trim());
      given = true;
    });
    cancel.addEventListener("click", () => dialog.close());
    dialog.addEventListener("close", () => {
      dialog.remove();
      showSession();
      resolve(given);
    });
    dialog.showModal();
  });
}

/**
 * Makes a request with the user's token. If the server asks for one (401), so does the page, and asks again.
 * @param {string} url
 * @param {RequestInit} [init]
 * @returns {Promise<Response>} the response; with status 401 if the user does not sign in
 */
export async function request(url, init = {}) {
  for (;;) {
    const sent = token();
    const headers = new Headers(init.headers);
    if (sent) headers.set("Authorization", `Bearer ${sent}`);
    const response = await fetch(url, { cache: "no-store", referrerPolicy: "no-referrer", ...init, headers });
    if (response.status !== 401) return response;
    if (sent !== token()) continue; // the user has signed in meanwhile
    await response.body?.cancel();
    if (!(await signIn(sent ? "The server does not accept this token." : ""))) return response;
  }
}

/**
 * Says in one line why the server has refused a request, in the server's own words if it sent any.
 * @param {Response} response
 */
export async function problem(response) {
  if (response.status === 401) return "Not signed in";
  if (response.status === 403) return "Your token does not allow this";
  const text = (await response.text().catch(() => "")).slice(0, 300);
  try {
    const { detail } = JSON.parse(text);
    if (typeof detail === "string") return detail;
  } catch {
    // Not JSON: the channels' answers are plain text.
  }
  return text || `${response.status} ${response.statusText}`;
}

function showSession() {
  const button = document.getElementById("session");
  if (!button) return;
  button.hidden = !hasTokens;
  button.textContent = token() ? "Sign out" : "Sign in";
}

document.getElementById("session")?.addEventListener("click", async () => {
  if (token()) signOut();
  else if (await signIn()) location.reload();
});
showSession();
