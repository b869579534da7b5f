// Keyboard, details that load on demand, and new facts while a run goes on. Every page works without it.
"use strict";

const typing = (element) => /^(INPUT|SELECT|TEXTAREA)$/.test(element.tagName);

function follow(relation) {
  const link = document.querySelector(`a[rel=${relation}]`);
  if (link) link.click();
}

function moveTo(steps, change) {
  const here = steps.indexOf(document.activeElement);
  const next = steps[Math.min(Math.max(here + change, 0), steps.length - 1)];
  if (next) {
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
  const items = [...document.querySelectorAll("main .steps li, main a.story")];
  const actions = {
    "/": () => document.getElementById("search")?.focus(),
    j: () => moveTo(items, 1),
    k: () => moveTo(items, -1),
    n: () => follow("next"),
    p: () => follow("prev"),
  };
  if (actions[event.key]) {
    event.preventDefault();
    actions[event.key]();
  }
});

document.addEventListener("toggle", async (event) => {
  const details = event.target;
  const address = details.dataset?.load;
  if (!details.open || !address) return;
  delete details.dataset.load;
  const answer = await fetch(address);
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
  const busy = typing(document.activeElement) || document.querySelector("main details[open]:not(.tree)");
  if (!changed || busy || document.hidden) return;
  const page = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
  const focused = document.activeElement?.id;
  for (const id of ["main", "progress"]) {
    const [old, fresh] = [document.getElementById(id), page.getElementById(id)];
    if (old && fresh) old.replaceChildren(...fresh.childNodes);
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
}
if (location.protocol !== "file:") setInterval(() => refresh().catch(() => {}), 2000);
