// The page's address holds what differs from the defaults, so that a link or a reload opens the page with the same
// settings. The server reads the query (specdemo/ui/controls.py); a prompt too long for one travels behind the #,
// packed, which no browser sends to any server: it is unpacked here.

const LONGEST_IN_QUERY = 1500; // characters of a prompt, escaped: servers and proxies refuse queries beyond some thousand
const LONGEST_PACKED = 1_000_000; // characters behind the #: browsers cut addresses from 1 MiB on
const PACKED = "prompt";

const behind = (hash) => new URLSearchParams(hash.slice(1)).get(PACKED);
const arrived = behind(location.hash);

// The prompt behind the #, when the page was opened or, of another link that was opened in this tab, now; null where there
// is none. Both raise for a damaged one.
export const arrivedPrompt = async () => (arrived === null ? null : unpack(arrived));
export const followedPrompt = async () => (behind(location.hash) === null ? null : unpack(behind(location.hash)));

let latest = 0;

// Writes settings into the address. Tells whether all of them found room.
export async function writeAddress(names, values, defaults) {
  const turn = ++latest;
  // What others keep there (Gradio's own parameters) stays.
  const query = new URLSearchParams(location.search);
  names.forEach((name) => query.delete(name));
  names.forEach((name, index) => {
    if (name === "gamma" && values[names.indexOf("auto_gamma")]) return; // a link that names a gamma fixes it
    if (values[index] !== null && values[index] !== defaults[name]) query.set(name, values[index]);
  });
  const prompt = query.get("prompt");
  if (prompt === null || encodeURIComponent(prompt).length <= LONGEST_IN_QUERY) {
    replace(query, "");
    return true;
  }
  query.delete("prompt");
  const packed = await pack(prompt).catch(() => null); // a browser may be too old for it
  const fits = packed !== null && packed.length <= LONGEST_PACKED;
  if (turn === latest) replace(query, fits ? `#${PACKED}=${packed}` : "");
  return fits;
}

// Takes a parameter out of the address.
export function forget(name) {
  const query = new URLSearchParams(location.search);
  query.delete(name);
  replace(query, location.hash);
}

export const asked = (name) => new URLSearchParams(location.search).get(name);

function replace(query, fragment) {
  const search = query.toString();
  history.replaceState(history.state, "", location.pathname + (search ? `?${search}` : "") + fragment);
}

// zlib's form, whose checksum finds what was damaged on its way, in the letters that an address may hold.
async function pack(prompt) {
  const bytes = await through(new CompressionStream("deflate"), new TextEncoder().encode(prompt));
  let letters = "";
  for (const byte of bytes) letters += String.fromCharCode(byte);
  return btoa(letters).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

async function unpack(packed) {
  const letters = atob(packed.replaceAll("-", "+").replaceAll("_", "/"));
  const bytes = await through(new DecompressionStream("deflate"), Uint8Array.from(letters, (letter) => letter.charCodeAt(0)));
  return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
}

async function through(stream, bytes) {
  return new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());
}
