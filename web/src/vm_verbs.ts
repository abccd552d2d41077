// What can be done with a virtual machine: in which state, by which right, what is asked before, and what is told then.

import type { Change, Vm, VmDescription, VmKept, VmParcel, VmPending, VmRunning, VmStored } from "./api.ts";
import type { Question, Values } from "./dialog.ts";
import { bytes, parseBytes } from "./format.ts";
import type { Verb } from "./work.ts";

/** A machine, and one of its parcels. */
export interface ParcelOf {
  vm: Vm;
  parcel: VmParcel;
}

const path = (name: string, verb = ""): string => `vms/${encodeURIComponent(name)}${verb && `/${verb}`}`;
const post =
  (verb: string, body: object = {}) =>
  ({ name }: Vm): Change => ["POST", path(name, verb), body];

const runs = ({ state }: Vm): boolean => state === "running";
/** It does not run, and all that it is suspended as is in the store. */
const isStored = ({ state, pending, parcels }: Vm): boolean =>
  state === "suspended" && pending === undefined && parcels.length > 0;
const newest = ({ parcels }: Vm): string => parcels.at(-1)?.parcel ?? "";
const LOST = "what it did there since is lost, and only a host that is gone for good may lose it.";

export const VM_VERBS: Verb<Vm>[] = [
  {
    name: "start",
    label: "Start",
    right: "operate",
    fits: ({ state }) => state === "stopped",
    doing: "starting",
    change: post("start"),
  },
  {
    name: "resume",
    label: "Resume",
    right: "operate",
    fits: ({ state }) => state === "suspended",
    doing: "resuming",
    change: post("resume"),
  },
  {
    name: "suspend",
    label: "Suspend",
    right: "operate",
    fits: runs,
    doing: "suspending",
    change: post("suspend"),
  },
  {
    name: "checkpoint",
    label: "Checkpoint",
    right: "operate",
    fits: runs,
    doing: "being stored",
    change: post("checkpoint"),
  },
  {
    name: "stop",
    label: "Power off",
    right: "operate",
    fits: runs,
    doing: "powering off",
    change: post("stop"),
  },
  {
    name: "send",
    label: "Send it up",
    right: "operate",
    fits: ({ pending }) => pending !== undefined && pending.keeper === null,
    doing: "beginning to send",
    change: post("suspend"),
  },
  {
    name: "keep",
    label: "Stop sending",
    right: "admin",
    fits: ({ pending }) => pending !== undefined && pending.keeper !== null,
    doing: "ending the sending",
    // It may have been resumed since the page was told of it.
    change: post("stop", { sending: true }),
  },
  {
    name: "end",
    label: "End at once…",
    right: "admin",
    loses: true,
    fits: ({ state }) => state === "running" || state === "starting" || state === "busy",
    doing: "ending",
    // A guest may not heed the power button.
    always: true,
    question: () => ({
      text: "It ends as if the power failed: what its guest has in memory is lost, and what it did not write out.",
    }),
    change: post("stop", { force: true }),
  },
  {
    name: "discard",
    label: "Discard…",
    right: "admin",
    loses: true,
    fits: (vm) => vm.here && (vm.pending !== undefined || (vm.running !== undefined && vm.parcels.length > 0)),
    doing: "going back",
    question: (vm) => ({
      text:
        (vm.parcels.length > 0
          ? `All that it did since ${newest(vm)} is lost: it ends, and is suspended as that again.`
          : "What it was suspended as is lost: it is on this host alone, and there is no parcel to go back to.") +
        (vm.pending ? ` ${vm.pending.parcel}, which is not in the store yet, is dropped.` : ""),
    }),
    change: post("discard"),
  },
  {
    name: "fresh",
    label: "Boot anew…",
    right: "admin",
    loses: true,
    fits: isStored,
    doing: "booting anew",
    question: (vm) => ({
      text: `Its disk boots as it is. What its guest had in memory is left behind: ${newest(vm)} cannot go on then, unless the disk is rolled back.`,
    }),
    change: post("start", { fresh: true }),
  },
  {
    name: "take",
    label: "Go on here…",
    right: "admin",
    loses: true,
    fits: ({ state }) => state === "elsewhere",
    doing: "going on here",
    question: (vm) => ({
      text: `It goes on here ${vm.parcels.length > 0 ? `from ${newest(vm)}` : "with its disk as it is"}, although another host has it: ${LOST}`,
    }),
    change: (vm) => post(vm.parcels.length > 0 ? "resume" : "start", { lost: true })(vm),
  },
  {
    name: "remove",
    label: "Remove…",
    right: "admin",
    loses: true,
    fits: ({ state }) => ["suspended", "stopped", "elsewhere", "damaged"].includes(state),
    doing: "being removed",
    question: (vm) => ({
      text:
        `The machine is removed, ${vm.parcels.length > 0 ? "with all its parcels, and" : "and"} cannot be had back. ` +
        (vm.pending ? `${vm.pending.parcel}, which is not in the store yet, is dropped. ` : "") +
        `Its disk stays.${vm.state === "elsewhere" ? ` Another host has it: ${LOST}` : ""}`,
    }),
    change: ({ name, state }) => ["DELETE", path(name) + (state === "elsewhere" ? "?lost=true" : ""), null],
  },
];

export const PARCEL_VERBS: Verb<ParcelOf>[] = [
  {
    name: "resume",
    label: "Resume",
    right: "operate",
    fits: ({ vm }) => isStored(vm),
    doing: "resuming",
    change: ({ parcel }) => ["POST", path(parcel.parcel, "resume"), {}],
  },
  {
    name: "clone",
    label: "Clone…",
    right: "operate",
    fits: () => true,
    doing: "being cloned",
    question: ({ parcel }) => ({
      text: `Another machine, which goes on from ${parcel.parcel}, with a disk of its own. No data is copied.`,
      fields: [
        { name: "new", label: "Name of the new machine", kind: "text" },
        {
          name: "disk",
          label: "Name of its disk",
          kind: "text",
          optional: true,
          help: "that of the machine without it",
        },
        {
          name: "keep_mac",
          label: "Keep the address of the network card",
          kind: "check",
          help: "for a network in which the two never meet",
        },
      ],
    }),
    change: ({ parcel }, values) => [
      "POST",
      path(parcel.parcel, "clone"),
      { new: values.new, disk: values.disk || null, keep_mac: values.keep_mac === "yes" },
    ],
  },
  {
    name: "rollback",
    label: "Roll back…",
    right: "admin",
    loses: true,
    fits: ({ vm }) => isStored(vm),
    doing: "being rolled back",
    question: ({ vm, parcel }) => ({
      text: `Disk ${vm.disk} becomes what it was in ${parcel.parcel}. What was written to it since is lost.`,
    }),
    change: ({ parcel }) => ["POST", path(parcel.parcel, "rollback"), {}],
  },
  {
    name: "remove",
    label: "Remove…",
    right: "admin",
    loses: true,
    fits: ({ vm, parcel }) => vm.running?.parcel !== parcel.parcel,
    doing: "losing a parcel",
    question: ({ parcel }) => ({
      text: `${parcel.parcel} is removed, with the snapshot of the disk that belongs to it, and nothing goes on from it any more.`,
    }),
    change: ({ parcel }) => ["DELETE", path(parcel.parcel), null],
  },
];

/** What is asked of who makes a machine; `disks` are proposed. */
export const creation = (disks: string[]): Question => ({
  title: "A new virtual machine",
  text: "It is described, and does not start yet.",
  verb: "Make it",
  fields: [
    { name: "name", label: "Name", kind: "text" },
    { name: "disk", label: "Disk", kind: "text", options: disks, help: "a disk of this server" },
    { name: "memory", label: "Memory", kind: "text", value: "1GiB", help: "such as 512MiB or 4GiB" },
    { name: "cpus", label: "Processors", kind: "text", value: "1" },
    {
      name: "cpu",
      label: "CPU model",
      kind: "text",
      optional: true,
      help: "QEMU's name; one that most hosts have without it",
    },
    { name: "screen", label: "A screen", kind: "check", help: "over VNC, on a socket of the server's host" },
  ],
});

/** What is asked of the server then; fails when a number is none. */
export function created(values: Values): Change {
  const memory = parseBytes(values.memory ?? "");
  const cpus = Number(values.cpus);
  if (memory === null) throw new Error("Memory is a size such as 512MiB or 4GiB.");
  if (!Number.isInteger(cpus) || cpus < 1) throw new Error("Processors are a whole number.");
  const screen = values.screen === "yes";
  return ["POST", "vms", { name: values.name, disk: values.disk, memory, cpus, cpu: values.cpu || null, screen }];
}

/** What the server answers when something was done with a machine. */
export type VmAnswer = { done: string } | VmRunning | VmKept | VmStored | VmPending | VmDescription;

const seconds = (value: number): string => `${value.toFixed(2)} s`;

/** That as a sentence. */
export function outcome(answer: VmAnswer): string {
  if ("done" in answer) return sentence(answer.done);
  if ("qemu" in answer) {
    const from = answer.parcel === null ? "" : ` from ${answer.parcel}`;
    return `${answer.name} runs${from} after ${seconds(answer.started_seconds)}.`;
  }
  if ("kept_seconds" in answer)
    return `${answer.parcel} is safe on this host after ${seconds(answer.kept_seconds)}; the guest stood still for ${seconds(answer.paused_seconds)}. ${bytes(answer.left_bytes)} go up now, at the most.`;
  if ("stored_seconds" in answer) {
    const disk = answer.released ? ", and its disk is released" : "";
    if (answer.stored_seconds === 0) return `${answer.parcel} is in the store${disk}.`;
    return `${answer.parcel} is in the store${disk}: ${bytes(answer.memory_bytes)} of memory in ${seconds(answer.stored_seconds)}; the guest stood still for ${seconds(answer.paused_seconds)}.`;
  }
  if ("left_bytes" in answer) return `${answer.parcel}: ${bytes(answer.left_bytes)} are still to go up, at the most.`;
  return `Machine ${answer.name} is there, with disk ${answer.disk}.`;
}

const sentence = (text: string): string => `${text.charAt(0).toUpperCase()}${text.slice(1)}.`;
