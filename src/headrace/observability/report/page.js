(() => {
  for (const section of document.querySelectorAll("#gantt")) {
    const box = section.querySelector(".gantt"), readout = section.querySelector(".readout");
    const zoom = section.querySelector(".zoom"), style = document.createElement("style");
    section.append(style);
    zoom.hidden = false;
    const press = (times) => {
      box.style.setProperty("--zoom", times);
      for (const button of zoom.children)
        button.setAttribute("aria-pressed", String(button.dataset.zoom === String(times)));
    };
    zoom.addEventListener("click", (event) => {
      if (event.target.dataset.zoom) press(event.target.dataset.zoom);
    });
    press(1);
    const point = (event) => {
      const bar = event.target.closest("rect[data-i]");
      style.textContent = bar
        ? `.bars rect[data-i]:not([data-i="${bar.dataset.i}"]){opacity:.16}` : "";
      readout.textContent = bar ? bar.querySelector("title").textContent : "";
    };
    box.addEventListener("pointerover", point);
    box.addEventListener("pointerleave", () => point({ target: box }));
  }
})();
