// What guests wait for, in words and colours.

import type { BootWait } from "./api.ts";

/** What each is called, what it means, and the letter that a recording has for it. */
export const WAITS: [BootWait, string, string, string][] = [
  ["store", "store", "an answer of the store", "s"],
  ["queue", "turn", "its turn at the store: others are before it", "q"],
  ["nearby", "nearby", "somebody nearby who may have the chunk", "n"],
  ["disk", "disk", "the server's disk, with its private blocks", "d"],
  ["none", "nothing", "it computes, or what it asks is in memory", "-"],
];

/** How it is called in a sentence. */
export const waitName = (wait: BootWait | null): string => WAITS.find(([known]) => known === wait)?.[1] ?? "–";
