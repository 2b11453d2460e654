/** Lines of text that the user copies: commands, addresses. */

import { element, icon } from "./session.js";

const COPIED_MS = 2000;

/**
 * A term and a description for a `dl`: a line of text with a button that copies it.
 * @param {string} name
 * @param {string} text
 */
export function copyable(name, text) {
  const idle = () => [icon("copy"), "Copy"];
  const button = element("button", { type: "button", "aria-label": `Copy: ${name}` }, ...idle());
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.replaceChildren(icon("check"), "Copied");
    } catch {
      // Browsers give a page the clipboard only over https or on localhost.
      button.replaceChildren("Select it to copy");
    }
    setTimeout(() => button.replaceChildren(...idle()), COPIED_MS);
  });
  return [element("dt", {}, name), element("dd", {}, element("code", { tabIndex: 0 }, text), button)];
}
