//! `sojourn netboot`: machines without a disk start from this home's disks.

use super::runnable::{Invocation, Runnable, finish};
use block::{Error, Result};
use clap::ValueEnum;
use disk::Mode;
use engine::Home;
use netboot::dhcp::leases::AddressRange;
use netboot::registry::Method;
use server::netboot::{Handing, MenuOptions, NetbootOptions, Rule, UnknownMachines};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use store::ImageName;

/// Images that a screen of 80 columns and 25 lines shows beside the rest.
const MOST_IMAGES: usize = 16;

/// Arguments of `sojourn netboot`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn netboot --interface lan0                  beside the network's own DHCP server
  sojourn netboot --interface lan0 --unknown wait   new machines say who they are, and wait
  sojourn netboot --interface lan0 --from debian --name 'lab-{mac}'
                                                    new machines get a disk each
  sojourn netboot --interface lab0 --dhcp 10.0.0.100-10.0.0.200
                                                    as the only DHCP server of that network
  sojourn netboot --interface lan0 --menu --menu-image debian
                                                    who sits at a machine chooses what it starts

The home's server must run, and listen where the machines reach it:
  sojourn serve --nbd 10.0.0.1:10809 --iscsi 10.0.0.1:3260 --insecure
Which machine has which disk: sojourn machine. docs/netboot.md has the whole way, and what is safe.")]
pub(crate) struct Args {
    /// The network interface of the machines
    #[arg(long, value_name = "IF")]
    interface: String,
    /// Hand out these addresses, to whoever asks: there must be no other DHCP server
    #[arg(long, value_name = "FIRST-LAST")]
    dhcp: Option<AddressRange>,
    /// The router that machines are told of
    #[arg(long, value_name = "IP", requires = "dhcp")]
    router: Option<Ipv4Addr>,
    /// A name server that machines are told of; may be repeated
    #[arg(long, value_name = "IP", requires = "dhcp")]
    dns: Vec<Ipv4Addr>,
    /// For how long an address is handed out, in seconds
    #[arg(long, value_name = "SECONDS", requires = "dhcp", default_value_t = 86_400,
        value_parser = clap::value_parser!(u64).range(60..=31_536_000))]
    lease: u64,
    /// The port of the HTTP server
    #[arg(long, value_name = "PORT", default_value_t = 8067)]
    http_port: u16,
    /// Where iPXE lies: undionly.kpxe, snponly.efi, snponly-arm64.efi [default: /usr/lib/ipxe]
    #[arg(long, value_name = "DIR")]
    firmware: Option<PathBuf>,
    /// The program that keeps the disk of a machine that starts by NBD [default: sojourn-diskless of the package]
    #[arg(long, value_name = "PATH")]
    helper: Option<PathBuf>,
    /// Another server of the same store that may take disks over: machines that start by NBD look for theirs there,
    /// too; may be repeated
    #[arg(long, value_name = "IP:PORT")]
    also: Vec<SocketAddr>,
    /// Have machines in the list show a menu: their disk, their own disk, images, repairs
    #[arg(long)]
    menu: bool,
    /// An image that the menu offers to any of them, on a disk that forgets what is written; may be repeated
    #[arg(long, value_name = "IMAGE", requires = "menu")]
    menu_image: Vec<String>,
    /// How long a menu waits for somebody, in seconds
    #[arg(long, value_name = "SECONDS", requires = "menu", default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..=3600))]
    menu_seconds: u32,
    /// What a machine gets that is not in the list: no answer, or a screen that says who it is
    #[arg(
        long,
        value_enum,
        value_name = "WHAT",
        default_value = "ignore",
        conflicts_with = "from"
    )]
    unknown: Strangers,
    /// Give a machine that is not in the list a disk of this image
    #[arg(long, value_name = "IMAGE")]
    from: Option<String>,
    /// The name of such a machine and its disk
    #[arg(long, value_name = "PATTERN", requires = "from", default_value = "m-{mac}")]
    name: String,
    /// Such a disk forgets what is written when its machine leaves
    #[arg(long, requires = "from")]
    ephemeral: bool,
    /// Each write to such a disk is answered when the store has it: another server goes on with it when this one is lost
    #[arg(long, requires = "from", conflicts_with = "ephemeral")]
    write_through: bool,
    /// How such a machine reaches its disk
    #[arg(long, value_enum, requires = "from", default_value = "iscsi")]
    method: MethodArg,
    /// How many machines get a disk in this way
    #[arg(long, value_name = "COUNT", requires = "from", default_value_t = 100)]
    most: usize,
}

/// About machines that are not in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Strangers {
    /// They get no answer
    Ignore,
    /// They wait until they are assigned a disk
    Wait,
}

/// How a machine reaches its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum MethodArg {
    /// The disk's own boot loader, over iSCSI: any system that knows iSCSI
    Iscsi,
    /// The kernel of the disk, its root over NBD: Debian and its relatives
    Nbd,
    /// The machine's own disk
    Local,
}

impl From<MethodArg> for Method {
    fn from(method: MethodArg) -> Self {
        match method {
            MethodArg::Iscsi => Self::Iscsi,
            MethodArg::Nbd => Self::Nbd,
            MethodArg::Local => Self::Local,
        }
    }
}

// Root becomes the home's owner, who has the low ports from the service manager.
impl Runnable for Args {
    fn default_log(&self) -> Option<&'static str> {
        Some("info")
    }

    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        finish(run(self, &invocation.home()?))
    }
}

/// Serves until a signal stops it.
async fn run(args: &Args, home: &Home) -> Result<()> {
    let unknown = match (&args.from, args.unknown) {
        (Some(from), _) => UnknownMachines::Enrol(rule(args, from)?),
        (None, Strangers::Wait) => UnknownMachines::Wait,
        (None, Strangers::Ignore) => UnknownMachines::Ignore,
    };
    let dhcp = args.dhcp.map(|range| Handing {
        range,
        router: args.router,
        name_servers: args.dns.clone(),
        lasts: args.lease,
    });
    let options = NetbootOptions {
        interface: args.interface.clone(),
        dhcp,
        http_port: args.http_port,
        firmware: args.firmware.clone(),
        helper: args.helper.clone(),
        others: args.also.clone(),
        unknown,
        menu: menu(args)?,
    };
    server::netboot::run(home, options).await
}

/// What machines may choose from.
fn menu(args: &Args) -> Result<Option<MenuOptions>> {
    if args.menu_image.len() > MOST_IMAGES {
        return Err(Error::invalid(format!(
            "a menu has room for {MOST_IMAGES} images: leave some --menu-image out"
        )));
    }
    for image in &args.menu_image {
        image.parse::<ImageName>()?;
    }
    let (images, seconds) = (args.menu_image.clone(), args.menu_seconds);
    Ok(args.menu.then_some(MenuOptions { images, seconds }))
}

fn rule(args: &Args, from: &str) -> Result<Rule> {
    if !args.name.contains("{mac}") {
        return Err(Error::invalid(format!(
            "--name {} would give all machines one name; put {{mac}} into it",
            args.name
        )));
    }
    if matches!(args.method, MethodArg::Local) {
        return Err(Error::invalid(
            "machines with --method local start from their own disks and need none from an image: leave --from out, \
             or say --method iscsi or --method nbd",
        ));
    }
    let example = args.name.replace("{mac}", "525400123456");
    netboot::registry::check_name(&example)?;
    Ok(Rule {
        from: from.to_owned(),
        name: args.name.clone(),
        mode: Mode::chosen(args.ephemeral, args.write_through)?,
        method: args.method.into(),
        most: args.most,
    })
}
