// Where a card stands: above or below the line of what it explains, never over it, inside the window, and off the things
// that are to stay seen. Where it does not fit it is cut to the largest free place, and scrolls.

const GAP = 8; // pixels around a card
const ENOUGH = 300; // a card's usual height: where there is so much room, it grows without moving

export function placeBeside(card, anchor, seen) {
  const at = anchor.getBoundingClientRect(); // of a token that is broken over lines, all of them
  card.style.maxHeight = "none";
  const { width, height } = card.getBoundingClientRect();
  const places = ["below", "above"].flatMap((side) =>
    lefts(at, width, seen).map((left) => ({ side, left, room: room[side](at, seen.filter((box) => box.left < left + width && left < box.right)) })),
  );
  const fitting = places.find((place) => place.room >= Math.max(height, ENOUGH));
  const { side, left, room: most } = fitting ?? places.reduce((one, other) => (other.room > one.room ? other : one));
  card.style.maxHeight = `${most}px`;
  card.style.left = `${left}px`;
  card.style.top = side === "below" ? `${at.bottom + GAP}px` : "auto";
  card.style.bottom = side === "below" ? "auto" : `${innerHeight - at.top + GAP}px`;
}

// From the token on, else beside what is to stay seen.
function lefts(at, width, seen) {
  const wanted = [at.left, ...seen.flatMap((box) => [box.right + GAP, box.left - width - GAP])];
  return wanted.map((left) => Math.max(GAP, Math.min(left, innerWidth - width - GAP)));
}

// How high a card may be on either side, before it meets the window's end or one of the boxes in its way.
const room = {
  below: (at, inWay) => Math.min(innerHeight, ...inWay.map((box) => box.top).filter((top) => top >= at.top)) - at.bottom - 2 * GAP,
  above: (at, inWay) => at.top - Math.max(0, ...inWay.map((box) => box.bottom).filter((bottom) => bottom <= at.bottom)) - 2 * GAP,
};

// Whether it is in sight, in the window and in the box that scrolls it.
export function inSight(anchor, box) {
  const at = anchor.getBoundingClientRect();
  const within = box?.getBoundingClientRect() ?? { top: 0, bottom: innerHeight };
  return at.bottom > Math.max(0, within.top) && at.top < Math.min(innerHeight, within.bottom);
}
