// Copy buttons beside commands and code; tables of sentences, which narrow screens show as cards, and tables of figures.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll(".highlight:not(.highlight-text *)")) {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(block.querySelector("pre").textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(block.querySelector("pre")); // a page from a file may not write the clipboard
        button.textContent = "Selected";
      }
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    block.append(button);
  }

  const sentence = 40; // letters: cells this long do not fit beside each other
  for (const table of document.querySelectorAll("table.docutils")) {
    const heads = [...table.querySelectorAll("thead th")].map((head) => head.textContent);
    const cells = [...table.querySelectorAll("tbody td")];
    const ofSentences = cells.some((cell) => cell.cellIndex > 0 && cell.textContent.length > sentence);
    table.classList.add(ofSentences ? "of-sentences" : "of-figures");
    for (const cell of cells) {
      cell.dataset.column = heads[cell.cellIndex] ?? "";
      cell.classList.toggle("nothing", !cell.textContent.trim());
    }
  }
});
