// Details that load on demand, and new facts while a run goes on. Every page works without it.
// Uses typing() of keys.js, which is loaded first.
"use strict";

document.addEventListener("toggle", async (event) => {
  const details = event.target;
  const address = details.dataset?.load;
  if (!details.open || !address) return;
  const answer = await fetch(address);
  // Opened twice meanwhile, or refused: the next opening tries again.
  if (!answer.ok || !details.dataset.load) return;
  delete details.dataset.load;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  const fragment = page.getElementById("fragment");
  if (fragment) details.querySelector("p").replaceWith(...fragment.children);
}, true);

// Replaces what the page shows when the runs have new facts, unless the reader is in a form or has opened something.
let version = null;
async function refresh() {
  const now = await (await fetch("version")).text();
  const changed = version !== null && now !== version;
  version = now;
  const opened = "main details[open]:not(.tree), table.sortable [aria-sort]";
  const busy = typing(document.activeElement) || document.querySelector(opened);
  if (!changed || busy || document.hidden) return;
  const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
  const focused = document.activeElement?.id;
  for (const id of ["main", "progress"]) {
    const [old, fresh] = [document.getElementById(id), page.getElementById(id)];
    if (old && fresh) old.replaceChildren(...fresh.childNodes);
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}
setInterval(() => refresh().catch(() => {}), 2000);
