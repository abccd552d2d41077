//! Which requests are answered at all, and the headers of every answer.
//!
//! A browser sends requests for whatever page its user has open. One of another origin cannot read our
//! answers, as nothing allows it to (no CORS). One whose name was changed to point at us in the middle of a
//! visit (DNS rebinding) could, as it is of the same origin then: it is known by its `Host`, which is the
//! attacker's name. An IP address in it cannot be rebound, and with TLS no certificate has that name.

use crate::answers::refusal;
use crate::bearer::looks;
use axum::extract::{Request, State};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HOST, HeaderName, ORIGIN, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::Response;
use block::Error;
use std::net::IpAddr;

/// The one path that answers whatever the `Host` is: it tells nothing.
const HEALTH: &str = "/healthz";
/// Below it is what a page of another origin has no reason to ask for.
const API: &str = "/api/";
/// Everything the page needs is ours, and nobody may frame it.
const POLICY: &str = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      object-src 'none'";

/// What every answer says.
fn headers() -> [(HeaderName, &'static str); 5] {
    [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ]
}

/// Who may be asked for by which name.
#[derive(Debug, Clone)]
pub(crate) struct Guard {
    /// The machine's own name, and those that it was given; `None` where TLS proves the name.
    names: Option<Vec<String>>,
}

impl Guard {
    /// For a port that is `encrypted` or not, on a machine that also has the names `more`.
    pub(crate) fn new(encrypted: bool, more: &[String]) -> Self {
        let own = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let names = || std::iter::once(own()).chain(more.iter().cloned()).collect();
        Self { names: (!encrypted).then(names) }
    }

    /// Fails for a request that no page of ours, and no script of the machine's owner, would send.
    fn check(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), (StatusCode, Error)> {
        if let Some(names) = &self.names
            && uri.path() != HEALTH
        {
            let asked = headers.get(HOST).map(|host| host.to_str().unwrap_or("?"));
            let authority = uri.authority().map(|authority| authority.as_str());
            let foreign = |host: &&str| !is_ours(host, names);
            // A client without a host is no browser.
            if let Some(host) = asked.into_iter().chain(authority).find(foreign) {
                let shown: String = host.chars().take(80).collect();
                let message = format!(
                    "{shown:?} is not a name of this machine: ask by its IP address, localhost or \
                     {}, name it in serve.http_names, or serve HTTP with TLS (docs/security.md)",
                    names.join(", ")
                );
                return Err((StatusCode::MISDIRECTED_REQUEST, Error::denied(message)));
            }
        }
        let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
        let elsewhere = matches!(site, Some(b"cross-site" | b"same-site"));
        if elsewhere && uri.path().starts_with(API) {
            let message = "a page of another origin has asked for this";
            return Err((StatusCode::FORBIDDEN, Error::denied(message)));
        }
        // A browser that does not say that much says the origin of what changes something.
        let host = headers.get(HOST).map(HeaderValue::as_bytes);
        let foreign = |origin: &HeaderValue| {
            let origin = origin.as_bytes();
            let of =
                [&b"http://"[..], b"https://"].into_iter().find_map(|s| origin.strip_prefix(s));
            of.is_none() || of != host
        };
        if !looks(method) && headers.get_all(ORIGIN).iter().any(foreign) {
            let message = "a page of another origin would change this";
            return Err((StatusCode::FORBIDDEN, Error::denied(message)));
        }
        Ok(())
    }
}

/// Whether `host`, with or without a port, is an IP address, localhost or one of `names`.
fn is_ours(host: &str, names: &[String]) -> bool {
    if let Some(rest) = host.strip_prefix('[') {
        let (inside, port) = rest.split_once(']').unwrap_or((rest, "?"));
        let address = inside.parse::<IpAddr>();
        return address.is_ok_and(|address| address.is_ipv6())
            && (port.is_empty() || is_port(port));
    }
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name.parse::<IpAddr>().is_ok()
        || name == "localhost"
        || name.ends_with(".localhost")
        || names.iter().any(|own| !own.is_empty() && name.eq_ignore_ascii_case(own))
}

fn is_port(text: &str) -> bool {
    text.strip_prefix(':').is_some_and(|port| port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Answers, or says why not.
pub(crate) async fn guard(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let mut response = match guard.check(request.method(), request.uri(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err((status, error)) => {
            tracing::debug!(error = error.message(), "an HTTP request is not answered");
            refusal(status, &error)
        }
    };
    let map = response.headers_mut();
    for (name, value) in headers() {
        map.insert(name, HeaderValue::from_static(value));
    }
    map.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(guard: &Guard, path: &str, headers: &[(&'static str, &str)]) -> Option<StatusCode> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        guard.check(&Method::GET, &path.parse().unwrap(), &map).err().map(|(status, _)| status)
    }

    #[test]
    fn a_name_that_was_rebound_to_this_machine_is_refused() {
        let plain = Guard { names: Some(vec!["Lab7".into(), "lab.Example".into()]) };
        let ours = [
            "127.0.0.1",
            "127.0.0.1:9180",
            "[::1]",
            "[::1]:9180",
            "192.0.2.1:80",
            "localhost",
            "LOCALHOST:9180",
            "localhost.:1",
            "sub.localhost:1",
            "lab7",
            "LAB7:9180",
            "LAB.example:9180",
        ];
        for host in ours {
            assert_eq!(asked(&plain, "/", &[("host", host)]), None, "{host}");
        }
        let foreign = [
            "evil.example",
            "evil.example:9180",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "lab7.evil.example",
            "evil.lab.example",
            "example",
            "evil.example:",
            "[::1].evil.example",
            "[::1",
            "[127.0.0.1]",
            "",
            "a b",
        ];
        for host in foreign {
            let refused = Some(StatusCode::MISDIRECTED_REQUEST);
            for path in ["/", "/api/v1/status", "/metrics", "/v1/status", "/nothing"] {
                assert_eq!(asked(&plain, path, &[("host", host)]), refused, "{host}");
            }
            assert_eq!(asked(&plain, "/healthz", &[("host", host)]), None);
            let encrypted = Guard::new(true, &[]);
            assert_eq!(asked(&encrypted, "/", &[("host", host)]), None);
        }
        let absolute = asked(&plain, "http://evil.example/", &[("host", "localhost")]);
        assert_eq!(absolute, Some(StatusCode::MISDIRECTED_REQUEST));
        assert_eq!(asked(&plain, "/", &[]), None, "HTTP/1.0");
        assert_eq!(
            asked(&Guard { names: Some(vec![String::new()]) }, "/", &[("host", "x")]),
            Some(StatusCode::MISDIRECTED_REQUEST)
        );
    }

    #[test]
    fn a_page_of_another_origin_reaches_the_page_and_not_the_api() {
        let plain = Guard { names: Some(vec!["lab7".into()]) };
        for (site, api) in [
            ("cross-site", Some(StatusCode::FORBIDDEN)),
            ("same-site", Some(StatusCode::FORBIDDEN)),
            ("same-origin", None),
            ("none", None),
        ] {
            let headers = [("host", "localhost"), ("sec-fetch-site", site)];
            assert_eq!(asked(&plain, "/api/v1/live", &headers), api, "{site}");
            assert_eq!(asked(&plain, "/", &headers), None, "a link to the page: {site}");
        }
    }

    #[test]
    fn what_changes_something_comes_from_no_other_page() {
        let guard = Guard::new(true, &[]);
        let asked = |method: Method, origin: &str| {
            let headers = HeaderMap::from_iter([
                (HOST, HeaderValue::from_static("lab:9180")),
                (ORIGIN, origin.parse().unwrap()),
            ]);
            guard.check(&method, &"/api/v1/disks".parse().unwrap(), &headers).is_ok()
        };
        for ours in ["http://lab:9180", "https://lab:9180"] {
            assert!(asked(Method::POST, ours) && asked(Method::DELETE, ours), "{ours}");
        }
        for foreign in ["http://evil.example", "http://lab:80", "null", "lab:9180", "", "file://"] {
            assert!(!asked(Method::POST, foreign) && !asked(Method::DELETE, foreign), "{foreign}");
            assert!(asked(Method::GET, foreign), "it reads nothing there: {foreign}");
        }
    }
}
