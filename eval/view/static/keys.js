// Keyboard: steps, stories and the search. Every page works without it.
"use strict";

const typing = (element) => /^(INPUT|SELECT|TEXTAREA)$/.test(element.tagName);

// Where the reader is: what has the focus, else what the address names.
function place() {
  const focused = document.activeElement;
  return focused && focused !== document.body ? focused : document.querySelector(":target");
}

// The links are those of the story in which the reader is: a file holds many.
function follow(relation) {
  const page = place()?.closest(".page") ?? document;
  page.querySelector(`a[rel=${relation}]`)?.click();
}

function moveTo(items, change) {
  const here = place();
  const behind = (item) => !here || here.compareDocumentPosition(item) & Node.DOCUMENT_POSITION_FOLLOWING;
  const ahead = items.findIndex(behind);
  const first = ahead < 0 ? items.length : ahead;
  const next = items.includes(here) ? items.indexOf(here) + change : first + Math.min(change, 0);
  const item = items[Math.min(Math.max(next, 0), items.length - 1)];
  if (item) {
    item.focus();
    item.scrollIntoView({ block: "nearest" });
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
