// Tables that a click on the head of a column sorts: numbers down first, texts up first, then the other way, then back
// to the order that the tables have without this script.
"use strict";
{
  function sort(head) {
    const table = head.closest("table"), body = table.tBodies[0], column = head.cellIndex;
    const numeric = head.classList.contains("n");
    const orders = numeric ? ["none", "descending", "ascending"] : ["none", "ascending", "descending"];
    const order = orders[(orders.indexOf(head.getAttribute("aria-sort") ?? "none") + 1) % 3];
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    if (order !== "none") head.setAttribute("aria-sort", order);
    const rows = [...body.rows];
    rows.forEach((row, place) => { row.dataset.place ??= place; });
    rows.sort((one, other) => order === "none"
      ? one.dataset.place - other.dataset.place
      : compare(one.cells[column], other.cells[column], numeric, order === "descending" ? -1 : 1));
    body.append(...rows);
  }

  function compare(one, other, numeric, sign) {
    if (!numeric) return sign * one.innerText.localeCompare(other.innerText, "en", { numeric: true });
    const [a, b] = [one.dataset.value, other.dataset.value];
    if (a === undefined || b === undefined) return (a === undefined) - (b === undefined);
    return sign * (a - b);
  }

  // The heads become buttons only here, so that none is dead without this script.
  function prepare() {
    for (const head of document.querySelectorAll("table.sortable thead th:not(:has(button))")) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sort(head));
      head.append(button);
    }
  }

  prepare();
  // New facts replace what the page of the site shows.
  new MutationObserver(prepare).observe(document.getElementById("main"), { childList: true });
}
