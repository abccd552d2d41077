//! The arguments of an import and an export.

use block::{Error, Result};
use formats::Format;
use std::path::Path;
use store::ImageName;

/// Arguments of `sojourn image import`.
#[derive(Debug, clap::Args)]
pub(crate) struct ImportArgs {
    /// A file or block device, an NBD URI (nbd://, nbd+unix://, or nbds:// with
    /// ?tls-certificates=DIR), or - for a raw image on stdin
    pub(crate) source: String,
    /// The image's name, with or without a tag: NAME[:TAG]
    pub(crate) name: String,
    /// The source's format (raw, qcow2, vmdk, vhd, vhdx, vdi) [default: found by its magic]; raw
    /// takes the bytes as they are
    #[arg(long, value_parser = parse_format)]
    pub(crate) format: Option<Format>,
    /// The boot list: a file of ranges, or an image version whose list is taken
    #[arg(long, value_name = "FILE|IMAGE")]
    pub(crate) boot_list: Option<String>,
}

impl ImportArgs {
    /// The error for a name that is a source, and a source that is a name.
    pub(super) fn swapped(&self) -> Option<Error> {
        let named = self.source.parse::<ImageName>().is_ok() && !Path::new(&self.source).exists();
        let is_source = self.name == "-" || is_uri(&self.name) || Path::new(&self.name).exists();
        (named && is_source).then(|| {
            Error::invalid(format!(
                "the source comes first, then the name: sojourn image import {} {}",
                self.name, self.source
            ))
        })
    }
}

/// Arguments of `sojourn image export`.
#[derive(Debug, clap::Args)]
pub(crate) struct ExportArgs {
    /// NAME[:TAG]; the newest version without a tag
    pub(crate) name: String,
    /// A file to make, a block device, an NBD URI (nbd://, nbd+unix://, or nbds:// with
    /// ?tls-certificates=DIR) to write to, or - for a raw image on stdout
    pub(crate) target: String,
    /// The file's format: raw or qcow2 [default: qcow2 when the file's name ends so, else raw]
    #[arg(long, value_parser = parse_format)]
    pub(crate) format: Option<Format>,
    /// Replace the file when it exists, or what the block device holds
    #[arg(long)]
    pub(crate) force: bool,
    /// Another store with the same key that is asked for what is missing or damaged; may be repeated
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) source: Vec<String>,
}

/// Whether an argument is an NBD URI.
pub(super) fn is_uri(text: &str) -> bool {
    ["nbd", "nbds"].iter().any(|scheme| {
        text.strip_prefix(scheme)
            .is_some_and(|rest| rest.starts_with("://") || rest.starts_with("+unix://"))
    })
}

/// Reads a format's name.
fn parse_format(text: &str) -> Result<Format> {
    text.parse()
}
