//! Exports of other servers, by their URIs.

use block::{Error, Result};
use nbd::{ClientOptions, Remote, Uri};
use std::path::PathBuf;

/// Where libnbd looks for certificates when a URI does not say: of the system, and below the home of
/// a user.
const SYSTEM: &str = "/etc/pki/libnbd";
const USER: [&str; 2] = [".pki/libnbd", ".config/pki/libnbd"];

/// Connects to an export.
///
/// # Errors
/// As [`Remote::connect`], and as [`options`].
pub(crate) async fn connect(uri: &Uri) -> Result<Remote> {
    Remote::connect(uri, options(uri)?).await
}

/// How a client of the export behaves; with its certificates, when the URI asks for encryption.
///
/// # Errors
/// When the certificates cannot be read, or nobody says where they are.
pub(crate) fn options(uri: &Uri) -> Result<ClientOptions> {
    let Some(tls) = &uri.tls else { return Ok(ClientOptions::default()) };
    let Some(dir) = tls.certificates.clone().or_else(usual_place) else {
        return Err(Error::invalid(format!(
            "{uri}: say with ?tls-certificates=DIR where the certificates are: ca-cert.pem, and \
             client-cert.pem and client-key.pem for a server that asks for them"
        )));
    };
    let tls = access::client_tls(&dir).map_err(|e| e.context(uri))?;
    Ok(ClientOptions { tls: Some(tls), ..ClientOptions::default() })
}

fn usual_place() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let root = rustix::process::geteuid().is_root();
    let below_home =
        home.filter(|_| !root).into_iter().flat_map(|home| USER.map(|dir| home.join(dir)));
    below_home.chain([PathBuf::from(SYSTEM)]).find(|dir| dir.is_dir())
}
