// What the server's updates call lanes and the ends of a run.

export const LANES = ["baseline", "speculative", "rival"];
export const OVER = ["stopped", "done", "error"];
