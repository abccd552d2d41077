// What can be done with a medium, a tree or an image among the sources of the configuration, and what is told then.

import type { Change, Medium, MediumContent, MediumIndexed, MediumVerified, MediumWritten, SourceKind } from "./api.ts";
import type { Field, Question, Values } from "./dialog.ts";
import { bytes, count, parseBytes, some } from "./format.ts";
import type { Verb } from "./work.ts";

/** The least that the server takes for the size of a medium. */
const LEAST_SIZE = 16 * 2 ** 20;

export const mediumPath = (name: string, rest = ""): string => `media/${encodeURIComponent(name)}${rest}`;

const is =
  (...kinds: SourceKind[]) =>
  ({ kind }: Medium): boolean =>
    kind !== null && kinds.includes(kind);
const post =
  (verb: string, body: object) =>
  ({ name }: Medium): Change => ["POST", mediumPath(name, `/${verb}`), body];

/** A directory that is no medium yet, or where none is mounted. */
const MAKE: Field = {
  name: "make",
  label: "Make a medium of this directory",
  kind: "check",
  help: "it is none; the place of a medium that is not mounted looks the same",
};

/** What is asked of who writes onto a medium, or what is to become one; `names` are proposed. */
export const writing = (names: string, kind: SourceKind | null): Pick<Question, "text" | "fields"> => ({
  text:
    "What is named is put there, as far as there is room: maps first, then what boots and resumes read first, then " +
    "the rest. What nothing there needs any more is deleted. Pull the medium out when this has ended.",
  fields: [
    {
      name: "names",
      label: "Images, disks and machines",
      kind: "text",
      value: names,
      help: "such as debian, alice or work@5, with blanks between them",
    },
    {
      name: "size",
      label: "Room",
      kind: "text",
      optional: true,
      help: "the most that all of it may take, such as 8GiB; all the room there is without it",
    },
    { name: "refresh", label: "Write all that is there anew, as it is now", kind: "check" },
    ...(kind === "tree" ? [MAKE] : []),
  ],
});

/** What is asked of the server then; fails when a size is none. */
export function written(medium: string, values: Values): Change {
  const size = values.size ? parseBytes(values.size) : null;
  if (values.size && size === null) throw new Error("Room is a size such as 8GiB.");
  if (size !== null && size < LEAST_SIZE) throw new Error(`Room is ${bytes(LEAST_SIZE)} at the least.`);
  const names = (values.names ?? "").split(/\s+/).filter((name) => name !== "");
  const [refresh, make] = [values.refresh === "yes", values.make === "yes"];
  return ["POST", mediumPath(medium, "/write"), { names, refresh, size, make }];
}

export const MEDIA_VERBS: Verb<Medium>[] = [
  {
    name: "write",
    label: "Write…",
    right: "admin",
    fits: is("medium", "tree"),
    doing: "being written",
    question: ({ kind }) => writing("", kind),
    change: ({ name }, values) => written(name, values),
  },
  {
    name: "refresh",
    label: "Refresh",
    right: "admin",
    fits: (medium) => is("medium")(medium) && medium.holds.length > 0,
    doing: "being written",
    change: post("write", { names: [], refresh: true }),
  },
  {
    name: "verify",
    label: "Verify",
    right: "operate",
    fits: is("medium"),
    doing: "being read, all of it",
    change: post("verify", {}),
  },
  {
    name: "drop",
    label: "Drop what is damaged…",
    right: "admin",
    loses: true,
    fits: is("medium"),
    doing: "being read, all of it",
    question: () => ({
      text: "All of it is read, and files that are damaged are deleted. The next writing puts on again what was in them.",
    }),
    change: post("verify", { drop_damaged: true }),
  },
  {
    name: "index",
    label: "Index",
    right: "operate",
    fits: is("tree", "image"),
    doing: "being indexed",
    change: post("index", {}),
  },
];

/** Taking something off. */
export const TAKE_OFF: Verb<{ medium: Medium; held: MediumContent }> = {
  name: "remove",
  label: "Take off…",
  right: "admin",
  loses: true,
  fits: () => true,
  doing: "losing something",
  question: ({ medium, held }) => ({
    text: `${held.name} is taken off ${medium.name}. What the store has of it stays there.`,
  }),
  change: ({ medium, held }) => ["DELETE", mediumPath(medium.name, `/held/${encodeURIComponent(held.name)}`), null],
};

export type MediaAnswer = MediumWritten | MediumVerified | MediumIndexed | { freed_bytes: number };

/** What the server answers, as a sentence or two. */
export function outcome(answer: MediaAnswer): string {
  if ("written_bytes" in answer) {
    const fitted = answer.images.map(({ version, chunks, present, missing_bytes: missing }) =>
      missing === 0
        ? `${version}: all of it`
        : `${version}: ${count(present)} of ${some(chunks, "chunk")}, ${bytes(missing)} did not fit`,
    );
    return [
      `${bytes(answer.written_bytes)} written, ${bytes(answer.kept_bytes)} were there, ${bytes(answer.freed_bytes)} freed; ${bytes(answer.used_bytes)} used`,
      ...fitted,
      ...answer.unreadable.map((why) => `cannot be read, and counts as missing: ${why}`),
    ]
      .map((text) => `${text}.`)
      .join(" ");
  }
  if ("packs" in answer) {
    const damaged =
      answer.damaged.length === 0
        ? "nothing is damaged"
        : `${some(answer.damaged_chunks, "chunk")} and ${some(answer.damaged_maps, "map")} are damaged; ${answer.dropped ? "deleted" : "damaged"}: ${answer.damaged.join(", ")}`;
    const unreadable = answer.unreadable.map((why) => ` Cannot be read now: ${why}.`).join("");
    return `${some(answer.chunks, "chunk")} and ${some(answer.maps, "map")} read, ${bytes(answer.bytes)}: ${damaged}.${unreadable}`;
  }
  if ("read_files" in answer)
    return `${bytes(answer.read_bytes)} in ${some(answer.read_files, "file")} read, ${count(answer.kept_files)} as before, ${count(answer.skipped)} left out; ${some(answer.chunks, "chunk")}.`;
  return `Taken off; ${bytes(answer.freed_bytes)} freed.`;
}

/** How much of something a medium has. */
export function share({
  chunks,
  present,
  boot_chunks: first,
  boot_present: firstPresent,
  maps,
  maps_present: mapsPresent,
}: MediumContent): string {
  const all = present === chunks && mapsPresent === maps;
  if (all) return `all of it, ${some(chunks, "chunk")}`;
  const begins = first > 0 ? `, ${count(firstPresent)} of the ${count(first)} that are read first` : "";
  return `${count(present)} of ${some(chunks, "chunk")}${begins}, ${count(mapsPresent)} of ${some(maps, "map")}`;
}
