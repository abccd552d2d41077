//! The API that changes things, below `/api/v1/`: disks, their snapshots, images,
//! machines, virtual machines, media, and the server itself. What only
//! reads for a page is [`dashboard`](crate::dashboard)'s; both are described by its `openapi.json`.
//!
//! | module | concept |
//! |---|---|
//! | [`routes`] | what is carried out where |
//! | [`requests`] | what is taken out of a request, and what is wrong with it |
//! | [`rights`] | which right each verb takes, and what a token must cover |
//! | [`server_verbs`] | verbs on the server itself |
//! | [`machines`] | machines that start from the network |
//! | [`vms`], [`vm_rights`] | virtual machines, and which of them a token is for |
//! | [`tokens`] | what a token is for |
//! | [`media`] | media among the sources of the configuration |
//! | [`import`] | an image that is sent, which becomes a version |
//! | [`lab`] | questions about a trace that is sent, or that the server recorded |
//! | [`lab_views`] | what is answered of traces |
//! | [`upload`] | the bytes that are sent, and how slowly they may come |
//! | [`carry`] | a verb carried out: how many at a time, noted, and answered |
//!
//! Every change takes a token, which no browser sends by itself: that, `Sec-Fetch-Site`, `Origin` and a
//! content type that no form has keep other people's pages out. To add a verb: its path in [`routes`], its
//! right in [`rights`], and both in `openapi.json`.

mod carry;
mod import;
mod lab;
mod lab_views;
mod machines;
mod media;
mod requests;
mod rights;
mod routes;
mod server_verbs;
mod tokens;
mod upload;
mod vm_rights;
mod vms;

pub(crate) use carry::{HttpApi, note_refusals};
#[cfg(test)]
pub(crate) use routes::operations;
pub(crate) use routes::routes;
