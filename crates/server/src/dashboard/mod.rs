//! The dashboard: a page to leave open, and what of the API below `/api/v1/` it and scripts read. Nothing can
//! be changed through this; [`http_api`](crate::http_api) does that.
//!
//! | module | concept |
//! |---|---|
//! | [`routes`] | what is answered where |
//! | [`guard`] | which requests are answered at all, and the headers of every answer |
//! | [`views`] | the JSON: `openapi.json` describes it |
//! | [`sampler`] | the server looked at once a second while somebody watches, and once for all who do |
//! | [`reading`] | counters read at two moments, and what lies between |
//! | [`rows`] | disks and images in use, of which watchers hear what changed |
//! | [`lists`] | all disks and images, read at most so often |
//! | [`boots`] | who boots now, and the last boot storms |
//! | [`borrowed`] | borrowed room, and borrowed disks |
//! | [`maps`] | where the bytes of a disk are, drawn for whoever watches |
//! | [`kept`] | answers that take a while to make, kept |
//! | [`assets`] | the page's own files |
//!
//! The page is built from `web/` (`web/README.md`). To add an answer: its type in [`views`], its path in
//! [`routes`], and both in `openapi.json`, which `web/test` holds every real answer to.

mod assets;
mod boots;
mod borrowed;
mod guard;
mod kept;
mod lists;
mod maps;
mod reading;
mod routes;
mod rows;
mod sampler;
mod views;

pub(crate) use guard::{Guard, guard};
pub(crate) use routes::{Dashboard, routes};
