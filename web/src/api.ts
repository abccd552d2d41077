// What the API answers. /api/v1/openapi.json describes it; web/test holds the server to that.

import { token, words } from "./token.ts";

export interface Point {
  at: number;
  seconds: number;
  clients: number;
  reads: number;
  writes: number;
  flushes: number;
  errors: number;
  held_back: number;
  read_bytes: number;
  written_bytes: number;
  hit_percent: number | null;
  latency: {
    p50_us: number;
    p90_us: number;
    p99_us: number;
    p999_us: number;
    cells: [number, number][];
  } | null;
}

export interface Times {
  requests: number;
  mean_us: number;
  p50_us: number;
  p90_us: number;
  p99_us: number;
  p999_us: number;
}

export interface HitRatios {
  policy: string;
  half: number;
  same: number;
  double: number;
}

export interface HeadRoom {
  seconds: number;
  clients: number;
  requests: number;
  untimed_requests: number;
  more: number | null;
  limit: "utilisation" | "response" | "none" | null;
  bottleneck: string | null;
  response_us: number | null;
  response_then_us: number | null;
  cpu_percent: number | null;
  backend_percent: number | null;
}

export interface Trouble {
  disk: string | null;
  state: "full" | "slow";
  seconds: number;
  why: string;
}

export interface Client {
  client: string;
  connections: number;
  export: string | null;
  exports: number;
  requests: number;
  read_bytes: number;
  written_bytes: number;
  held_back: number;
}

export interface Now {
  server: {
    version: string;
    pid: number;
    host: string;
    home: string;
    uptime_seconds: number;
    nbd: string[];
    iscsi: string[];
    gateway: string | null;
  };
  point: Point;
  connections: number;
  connections_refused: number;
  connection_faults: number;
  panics: number;
  open_disks: number;
  busiest: Client[];
  latency: Record<string, Times>;
  cache: {
    policy: string;
    capacity_bytes: number;
    bytes: number;
    entries: number;
    hit_percent: number | null;
    forecast: { one_in: number; followed: number; now: HitRatios; best: string; policies: HitRatios[] } | null;
  };
  store: { reads: number; read_bytes: number; failures: number; healed: number };
  head_room: HeadRoom | null;
  head_room_text: string | null;
  troubles: Trouble[];
  troubles_total: number;
  changes: number;
}

export interface Hello {
  version: string;
  page: string;
  at: number;
  history: Point[];
}

export interface Row {
  name: string;
  open: boolean;
  client: string | null;
  connections: number;
  private_bytes: number | null;
  full: boolean;
  slow: boolean;
  requests: number;
  read_bytes: number;
  written_bytes: number;
}

export interface RowChanges {
  all: boolean;
  rows: Row[];
  gone: string[];
}

export interface Snapshot {
  name: string;
  size: number;
  created: number;
  error: string | null;
}

export interface Disk {
  name: string;
  image: string;
  mode: string;
  size: number;
  created: number;
  private_bytes: number;
  unchanged: boolean;
  snapshots: Snapshot[];
  error: string | null;
}

/** Where bytes of a disk are. */
export type Place = "zero" | "stored" | "kept" | "cached" | "private" | "waiting" | "unread";

/** Where bytes are, in cells of equal size. */
export interface ByteMap {
  size: number;
  cell_bytes: number;
  total: Record<Place, number>;
  cells: Record<Place, number[]>;
}

export interface DiskMap extends ByteMap {
  disk: string;
}

export interface Version {
  image: string;
  size: number;
  created: number;
  manifest: string;
  source: string | null;
  used_by: string[];
  error: string | null;
}

/** A machine that starts from the network. */
export interface Machine {
  name: string;
  mac?: string;
  uuid?: string;
  disk?: string;
  method: "iscsi" | "nbd" | "local";
  append?: string[];
  by_rule?: boolean;
}

/** A machine that asked and has no disk. */
export interface WaitingMachine {
  mac: string;
  uuid?: string;
  first_seen: number;
  last_seen: number;
  times: number;
}

export interface Machines {
  machines: Machine[];
  waiting: WaitingMachine[];
}

/** A name of the store. */
export interface LineageName {
  kind: "image" | "snapshot" | "disk";
  name: string;
}

export interface LineageNode extends LineageName {
  size: number;
  created: number;
  on: LineageName | null;
  by: LineageName | null;
  error: string | null;
}

/** What a guest waited for most of all. */
export type BootWait = "queue" | "store" | "nearby" | "disk" | "none";

export interface Boot {
  disk: string;
  client: string;
  image: string;
  began_seconds: number;
  seconds: number;
  state: "booting" | "done" | "left" | "too_long";
  list_chunks: number | null;
  listed_chunks: number;
  other_chunks: number;
  bytes: number;
  waits: number;
  waited: Record<Exclude<BootWait, "none">, number>;
  now: BootWait | null;
}

export interface StormSummary {
  storm: number;
  began: number;
  seconds: number;
  over: boolean;
  watched: number;
  unwatched: number;
}

export interface Boots {
  booting: number;
  waits: Record<BootWait, number>;
  boots: Boot[];
  storms: StormSummary[];
}

export interface StormMoment {
  at: number;
  waits: Record<BootWait, number>;
  stored_bytes: number;
}

export interface RecordedBoot extends Boot {
  first_moment: number;
  /** A letter for each moment from the first on. */
  lane: string;
}

export interface Storm extends StormSummary {
  moments: StormMoment[];
  boots: RecordedBoot[];
}

/** Requests, and their bytes. */
export interface LabTraffic {
  requests: number;
  bytes: number;
}

export interface LabSizes {
  mean: number | null;
  median: number | null;
  p90: number | null;
  largest: number | null;
}

export interface TraceFacts {
  requests: number;
  /** Nanoseconds. */
  duration: number;
  times: boolean;
  complete: boolean;
  operations: [string, LabTraffic][];
  read_sizes: LabSizes;
  write_sizes: LabSizes;
  order: { sequential: number; near: number; random: number };
  working_set: { block: number; blocks: number; only_read: number; only_written: number; both: number };
  clients: { name: string; reads: LabTraffic; writes: LabTraffic }[];
  disks: { name: string; reads: LabTraffic; writes: LabTraffic }[];
}

export interface HitCurves {
  references: number;
  distinct_blocks: number;
  block: number;
  rows: { policy: string; bytes: number; hit_ratio: number }[];
}

export interface TunedPolicy {
  policy: string;
  hit_ratio: number;
  error: number;
}

export interface TunedCache {
  bytes: number;
  policy: string | null;
  saved: number;
  saved_error: number;
  config: string;
  candidates: TunedPolicy[];
  lru: TunedPolicy;
  usual: TunedPolicy;
}

export interface Prediction {
  profile: string;
  block: number;
  think_ms: number;
  target_ms: number;
  most: number;
  cases: {
    memory: number;
    hit: number;
    clients: number;
    at_least: boolean;
    knee: number | null;
    throughput: number;
    response_ms: number;
    bottleneck: string | null;
    next: { twice: string; clients: number; at_least: boolean }[];
    curve: { clients: number; throughput: number; response_ms: number }[];
  }[];
  notes: string[];
}

export interface RecordedTraces {
  recordings: { name: string; bytes: number; open: boolean }[];
}

/** What a disk of the owner lends. */
export interface Lent {
  disk: string;
  bytes: number;
  extents: number;
  map: { size: number; cell_bytes: number; cells: number[] } | null;
}

export interface BorrowedRoom {
  size: number;
  used: number;
  given_back: number;
  lent: Lent[];
}

export interface BorrowedDisk {
  name: string;
  kind: "nbd" | "dm";
  address: string;
  pid: number | null;
  swap: string | null;
  size: number;
  written: number | null;
  users: number;
  lent: Lent[];
  state: { source: string; fetched: number; changed: number; write_back: boolean } | null;
  given_back: number;
}

export interface Borrowed {
  room: BorrowedRoom | null;
  disks: BorrowedDisk[];
}

/** What a token lets its bearer do; each right has those before it. */
export type Right = "read" | "operate" | "admin";

/** The token that a request shows. */
export interface TokenState {
  name: string;
  right: Right;
  disks: string[] | null;
  images: string[] | null;
  created: number;
  expires: number | null;
}

/** A suspended machine in the store. */
export interface VmParcel {
  parcel: string;
  created: number;
  snapshot: string;
}

export interface VmRunning {
  name: string;
  state: string;
  parcel: string | null;
  accelerator: "kvm" | "tcg";
  keeper: number;
  qemu: number;
  console: string;
  screen: string | null;
  memory_on_demand: boolean;
  memory_here: boolean;
  memory_written: number;
  started_seconds: number;
  clock?: "setting" | "set" | "no_agent" | { failed: string };
}

/** A suspension that is not in the store yet. */
export interface VmPending {
  parcel: string;
  created: number;
  left_bytes: number;
  keeper: number | null;
  error?: string;
  stopped?: boolean;
}

export interface Vm {
  name: string;
  state: "running" | "starting" | "busy" | "elsewhere" | "suspended" | "stopped" | "damaged" | "newer";
  host?: string;
  here: boolean;
  disk: string;
  memory: number;
  cpus: number;
  mac: string;
  parcels: VmParcel[];
  running?: VmRunning;
  pending?: VmPending;
  error?: string;
}

export interface VmKept {
  parcel: string;
  paused_seconds: number;
  kept_seconds: number;
  left_bytes: number;
}

export interface VmStored {
  parcel: string;
  paused_seconds: number;
  stored_seconds: number;
  memory_bytes: number;
  released: boolean;
}

/** What a new machine is made of. */
export interface VmDescription {
  name: string;
  uuid: string;
  disk: string;
  memory: number;
}

/** Where the memory of a suspended machine is. */
export interface MemoryMap extends ByteMap {
  parcel: string;
}

export interface VmLog {
  text: string;
  is_cut: boolean;
}

export type SourceKind = "store" | "export" | "medium" | "tree" | "image";

/** A source of the configuration. */
export interface MediumSource {
  name: string;
  kind: SourceKind | null;
  error?: string;
}

/** An image, a disk or a machine on a medium. */
export interface MediumContent {
  name: string;
  kind: "image" | "disk" | "machine";
  version: string;
  size: number;
  written: number;
  boot_chunks: number;
  chunks: number;
  present: number;
  boot_present: number;
  maps: number;
  maps_present: number;
}

export interface Medium extends MediumSource {
  holds: MediumContent[];
}

export interface MediumWritten {
  images: {
    name: string;
    version: string;
    chunks: number;
    present: number;
    boot_chunks: number;
    boot_present: number;
    missing_bytes: number;
  }[];
  written_chunks: number;
  written_maps: number;
  written_bytes: number;
  kept_bytes: number;
  freed_bytes: number;
  used_bytes: number;
  unreadable: string[];
}

export interface MediumVerified {
  packs: number;
  chunks: number;
  maps: number;
  bytes: number;
  damaged_chunks: number;
  damaged_maps: number;
  damaged: string[];
  dropped: boolean;
  unreadable: string[];
}

export interface MediumIndexed {
  read_files: number;
  read_bytes: number;
  kept_files: number;
  skipped: number;
  chunks: number;
}

/** A change: its method, its path below `/api/v1/`, and what its body says. */
export type Change = ["POST", string, object] | ["DELETE", string, null];

/** Has something changed; fails with the server's own words. */
export async function change<T>([method, path, body]: Change): Promise<T> {
  const answer = await token.change(method, path, body);
  if (!answer.ok) throw new Error(await words(answer));
  return answer.json();
}

/** Asks for a list; fails with the server's own words. */
export async function ask<T>(path: string): Promise<T> {
  const answer = await token.fetch(path);
  if (!answer.ok) throw new Error(await words(answer));
  return answer.json();
}
