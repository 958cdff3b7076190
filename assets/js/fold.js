// While there is a run to look at, prompt and settings are one row: the prompt's first line, the settings in short, the
// buttons. Whoever goes to the prompt, or asks for the settings, has all of them until the next run.

export class Fold {
  // summary() says the settings in short.
  constructor(controls, summary) {
    this.controls = controls;
    this.button = controls.querySelector("#sd-fold");
    this.summary = summary;
    this.button.addEventListener("click", () => this.set(!this.folded));
    const prompt = controls.querySelector("#sd-prompt textarea");
    // A prompt that the script writes is nobody's wish to write one.
    for (const kind of ["focusin", "pointerdown", "input"]) {
      prompt.addEventListener(kind, ({ isTrusted }) => isTrusted && this.set(false));
    }
  }

  get folded() {
    return document.body.hasAttribute("data-sd-folded");
  }

  set(folded) {
    document.body.toggleAttribute("data-sd-folded", folded);
    const { activeElement } = document;
    if (this.controls.contains(activeElement) && !activeElement.offsetParent) document.getElementById("sd-run").focus();
    this.show();
  }

  show() {
    this.button.setAttribute("aria-expanded", !this.folded);
    this.button.querySelector("small").textContent = this.summary();
  }
}

// What was asked for by Run comes into view, where the window does not show it all.
export function bringIntoView(stage, last) {
  const { top } = stage.getBoundingClientRect();
  const { scrollMarginTop } = getComputedStyle(stage); // the row of the controls stays there
  if (top < parseFloat(scrollMarginTop) || last.getBoundingClientRect().bottom > innerHeight) stage.scrollIntoView({ block: "start" });
}
