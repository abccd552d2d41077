//! A profile as a TOML file; docs/model.md describes it.

use crate::network::{CentreKind, MOST_SERVERS};
use crate::profile::{Demand, Profile, ProfileCentre};
use block::{ByteSize, Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the file that this build reads and writes.
pub const VERSION: u32 = 1;
/// The longest file that is read, in bytes.
pub const LONGEST: usize = 1 << 20;

/// A kind of clients in a file.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ClassEntry {
    /// Its name.
    pub name: String,
    /// How many clients it has.
    pub clients: u32,
    /// Milliseconds between an answer and the next request.
    #[serde(default)]
    pub think_ms: f64,
    /// Bytes of a request, as people write sizes.
    pub block: String,
    /// The share of its requests that the cache answers, 0 to 1.
    pub hit: f64,
}

/// What a file holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Contents {
    /// The server.
    pub profile: Profile,
    /// Kinds of clients, if the file names some.
    pub classes: Vec<ClassEntry>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Text {
    version: u32,
    name: String,
    centre: Vec<CentreEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    class: Vec<ClassEntry>,
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct CentreEntry {
    name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    servers: Option<u32>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    delay: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    request_ms: Option<Times>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    miss_ms: Option<Times>,
    #[serde(default, skip_serializing_if = "is_nothing")]
    piece_ms: f64,
}

fn is_nothing(ms: &f64) -> bool {
    *ms == 0.0
}

/// Milliseconds: one for all block sizes, or by block size.
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Times {
    One(f64),
    BySize(BTreeMap<String, f64>),
}

/// Reads a file's text.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) with the line, or naming the centre;
/// [`Unsupported`](block::ErrorKind::Unsupported) for another version.
pub fn parse(text: &str) -> Result<Contents> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    if text.len() > LONGEST {
        return Err(Error::invalid(format!("a profile of more than {LONGEST} bytes")));
    }
    let wrong = |e: toml::de::Error| {
        let line = e.span().map(|span| {
            let line = text.get(..span.start).unwrap_or(text).matches('\n').count() + 1;
            format!("line {line}: ")
        });
        let message = e.message().trim().replace('\n', " ");
        Error::invalid(format!(
            "{}{message}; docs/model.md describes the file",
            line.unwrap_or_default()
        ))
    };
    let version = toml::from_str::<Version>(text).map_err(wrong)?.version;
    if version != VERSION {
        return Err(Error::unsupported(format!(
            "a profile of version {version}: this build reads version {VERSION}"
        )));
    }
    let file: Text = toml::from_str(text).map_err(wrong)?;
    let centres = file.centre.into_iter().map(centre).collect::<Result<Vec<_>>>()?;
    let profile = Profile { name: file.name, centres };
    profile.check()?;
    for class in &file.class {
        class
            .block
            .parse::<ByteSize>()
            .map_err(|e| e.context(format!("class {:?}", class.name)))?;
    }
    Ok(Contents { profile, classes: file.class })
}

fn centre(entry: CentreEntry) -> Result<ProfileCentre> {
    let context = |e: Error| e.context(format!("centre {:?}", entry.name));
    let kind = match (entry.delay, entry.servers) {
        (true, None) => CentreKind::Delay,
        (false, None | Some(1)) => CentreKind::Queue,
        (false, Some(count)) if (2..=MOST_SERVERS).contains(&count) => CentreKind::Servers(count),
        (true, Some(_)) => {
            return Err(context(Error::invalid("a delay has no servers: remove one of the two")));
        }
        (false, Some(_)) => {
            return Err(context(Error::invalid(format!("servers go from 1 to {MOST_SERVERS}"))));
        }
    };
    let request = demand(entry.request_ms.as_ref()).map_err(context)?;
    let miss = demand(entry.miss_ms.as_ref()).map_err(context)?;
    Ok(ProfileCentre { name: entry.name, kind, request, miss, piece: entry.piece_ms * 1e-3 })
}

fn demand(times: Option<&Times>) -> Result<Demand> {
    match times {
        None => Ok(Demand::default()),
        Some(Times::One(ms)) => Demand::constant(ms * 1e-3),
        Some(Times::BySize(by_size)) => {
            let points =
                by_size.iter().map(|(size, ms)| Ok((size.parse::<ByteSize>()?.0, ms * 1e-3)));
            Demand::points(points.collect::<Result<_>>()?)
        }
    }
}

/// Writes a profile as a file's text; every line of `notes` becomes a comment.
///
/// # Errors
/// Any error from [`Profile::check`].
pub fn render(profile: &Profile, notes: &str) -> Result<String> {
    profile.check()?;
    let times = |demand: &Demand| match demand.as_points() {
        [] => None,
        [(1, seconds)] => Some(Times::One(milliseconds(*seconds))),
        points => Some(Times::BySize(
            points.iter().map(|(bytes, s)| (exact(*bytes), milliseconds(*s))).collect(),
        )),
    };
    let centre = profile.centres.iter().map(|centre| CentreEntry {
        name: centre.name.clone(),
        servers: match centre.kind {
            CentreKind::Servers(count) => Some(count),
            _ => None,
        },
        delay: centre.kind == CentreKind::Delay,
        request_ms: times(&centre.request),
        miss_ms: times(&centre.miss),
        piece_ms: milliseconds(centre.piece),
    });
    let file = Text {
        version: VERSION,
        name: profile.name.clone(),
        centre: centre.collect(),
        class: Vec::new(),
    };
    let text = toml::to_string(&file)
        .map_err(|e| Error::internal(format!("cannot write a profile: {e}")))?;
    let notes: String = notes.lines().map(|line| format!("# {line}\n")).collect();
    Ok(notes + &text)
}

/// Milliseconds to the tenth of a nanosecond, so that the text is short.
fn milliseconds(seconds: f64) -> f64 {
    (seconds * 1e10).round() / 1e7
}

/// A block size that reads back as the same number.
fn exact(bytes: u64) -> String {
    match bytes {
        b if b % (1 << 20) == 0 => format!("{}M", b >> 20),
        b if b % (1 << 10) == 0 => format!("{}K", b >> 10),
        b => b.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = r#"
version = 1
name = "a small server"

[[centre]]
name = "cpu"
servers = 4
request_ms = { 4K = 0.1, 32K = 0.23 }
miss_ms = 0.05

[[centre]]
name = "disk"
miss_ms = { 4K = 6.76, 32K = 7.2 }

[[centre]]
name = "client"
delay = true
request_ms = 0.3
piece_ms = 0.25

[[class]]
name = "boot"
clients = 5
block = "32K"
hit = 0.9
"#;

    #[test]
    fn a_file_is_read_and_reads_back_as_it_was_written() {
        let contents = parse(EXAMPLE).unwrap();
        let centres = &contents.profile.centres;
        assert_eq!(centres[0].kind, CentreKind::Servers(4));
        assert!((centres[0].request.at(4096) - 1e-4).abs() < 1e-15);
        assert!((centres[0].miss.at(1) - 5e-5).abs() < 1e-15);
        assert_eq!(centres[2].kind, CentreKind::Delay);
        assert_eq!(centres.iter().map(|c| c.piece).collect::<Vec<_>>(), [0.0, 0.0, 0.25e-3]);
        assert_eq!(contents.classes[0].clients, 5);
        let text = render(&contents.profile, "one\ntwo").unwrap();
        assert!(text.starts_with("# one\n# two\n"), "{text}");
        assert_eq!(parse(&text).unwrap().profile, contents.profile);
        let paper = Profile::transcom().unwrap();
        assert_eq!(parse(&render(&paper, "").unwrap()).unwrap().profile, paper);
    }

    #[test]
    fn the_examples_of_the_documentation_are_right() {
        let page = include_str!("../../../docs/model.md");
        let examples: Vec<&str> =
            page.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert_eq!(examples.len(), 2);
        let both = parse(&examples.concat()).unwrap();
        assert_eq!((both.profile.centres.len(), both.classes.len()), (3, 2));
        parse(examples[0]).unwrap();
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, word) in [
            ("version = 1", "version = 2", "version 2"),
            ("version = 1", "", "version"),
            ("servers = 4", "servers = 0", "cpu"),
            ("servers = 4", "servers = 4\ndelay = true", "remove one"),
            ("miss_ms = 0.05", "miss_ms = -1", "cpu"),
            ("piece_ms = 0.25", "piece_ms = -1", "client"),
            ("4K = 0.1", "4Q = 0.1", "4Q"),
            ("delay = true", "dealy = true", "dealy"),
            ("name = \"disk\"", "name = \"cpu\"", "cpu"),
            ("block = \"32K\"", "block = \"x\"", "boot"),
            ("0.3", "nan", "client"),
        ] {
            assert!(EXAMPLE.contains(from));
            let error = parse(&EXAMPLE.replace(from, to)).unwrap_err();
            assert!(error.message().contains(word), "{to}: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,200}") {
            let _ = parse(&text);
            let _ = parse(&format!("version = 1\n{text}"));
        }
    }
}
