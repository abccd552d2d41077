//! The page's own files. They are built from `web/` by `web/build.mjs`, which a check repeats.

use axum::body::Body;
use axum::http::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, IF_NONE_MATCH, VARY,
};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::sync::LazyLock;

/// A file as it is answered.
struct Asset {
    path: &'static str,
    kind: &'static str,
    plain: &'static [u8],
    packed: Vec<u8>,
    /// The entity tag of the one that is not compressed.
    tag: String,
}

/// Where each is, what it is, and what is in it.
const FILES: [(&str, &str, &[u8]); 4] = [
    ("/", "text/html; charset=utf-8", include_bytes!("../../assets/index.html")),
    ("/app.js", "text/javascript; charset=utf-8", include_bytes!("../../assets/app.js")),
    ("/app.css", "text/css; charset=utf-8", include_bytes!("../../assets/app.css")),
    ("/icon.svg", "image/svg+xml", include_bytes!("../../assets/icon.svg")),
];

/// Compressed once, when the first page is asked for.
static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| FILES.map(Asset::new).into());

/// All of them together, by content: another page has another one.
pub(super) static PAGE: LazyLock<String> = LazyLock::new(|| tag(&FILES.map(|(_, _, plain)| plain)));

impl Asset {
    fn new((path, kind, plain): (&'static str, &'static str, &'static [u8])) -> Self {
        let mut packer = GzEncoder::new(Vec::new(), Compression::best());
        // Into memory: it does not fail.
        let packed = packer.write_all(plain).and_then(|()| packer.finish()).unwrap_or_default();
        Self { path, kind, plain, packed, tag: tag(&plain) }
    }
}

fn tag(content: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// The paths of the files.
pub(super) fn paths() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(path, ..)| *path)
}

/// A file, if it is another than the one that the client has. Browsers ask each time: a server that was
/// updated has its new page shown, and one that was not answers in a few bytes.
pub(super) fn send(path: &str, asked: &HeaderMap) -> Option<Response> {
    let asset = ASSETS.iter().find(|asset| asset.path == path)?;
    let value = |name| asked.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let packs = !asset.packed.is_empty() && takes_gzip(value(ACCEPT_ENCODING));
    let tag = format!("\"{}{}\"", asset.tag, if packs { "-gzip" } else { "" });
    let common = [(ETAG, tag.as_str()), (CACHE_CONTROL, "no-cache"), (VARY, "accept-encoding")];
    let known = value(IF_NONE_MATCH).split(',').map(str::trim);
    if known.map(|known| known.strip_prefix("W/").unwrap_or(known)).any(|known| known == tag) {
        return Some((StatusCode::NOT_MODIFIED, common).into_response());
    }
    let body = Bytes::from_static(if packs { &asset.packed } else { asset.plain });
    let mut response = (common, [(CONTENT_TYPE, asset.kind)], Body::from(body)).into_response();
    if packs {
        let gzip = axum::http::HeaderValue::from_static("gzip");
        response.headers_mut().insert(CONTENT_ENCODING, gzip);
    }
    Some(response)
}

/// Whether a client takes gzip, by its `Accept-Encoding`.
fn takes_gzip(accepted: &str) -> bool {
    accepted.split(',').any(|one| {
        let (name, weight) = one.split_once(';').unwrap_or((one, ""));
        let refused = weight.trim().strip_prefix("q=").is_some_and(|q| {
            q.parse::<f32>().is_ok_and(|weight| weight == 0.0) //
        });
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use std::io::Read;

    /// Compressed, all of them together: what a first visit costs.
    const MOST_BYTES: usize = 150 << 10;

    #[test]
    fn the_page_is_small_and_unpacks_to_itself() {
        let packed: usize = ASSETS.iter().map(|asset| asset.packed.len()).sum();
        assert!(packed <= MOST_BYTES, "{packed} bytes");
        for asset in ASSETS.iter() {
            let mut unpacked = Vec::new();
            GzDecoder::new(&*asset.packed).read_to_end(&mut unpacked).unwrap();
            assert_eq!(unpacked, asset.plain, "{}", asset.path);
        }
    }

    #[test]
    fn the_page_asks_no_other_host_and_has_no_script_of_its_own() {
        let page = std::str::from_utf8(FILES[0].2).unwrap();
        assert!(!page.contains("http:") && !page.contains("https:"), "{page}");
        assert!(!page.contains("style="), "the policy refuses it");
        let scripts = page.matches("<script").count();
        assert_eq!((scripts, page.matches("<script src=").count()), (1, 1), "{page}");
    }

    #[test]
    fn what_a_browser_has_is_not_sent_again() {
        let mut asked = HeaderMap::new();
        let first = send("/app.js", &asked).unwrap();
        assert_eq!(first.headers()[CONTENT_TYPE], "text/javascript; charset=utf-8");
        assert!(!first.headers().contains_key(CONTENT_ENCODING));
        asked.insert(ACCEPT_ENCODING, "br;q=1.0, gzip;q=0.5".parse().unwrap());
        let packed = send("/app.js", &asked).unwrap();
        assert_eq!(packed.headers()[CONTENT_ENCODING], "gzip");
        assert_ne!(packed.headers()[ETAG], first.headers()[ETAG]);
        asked.insert(IF_NONE_MATCH, first.headers()[ETAG].clone());
        assert_eq!(send("/app.js", &asked).unwrap().status(), StatusCode::OK);
        let both = format!("\"x\", W/{}", packed.headers()[ETAG].to_str().unwrap());
        asked.insert(IF_NONE_MATCH, both.parse().unwrap());
        assert_eq!(send("/app.js", &asked).unwrap().status(), StatusCode::NOT_MODIFIED);
        assert!(!takes_gzip("gzip;q=0, br") && !takes_gzip("") && takes_gzip("br, GZIP"));
        assert!(send("/nothing", &asked).is_none());
    }
}
