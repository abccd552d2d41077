//! `sojourn cert`: the certificates of a server and its clients.

use super::runnable::{Invocation, Runnable, done};
use crate::output::{Output, fields, moment};
use access::{Authority, Issued};
use block::{Error, Result};
use engine::Home;
use engine::world;
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Verbs of `sojourn cert`.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum CertCommand {
    /// Make a certificate authority, which signs the others
    Ca(CaCertArgs),
    /// Make the server's certificate, or renew it
    Server(ServerCertArgs),
    /// Make a certificate for a client
    Client(ClientCertArgs),
    /// Revoke all certificates of a client
    Revoke(RevokeArgs),
}

/// Where certificates are.
#[derive(Debug, clap::Args)]
pub(crate) struct CertDirArgs {
    /// The directory of the authority [default: `tls` in the home]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn cert ca
  sojourn cert ca --name 'Lab 3' --days 3650

Whoever has ca-key.pem can make certificates that the server trusts. Keep a copy of the directory
in a safe place; the server itself does without that file.")]
pub(crate) struct CaCertArgs {
    #[command(flatten)]
    place: CertDirArgs,
    /// What it is called
    #[arg(long, value_name = "TEXT", default_value = "Sojourn")]
    name: String,
    /// How long it holds
    #[arg(long, default_value_t = 3650)]
    days: u32,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn cert server disks.example.org 192.0.2.7
  sojourn serve --nbd 0.0.0.0:10809 --tls required

Clients refuse a server that they reach by another name. A running server takes the new
certificate at SIGHUP.")]
pub(crate) struct ServerCertArgs {
    #[command(flatten)]
    place: CertDirArgs,
    /// The host names and IP addresses under which clients reach it
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// How long it holds
    #[arg(long, default_value_t = 825)]
    days: u32,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn cert client alice
  scp -r /var/lib/sojourn/tls/clients/alice alice-pc:/etc/pki/sojourn
  nbdinfo 'nbds://disks.example.org/alice?tls-certificates=/etc/pki/sojourn'

The directory has the names that QEMU and libnbd look for. Move it to the client: the server needs
nothing of it.")]
pub(crate) struct ClientCertArgs {
    #[command(flatten)]
    place: CertDirArgs,
    /// The client's name, as access rules call it
    name: String,
    /// How long it holds
    #[arg(long, default_value_t = 825)]
    days: u32,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn cert revoke alice && systemctl reload sojourn

A running server learns it at SIGHUP; it refuses the next connection, and does not end those that
are there.")]
pub(crate) struct RevokeArgs {
    #[command(flatten)]
    place: CertDirArgs,
    /// The client's name
    name: String,
}

/// A certificate that was made.
#[derive(Serialize)]
struct Made {
    dir: String,
    serial: String,
    /// Seconds since 1970.
    until: u64,
}

impl From<Issued> for Made {
    fn from(issued: Issued) -> Self {
        let dir = issued.dir.display().to_string();
        Self { dir, serial: issued.serial, until: issued.until }
    }
}

/// What was revoked.
#[derive(Serialize)]
struct Revoked {
    client: String,
    serials: Vec<String>,
}

impl CertDirArgs {
    fn resolve(&self, home: impl FnOnce() -> Result<Home>) -> Result<PathBuf> {
        match &self.dir {
            Some(dir) if dir.as_os_str().is_empty() => Err(Error::invalid("--dir is empty")),
            Some(dir) => std::path::absolute(dir).map_err(|e| Error::io(dir.display(), e)),
            None => {
                let home = home()?;
                home.must_exist()?;
                let config = engine::Config::of(&home)?;
                Ok(home.resolve(config.tls.dir.as_ref()))
            }
        }
    }
}

impl Runnable for CertCommand {
    fn works_as_owner(&self) -> bool {
        let place = match self {
            Self::Ca(args) => &args.place,
            Self::Server(args) => &args.place,
            Self::Client(args) => &args.place,
            Self::Revoke(args) => &args.place,
        };
        place.dir.is_none()
    }

    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        done(run(self, || invocation.home(), invocation.output))
    }
}

fn run(verb: &CertCommand, home: impl FnOnce() -> Result<Home>, output: Output) -> Result<()> {
    let now = world::system().clock.now();
    let made = match verb {
        CertCommand::Ca(args) => {
            Authority::create(&args.place.resolve(home)?, &args.name, args.days, now)?
        }
        CertCommand::Server(args) => {
            Authority::open(&args.place.resolve(home)?, now)?.server(&args.names, args.days)?
        }
        CertCommand::Client(args) => {
            Authority::open(&args.place.resolve(home)?, now)?.client(&args.name, args.days)?
        }
        CertCommand::Revoke(args) => {
            let serials = Authority::open(&args.place.resolve(home)?, now)?.revoke(&args.name)?;
            let revoked = Revoked { client: args.name.clone(), serials };
            return output.print(&revoked, || {
                fields(&[
                    ("client", revoked.client.clone()),
                    ("revoked", revoked.serials.join(" ")),
                ])
            });
        }
    };
    let made = Made::from(made);
    output.print(&made, || {
        let until = moment(made.until);
        fields(&[("dir", made.dir.clone()), ("serial", made.serial.clone()), ("until", until)])
    })
}
