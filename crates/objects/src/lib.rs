//! Object stores: where they are, how they are opened, and the few operations that are needed of them.
//!
//! This crate may know backends ([`object_store::ObjectStore`]), how they fail, what a round trip to
//! them costs, and what is kept of them on the local disk. It must not know what the objects mean:
//! chunks, packs, manifests and names are `store`'s.
//!
//! A backend over a network stands behind layers, each of which is a backend again:
//!
//! ```text
//! pieces     what was read before comes from the local disk
//! gathered   reads that lie near each other become one request
//! patient    what failed is tried again, until a deadline
//! the bucket, under its prefix; or published, a web server with a listing
//! ```
//!
//! | module | concept |
//! |---|---|
//! | `requests` | [`get`], [`put_new`], [`put_content`], [`list`] and the like; what their errors mean |
//! | `store_url` | [`open`]: from a URL to a backend |
//! | `local` | [`local`](fn@local): a directory as a backend |
//! | `attempts` | a single request: made once, and ended by nobody but who waits for it |
//! | `backends` | S3, Google, Azure, web servers: their URLs, and how they are opened |
//! | `environment` | [`Environment`]: where credentials are |
//! | `fault` | what a backend's error means |
//! | [`layer`] | [`ObjectLayer`](layer::ObjectLayer): a backend over another one that says only what it changes |
//! | `batch` | [`RangeBatches`]: several ranges in one request, each as it comes |
//! | `patient` | [`Patience`]: trying again |
//! | `uplink` | [`SLOWEST_LINK`]: how long writes may take that share a link |
//! | `body`, `resumed` | an object, and a batch, that go on where their link broke |
//! | `gathered` | joining reads |
//! | `hint` | [`Hint`]: what a read wants of the layers in front of the backend |
//! | `backend_reads` | [`BackendReads`]: how many reads a backend had at a time, and how long they took |
//! | `link_pace` | [`LinkTime`]: what reads over a network take |
//! | `round_trip` | [`RoundTrip`]: what a request takes before its first byte |
//! | `pieces`, `local_disk` | [`PieceOptions`]: the piece cache |
//! | `directory` | a directory as a backend, and what of it is durable |
//! | `mounted` | a directory that may be an empty mount point |
//! | `turns` | how many read a directory at the same time |
//! | `arm` | [`DiskReadOrder`]: in which order, on a disk with one arm |
//! | `spare` | a directory whose file system is full |
//! | `staging` | what killed writers leave in a directory |
//! | [`publish`](mod@publish), [`header`] | a store behind a plain web server; the first line of text objects |
//! | [`check`] | whether a backend can be trusted with a store |
//! | `amount` | [`Amount`]: a number of objects and their bytes |
//! | [`testing`] | a scripted backend and models of bad ones, for tests |

mod amount;
mod arm;
mod attempts;
mod backend_reads;
mod backends;
mod batch;
mod body;
pub mod check;
mod directory;
mod environment;
mod fault;
mod gathered;
pub mod header;
mod hint;
pub mod layer;
mod link_pace;
mod local;
mod local_disk;
mod mounted;
mod patient;
mod pieces;
pub mod publish;
mod requests;
mod resumed;
mod round_trip;
mod spare;
mod staging;
mod store_url;
pub mod testing;
mod turns;
mod uplink;

pub use amount::Amount;
pub use arm::DiskReadOrder;
pub use backend_reads::{BackendReads, DEPTHS, ReadsAtDepth};
pub use batch::RangeBatches;
pub use environment::Environment;
pub use gathered::GAP;
pub use hint::Hint;
pub use link_pace::LinkTime;
pub use local::{create_local, local, local_ordered};
pub use local_disk::{PieceCounters, PieceOptions};
pub use patient::{Patience, RetryCounters};
pub use pieces::KeepSettings;
pub use requests::{
    Created, create_content, delete, durable_head, error, get, get_range, get_range_with,
    get_ranges, get_with, head, list, list_all, put_content, put_new, put_over, replace_damaged,
};
pub use round_trip::RoundTrip;
pub use staging::sweep_staging;
pub use store_url::{
    Link, OpenStoreOptions, Opened, check_url, create, exact, is_remote, layered, open, patient,
};
pub use uplink::SLOWEST_LINK;
