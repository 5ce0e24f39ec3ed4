(() => {
  "use strict";
  const main = document.getElementById("page");
  const link = document.getElementById("link");
  const announce = document.getElementById("announce");
  let word = null;

  // What a reader has opened, focused or scrolled stays so when a section is replaced.
  const fill = (node, html) => {
    const open = [...node.querySelectorAll("details[open]")].map((one) => one.id);
    const scrolled = [...node.querySelectorAll(".scroll")].map((one) => [one.id, one.scrollLeft, one.scrollTop]);
    const focused = node.contains(document.activeElement) ? document.activeElement.id : "";
    node.innerHTML = html; // the server has escaped every text in it
    for (const id of open) {
      const one = document.getElementById(id);
      if (one) one.open = true;
    }
    for (const [id, left, top] of scrolled) {
      const one = document.getElementById(id);
      if (one) one.scrollTo(left, top);
    }
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  };

  const show = (page) => {
    document.title = page.title;
    if (word !== null && word !== page.state) announce.textContent = page.state;
    word = page.state;
    const wanted = new Set(page.sections.map(([key]) => key));
    for (const node of [...main.children]) if (!wanted.has(node.id)) node.remove();
    let next = main.firstElementChild;
    for (const [key, digest, html] of page.sections) {
      let node = document.getElementById(key);
      if (!node) {
        node = document.createElement("section");
        node.id = key;
        node.setAttribute("aria-labelledby", `${key}-heading`);
      }
      if (node === next) next = next.nextElementSibling;
      else main.insertBefore(node, next);
      if (node.dataset.digest !== digest) {
        fill(node, html);
        node.dataset.digest = digest;
      }
    }
  };

  const say = (text) => {
    if (link.textContent !== text) link.textContent = text;
  };

  const listen = () => {
    const events = new EventSource("events");
    events.addEventListener("open", () => say("Live"));
    events.addEventListener("page", (event) => show(JSON.parse(event.data)));
    events.addEventListener("error", () => {
      say("Connection lost; trying again. The figures are the last that came.");
      if (events.readyState === EventSource.CLOSED) setTimeout(listen, 3000);
    });
  };
  listen();
})();
