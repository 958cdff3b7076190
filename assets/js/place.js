// Where a card stands: above or below the line of what it explains, never over it, inside the window, and not over the
// things that are to stay seen where there is any other place.

const GAP = 8; // pixels around a card
const ENOUGH = 330; // a card's usual height: where there is so much room below, it hangs there and grows without moving
const LEAST = 160; // a side with less room than that is none

export function placeBeside(card, anchor, seen) {
  const at = anchor.getBoundingClientRect(); // of a token that is broken over lines, all of them
  const rooms = { below: innerHeight - at.bottom - 2 * GAP, above: at.top - 2 * GAP };
  const first = rooms.below >= Math.min(ENOUGH, rooms.above) ? "below" : "above";
  const sides = [first, first === "below" ? "above" : "below"].filter((side, index) => !index || rooms[side] >= LEAST);
  card.style.maxHeight = "none";
  const { width, height } = card.getBoundingClientRect();
  const places = sides.flatMap((side) => lefts(at, width, seen).map((left) => ({ side, left })));
  const free = places.find((place) => {
    const tall = Math.min(Math.max(height, ENOUGH), rooms[place.side]);
    const top = place.side === "below" ? at.bottom + GAP : at.top - GAP - tall;
    return !seen.some((box) => overlap(box, { left: place.left, right: place.left + width, top, bottom: top + tall }));
  });
  const { side, left } = free ?? places[0];
  card.style.maxHeight = `${rooms[side]}px`;
  card.style.left = `${left}px`;
  card.style.top = side === "below" ? `${at.bottom + GAP}px` : "auto";
  card.style.bottom = side === "below" ? "auto" : `${innerHeight - at.top + GAP}px`;
}

// From the token on, else beside what is to stay seen.
function lefts(at, width, seen) {
  const wanted = [at.left, ...seen.flatMap((box) => [box.right + GAP, box.left - width - GAP])];
  return wanted.map((left) => Math.max(GAP, Math.min(left, innerWidth - width - GAP)));
}

const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

// Whether it is in sight, in the window and in the box that scrolls it.
export function inSight(anchor, box) {
  const at = anchor.getBoundingClientRect();
  const within = box?.getBoundingClientRect() ?? { top: 0, bottom: innerHeight };
  return at.bottom > Math.max(0, within.top) && at.top < Math.min(innerHeight, within.bottom);
}
