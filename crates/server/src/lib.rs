//! The server: exports, front ends, the control socket, HTTP, hand-over and everything else that a process
//! does which serves disks to clients.
//!
//! This crate may know the engine, the protocols, certificates and access rules, signals, and the service
//! manager. It must not know the command line, print results, or decide what a store, a cache or a disk
//! does: that is `engine` and what is below it. Options arrive as plain values ([`options::ServerOptions`],
//! [`listen::ListenOptions`]).
//!
//! It has more than 10,000 lines because each front end and each page needs the running server, and none is of use to
//! another program: what a protocol can do without it is a crate of its own (`nbd`, `iscsi`, `vhost-user`, `gateway`,
//! `netboot`, `discovery`, `peers`), and the module here joins the two.
//!
//! | module | concept |
//! |---|---|
//! | [`daemon`] | the server of a home, from start to graceful stop |
//! | [`options`] | what the user asks of it, on top of the configuration |
//! | [`running`] | a running server, as its control socket and HTTP see it |
//! | [`upkeep`] | what it does for its disks once a second |
//! | [`exports`] | a home's disks and images as exports |
//! | [`file`](mod@file) | one file as the only export |
//! | [`until`] | servers besides the daemon: of a home or a file, until something ends |
//! | [`background`] | the server of a home, started by a command that needs it |
//! | [`one_client`] | `--single` and `--run`: one client, or one command, and the end |
//! | [`without_home`] | listeners without a home: `--file` |
//! | [`gateway`](mod@gateway) | the store by HTTPS, for clients with certificates |
//! | [`iscsi`](mod@iscsi) | the same exports by iSCSI |
//! | [`vhost_user`](mod@vhost_user) | the same disks by vhost-user, for virtual machines on this host |
//! | [`fronts`] | both: front ends whose clients connect again to a successor |
//! | [`listen`] | where the server listens, and what is asked of clients there |
//! | [`listeners`] | how that changes while it runs |
//! | [`security`] | TLS and access rules |
//! | [`record`], [`recordings`] | a trace of what clients ask, and its files |
//! | [`forward`] | another server's exports |
//! | [`inherit`], [`notify`] | sockets from, and notices to, the service manager |
//! | [`lease`] | the others on the store learn that the server is at work |
//! | [`lease_questions`] | a store that hangs is asked about few disks at a time, and about none twice |
//! | [`handover`] | one server follows another, and no client notices |
//! | [`process`] | which process a client is |
//! | [`prepared`] | what of a server can fail, done before an earlier one lets go |
//! | [`returning`] | who wants the disk of a client that was passed waits for it |
//! | [`reserve`] | descriptors for what must not fail |
//! | [`signals`] | what stops and reloads a server |
//! | [`reload`] | the configuration is read again |
//! | [`forecast`] | what other caches would do is followed |
//! | [`throttle`] | exports as slow, or as faulty, as a modelled disk |
//! | [`trouble`] | full and slow disks, and a slow store, are noticed |
//! | [`api`] | what the control socket asks and answers |
//! | [`client`] | how commands reach the disks that a server has open |
//! | [`control`] | the control socket |
//! | [`looks`] | who reads exports through that, beside their clients |
//! | [`orders`] | what is asked of the server itself, there and over HTTP |
//! | [`estate`] | what goes from a server to the one that follows it |
//! | [`limits`] | the limits of the configuration as the NBD server takes them |
//! | [`borrow`] | borrowed disks in use, and borrowed room for a server's disks |
//! | [`machines`] | which machine starts from which disk |
//! | [`netboot`](mod@netboot) | machines without a disk start from the home's disks |
//! | [`peers`](mod@peers) | peers of attached disks are answered, and found |
//! | [`discovery`](mod@discovery) | this server is announced to the network, others are looked for |
//! | [`descriptors`] | how many files and sockets may be open |
//! | [`names`] | the names of metrics and log fields |
//! | [`answers`] | errors as answers over HTTP |
//! | [`http_api`] | the API that changes things |
//! | [`audit`] | who changed what through the server |
//! | [`remote`] | a server on another machine, by that API |
//! | [`origin`] | where a request comes from |
//! | [`bearer`] | who asks over HTTP, and what of it is answered |
//! | [`dashboard`] | the page to leave open, and the API that it reads |
//! | [`study`] | studies of traces, each in a process of its own |
//! | [`errand`] | commands carried out for who asks over HTTP, each in a process of its own |
//! | [`vm_verbs`] | verbs on virtual machines, as they travel over HTTP |
//! | [`media_verbs`] | verbs on media, as they travel over HTTP |
//! | [`http`], [`metrics`], [`status`], [`latency`], [`head_room`] | what the server tells of itself |

mod answers;
pub mod api;
mod audit;
pub mod background;
mod bearer;
pub mod borrow;
pub mod client;
mod control;
pub mod daemon;
mod dashboard;
pub mod descriptors;
pub mod discovery;
mod errand;
mod estate;
mod exports;
mod file;
mod forecast;
pub mod forward;
mod fronts;
pub mod gateway;
mod handover;
pub mod head_room;
mod http;
mod http_api;
mod inherit;
pub mod iscsi;
pub mod latency;
mod lease;
mod lease_questions;
mod limits;
pub mod listen;
mod listeners;
mod looks;
pub mod machines;
pub mod media_verbs;
mod metrics;
mod names;
pub mod netboot;
pub mod notify;
pub mod one_client;
pub mod options;
mod orders;
mod origin;
mod peers;
mod prepared;
mod process;
pub mod record;
mod recordings;
mod reload;
pub mod remote;
mod reserve;
mod returning;
mod running;
mod security;
pub mod signals;
pub mod status;
mod study;
pub mod throttle;
pub mod trouble;
pub mod until;
mod upkeep;
pub mod vhost_user;
pub mod vm_verbs;
mod without_home;
