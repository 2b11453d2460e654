addEventListener("hashchange", unfold);
unfold();
function unfold() {
  const found = document.getElementById(location.hash.slice(1))?.closest("details");
  if (found) found.open = true;
}
for (const code of document.querySelectorAll("pre.paste")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
  });
  code.before(button);
}
addEventListener("beforeprint", () => document.querySelectorAll("details.incident, details.soft").forEach((one) => (one.open = true)));
