//! Other servers: exports by their URIs, and the HTTP API that `--server` names.

use block::{Error, Result};
use nbd::{ClientOptions, Remote, Uri};
use server::remote::{RemoteServer, ServerUrl};
use std::io::Read;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The variable that has a token.
const TOKEN: &str = "SOJOURN_TOKEN";
/// The longest file of a token, in bytes.
const LONGEST_TOKEN: u64 = 4096;

/// Where libnbd looks for certificates when a URI does not say: of the system, and below the home of
/// a user.
const SYSTEM: &str = "/etc/pki/libnbd";
const USER: [&str; 2] = [".pki/libnbd", ".config/pki/libnbd"];

/// Connects to an export.
///
/// # Errors
/// Any error from [`Remote::connect`], and any error from [`options`].
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

/// The server at a URL, with the token of a file, or of the environment.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when nobody says where the certificates of an `https` URL are, and
/// for a file that holds no token; any error from the files.
pub(crate) fn server(url: &ServerUrl, token_file: Option<&Path>) -> Result<RemoteServer> {
    let tls = match url.https {
        false => None,
        true => {
            let Some(dir) = url.place.certificates.clone().or_else(usual_place) else {
                return Err(Error::invalid(format!(
                    "{url}: say with ?tls-certificates=DIR where ca-cert.pem is, and client-cert.pem and \
                     client-key.pem for a server that asks for them"
                )));
            };
            Some(access::client::client_config(&dir).map_err(|e| e.context(url))?)
        }
    };
    let token = match token_file {
        Some(path) => Some(token_of(path)?),
        None => std::env::var(TOKEN).ok().filter(|token| !token.is_empty()).map(Zeroizing::new),
    };
    RemoteServer::new(url.clone(), tls, token)
}

/// The token in a file, which has nothing else.
fn token_of(path: &Path) -> Result<Zeroizing<String>> {
    let io = |e| Error::io(path.display(), e);
    let mut text = Zeroizing::new(String::new());
    let file = std::fs::File::open(path).map_err(io)?;
    file.take(LONGEST_TOKEN + 1).read_to_string(&mut text).map_err(io)?;
    let token = Zeroizing::new(text.trim().to_owned());
    if token.is_empty() || text.len() as u64 > LONGEST_TOKEN || token.contains(char::is_whitespace)
    {
        let path = path.display();
        return Err(Error::invalid(format!(
            "{path} does not hold a token alone: `sojourn token create NAME --read > FILE` makes such a file"
        )));
    }
    Ok(token)
}

fn usual_place() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let root = rustix::process::geteuid().is_root();
    let below_home =
        home.filter(|_| !root).into_iter().flat_map(|home| USER.map(|dir| home.join(dir)));
    below_home.chain([PathBuf::from(SYSTEM)]).find(|dir| dir.is_dir())
}
