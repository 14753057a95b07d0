"use strict";
(() => {
  const clients = JSON.parse(document.getElementById("data").textContent).clients;
  const tip = document.getElementById("tip");
  let current = null;

  const element = (name, text) => {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;  // never as HTML: ids are other people's text
    return made;
  };

  function fill(mark) {
    tip.replaceChildren();
    const client = clients[mark.dataset.client];
    const title = mark.dataset.title || (client && client.id);
    if (title) tip.append(element("strong", title));
    if (client) {
      const list = element("dl");
      for (const [name, value] of client.facts) list.append(element("dt", name), element("dd", value));
      tip.append(list);
    }
    if (mark.dataset.note) tip.append(element("div", mark.dataset.note));
  }

  function place(x, y) {
    const box = tip.getBoundingClientRect();
    const left = x + 16 + box.width > innerWidth - 8 ? x - 16 - box.width : x + 16;
    const top = y + 16 + box.height > innerHeight - 8 ? y - 16 - box.height : y + 16;
    tip.style.left = Math.max(8, Math.min(left, innerWidth - box.width - 8)) + "px";
    tip.style.top = Math.max(8, top) + "px";
  }

  function show(mark, x, y) {
    if (mark !== current) {
      hide();
      current = mark;
      mark.classList.add("on");
      fill(mark);
      tip.hidden = !tip.hasChildNodes();
    }
    place(x, y);
  }

  function hide() {
    if (current) current.classList.remove("on");
    current = null;
    tip.hidden = true;
  }

  function middle(mark) {
    const box = (mark.querySelector(".hit, .point, .cell") || mark).getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  }

  // A figure is one stop of the Tab key; the arrow keys go from mark to mark inside it.
  for (const figure of document.querySelectorAll("svg.figure")) {
    const marks = [...figure.querySelectorAll(".mark")];
    if (!marks.length) continue;
    figure.tabIndex = 0;
    let at = -1;
    const over = (event) => {
      const mark = event.target.closest(".mark");
      if (mark) show(mark, event.clientX, event.clientY);
      else hide();
    };
    figure.addEventListener("pointermove", over);
    figure.addEventListener("pointerdown", over);
    figure.addEventListener("pointerleave", hide);
    figure.addEventListener("blur", hide);
    figure.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      at = at < 0 ? (step > 0 ? 0 : marks.length - 1) : (at + step + marks.length) % marks.length;
      show(marks[at], ...middle(marks[at]));
    });
  }
  addEventListener("scroll", hide, { passive: true });

  const table = document.getElementById("client-table");
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];

  function sortBy(column) {
    const head = heads[column];
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const numeric = head.classList.contains("num");
    const key = (row) => (numeric ? row.cells[column].dataset.value : row.cells[column].textContent);
    const rows = [...body.rows].map((row) => [key(row), row]);
    rows.sort(([a], [b]) => {
      if (a === "" || b === "") return (a === "") - (b === "");  // what is not known comes last
      const order = numeric ? a - b : a.localeCompare(b, undefined, { numeric: true });
      return down ? -order : order;
    });
    body.append(...rows.map(([, row]) => row));
  }
  table.tHead.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) sortBy(Number(button.dataset.column));
  });

  const find = document.getElementById("find");
  function search() {
    const wanted = find.value.trim().toLowerCase();
    let shown = 0;
    for (const row of body.rows) {
      row.hidden = wanted !== "" && !row.textContent.toLowerCase().includes(wanted);
      shown += !row.hidden;
    }
    document.getElementById("shown").textContent = `${shown} of ${body.rows.length} shown`;
  }
  find.addEventListener("input", search);
  search();

  // On paper nothing can be opened.
  let closed = [];
  addEventListener("beforeprint", () => {
    hide();
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const each of closed) each.open = true;
  });
  addEventListener("afterprint", () => closed.forEach((each) => { each.open = false; }));
  document.documentElement.dataset.ready = "yes";
})();
