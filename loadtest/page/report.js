// What the report does beyond being read: shows at once what a pointer finds, and plays a call along its picture.
// Without this all of it is there too: <title> elements, tables, and the browser's own player.
"use strict";

(() => {
  const SVG = "http://www.w3.org/2000/svg";

  // --- tips ---

  const tip = document.createElement("div");
  tip.className = "tip";
  tip.hidden = true;
  tip.setAttribute("aria-hidden", "true");
  document.body.append(tip);

  const texts = new WeakMap();
  for (const title of document.querySelectorAll("svg title")) {
    texts.set(title.parentNode, title.textContent);
    title.remove(); // or the browser would show it a second time
  }

  let pointer = null;

  function hide() {
    tip.hidden = true;
    pointer?.remove();
    pointer = null;
  }

  function show(event) {
    const text = texts.get(event.target);
    if (text === undefined) return hide();
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY - height - 10, innerHeight - height - 4))}px`;
    pointer?.remove();
    pointer = null;
    const at = event.target.dataset.at;
    if (at === undefined) return undefined;
    pointer = line("pointer");
    place(pointer, Number(at) / 100);
    event.target.parentNode.before(pointer);
    return undefined;
  }

  addEventListener("pointermove", show);
  addEventListener("pointerdown", show);
  document.addEventListener("pointerleave", hide);
  addEventListener("scroll", hide, { passive: true });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });

  // --- calls to play ---

  for (const player of document.querySelectorAll(".call audio")) {
    const figure = player.closest(".call").querySelector(".figure");
    const length = Number(figure?.dataset.length);
    if (!figure || !(length > 0)) continue;
    const svg = figure.querySelector("svg");
    const head = line("playhead");
    const follow = () => {
      place(head, Math.min(1, player.currentTime / length));
      if (!player.paused) requestAnimationFrame(follow);
    };
    player.addEventListener("play", () => {
      for (const other of document.querySelectorAll(".call audio")) if (other !== player) other.pause();
      svg.append(head);
      follow();
    });
    player.addEventListener("seeked", follow);
    svg.classList.add("seekable");
    svg.addEventListener("click", (event) => {
      const box = svg.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
      player.currentTime = share * length;
      player.play().catch(() => {}); // another call was clicked before this one began
    });
  }

  // On paper nothing can be opened.
  addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details:not(.numbers-of)")) fold.open = true;
  });

  function line(name) {
    const made = document.createElementNS(SVG, "line");
    made.setAttribute("class", name);
    made.setAttribute("y1", "0");
    made.setAttribute("y2", "100%");
    return made;
  }

  function place(made, share) {
    made.setAttribute("x1", `${share * 100}%`);
    made.setAttribute("x2", `${share * 100}%`);
  }
})();
