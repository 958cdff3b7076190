// A box of many things to look at is one stop of the Tab key: the thing that was visited last or, before any was, the box
// itself. The arrow keys walk between them, around its end.

export class Roving {
  // selector: the things; keys: [back, on].
  constructor(box, selector, keys) {
    Object.assign(this, { box, selector, keys, stop: null });
    box.addEventListener("keydown", (event) => this.#walk(event));
    box.addEventListener("focusin", ({ target }) => target !== box && this.#stopAt(target.closest(selector)));
  }

  // What was visited may have left the page, or have been hidden.
  release() {
    if (this.stop && !this.stop.offsetParent) this.#stopAt(null);
  }

  #stopAt(item) {
    if (this.stop) this.stop.tabIndex = -1;
    this.stop = item;
    if (item) item.tabIndex = 0;
    this.box.tabIndex = item ? -1 : 0;
  }

  #walk(event) {
    const step = { [this.keys[0]]: -1, [this.keys[1]]: 1 }[event.key];
    if (!step || event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) return;
    const all = [...this.box.querySelectorAll(this.selector)].filter((item) => item.offsetParent);
    const next = all[all.indexOf(document.activeElement) + step] ?? all[step > 0 ? 0 : all.length - 1];
    if (!next) return;
    next.tabIndex = 0;
    next.focus();
    event.preventDefault();
  }
}
