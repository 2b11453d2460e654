/** Lines of text that the user copies: commands, addresses. */

import { element, icon } from "./session.js";

const COPIED_MS = 2000;

/**
 * Copy a text. @param {string} text
 * @returns {Promise<boolean>} whether the browser has done it
 */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Without HTTPS the browser has no navigator.clipboard; it still copies a selected field.
    const { activeElement } = document;
    const field = element("textarea", { value: text, className: "visually-hidden", readOnly: true });
    (document.querySelector("dialog[open]") ?? document.body).append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    if (activeElement instanceof HTMLElement) activeElement.focus();
    return done;
  }
}

/**
 * A term and a description for a `dl`: a line of text with a button that copies it.
 * @param {string} name
 * @param {string} text
 */
export function copyable(name, text) {
  const idle = () => [icon("copy"), "Copy"];
  const button = element("button", { type: "button", "aria-label": `Copy: ${name}` }, ...idle());
  button.addEventListener("click", async () => {
    button.replaceChildren(...((await copy(text)) ? [icon("check"), "Copied"] : ["Select it to copy"]));
    setTimeout(() => button.replaceChildren(...idle()), COPIED_MS);
  });
  return [element("dt", {}, name), element("dd", {}, element("code", { tabIndex: 0 }, text), button)];
}
