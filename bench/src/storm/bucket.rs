//! A store behind an [`Arm`]: as much of S3 as an object store's client needs, over a directory, on
//! this machine's own TCP. Whoever asks may do everything: signatures are not looked at.

use super::arm::Arm;
use anyhow::{Context, Result, ensure};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// The longest object that is put, in bytes.
const LONGEST: usize = 64 << 20;

/// A running bucket; it ends with the process.
pub(crate) struct Bucket {
    address: SocketAddr,
}

struct BucketState {
    directory: PathBuf,
    arm: Arc<Arm>,
    /// Two who create the same object do so one after the other.
    creating: Mutex<()>,
}

impl Bucket {
    /// Serves `directory`; every object that is read takes the arm's time.
    pub(crate) fn start(directory: &Path, arm: Arc<Arm>) -> Result<Self> {
        fs::create_dir_all(directory)?;
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(BucketState {
            directory: directory.to_owned(),
            arm,
            creating: Mutex::default(),
        });
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                // A client that goes away ends its connection and nothing else.
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Ok(Self { address })
    }

    /// The store's URL.
    pub(crate) fn url(&self) -> &'static str {
        "s3://bucket/store"
    }

    /// Where a client finds the bucket.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://{}", self.address);
        [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ACCESS_KEY_ID", "bench"),
            ("AWS_SECRET_ACCESS_KEY", "bench"),
            ("AWS_REGION", "us-east-1"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }
}

/// A request's head.
#[derive(Default)]
struct RequestHead {
    method: String,
    /// Below the bucket, decoded.
    key: String,
    query: Vec<(String, String)>,
    range: Option<(u64, u64)>,
    length: usize,
    only_new: bool,
}

struct HttpResponse {
    status: &'static str,
    headers: String,
    body: Vec<u8>,
}

impl HttpResponse {
    fn new(status: &'static str) -> Self {
        Self { status, headers: String::new(), body: Vec::new() }
    }

    fn xml(body: String) -> Self {
        let headers = "Content-Type: application/xml\r\n".to_owned();
        Self { status: "200 OK", headers, body: body.into_bytes() }
    }
}

impl BucketState {
    fn serve(&self, stream: TcpStream) -> Result<()> {
        stream.set_nodelay(true)?;
        let mut input = BufReader::new(stream.try_clone()?);
        let mut output = stream;
        while let Some(head) = read_head(&mut input)? {
            ensure!(head.length <= LONGEST, "an object of {} bytes", head.length);
            let mut body = vec![0; head.length];
            input.read_exact(&mut body)?;
            let answer = self.answer(&head, &body).unwrap_or_else(|error| {
                let mut answer = HttpResponse::new("500 Internal Server Error");
                answer.body = error.to_string().into_bytes();
                answer
            });
            let only_head = head.method == "HEAD";
            let length = match only_head {
                true => String::new(), // among the headers
                false => format!("Content-Length: {}\r\n", answer.body.len()),
            };
            let mut bytes = format!("HTTP/1.1 {}\r\n{}{length}\r\n", answer.status, answer.headers)
                .into_bytes();
            if !only_head {
                bytes.extend_from_slice(&answer.body);
            }
            output.write_all(&bytes)?;
        }
        Ok(())
    }

    fn answer(&self, head: &RequestHead, body: &[u8]) -> Result<HttpResponse> {
        ensure!(!head.key.split('/').any(|part| part == ".."), "a key that leads elsewhere");
        let path = self.directory.join(&head.key);
        let asked = |name: &str| head.query.iter().find(|(key, _)| key == name);
        match head.method.as_str() {
            "GET" if asked("list-type").is_some() => {
                let value = |name| asked(name).map_or("", |(_, value)| value.as_str());
                self.list(value("prefix"), !value("delimiter").is_empty())
            }
            "GET" | "HEAD" => self.get(head, &path),
            "PUT" => self.put(head, &path, body),
            "POST" if asked("delete").is_some() => {
                let text = String::from_utf8_lossy(body);
                for part in text.split("<Key>").skip(1) {
                    let key = part.split("</Key>").next().unwrap_or_default();
                    ensure!(!key.contains(".."), "a key that leads elsewhere");
                    // Deleting what is not there is no error in S3.
                    let _ = fs::remove_file(self.directory.join(key));
                }
                Ok(HttpResponse::xml("<DeleteResult></DeleteResult>".to_owned()))
            }
            _ => Ok(HttpResponse::new("501 Not Implemented")),
        }
    }

    fn get(&self, head: &RequestHead, path: &Path) -> Result<HttpResponse> {
        let Ok(meta) = fs::metadata(path).and_then(|meta| {
            if meta.is_file() { Ok(meta) } else { Err(std::io::ErrorKind::NotFound.into()) }
        }) else {
            return Ok(HttpResponse::new("404 Not Found\r\nContent-Length: 0"));
        };
        let size = meta.len();
        let (first, last) = head.range.unwrap_or((0, u64::MAX));
        let end = last.saturating_add(1).min(size);
        ensure!(first <= end, "a range beyond the end");
        let mut answer =
            HttpResponse::new(if head.range.is_some() { "206 Partial Content" } else { "200 OK" });
        write!(
            answer.headers,
            "ETag: \"{size:x}\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
        )?;
        if head.range.is_some() {
            write!(
                answer.headers,
                "Content-Range: bytes {first}-{}/{size}\r\n",
                end.saturating_sub(1)
            )?;
        }
        if head.method == "HEAD" {
            write!(answer.headers, "Content-Length: {size}\r\n")?;
            return Ok(answer);
        }
        self.arm.read(&head.key, first, end - first);
        answer.body.resize((end - first) as usize, 0);
        fs::File::open(path)?.read_exact_at(&mut answer.body, first)?;
        Ok(answer)
    }

    fn put(&self, head: &RequestHead, path: &Path, body: &[u8]) -> Result<HttpResponse> {
        let _alone = self.creating.lock().unwrap_or_else(PoisonError::into_inner);
        if head.only_new && path.exists() {
            return Ok(HttpResponse::new("412 Precondition Failed"));
        }
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        let fresh = self.directory.join(".fresh");
        fs::write(&fresh, body)?;
        fs::rename(&fresh, path)?;
        let mut answer = HttpResponse::new("200 OK");
        write!(answer.headers, "ETag: \"{:x}\"\r\n", body.len())?;
        Ok(answer)
    }

    fn list(&self, prefix: &str, only_here: bool) -> Result<HttpResponse> {
        let mut keys = Vec::new();
        collect(&self.directory, "", &mut keys)?;
        keys.sort();
        let mut body = String::from("<ListBucketResult>");
        write!(body, "<KeyCount>{}</KeyCount><IsTruncated>false</IsTruncated>", keys.len())?;
        let mut folders: Vec<String> = Vec::new();
        for (key, size) in &keys {
            let Some(rest) = key.strip_prefix(prefix) else { continue };
            match rest.split_once('/') {
                Some((folder, _)) if only_here => {
                    let folder = format!("{prefix}{folder}/");
                    if folders.last() != Some(&folder) {
                        folders.push(folder);
                    }
                }
                _ => write!(
                    body,
                    "<Contents><Key>{key}</Key><Size>{size}</Size><ETag>&quot;{size:x}&quot;</ETag>\
                     <LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
                )?,
            }
        }
        for folder in folders {
            write!(body, "<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>")?;
        }
        body.push_str("</ListBucketResult>");
        Ok(HttpResponse::xml(body))
    }
}

/// The files below a directory, as keys, with their sizes.
fn collect(directory: &Path, prefix: &str, keys: &mut Vec<(String, u64)>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let key = format!("{prefix}{name}");
        // What is listed may be gone before it is looked at.
        let Ok(meta) = entry.metadata() else { continue };
        if meta.is_dir() {
            collect(&entry.path(), &format!("{key}/"), keys)?;
        } else if name != ".fresh" {
            keys.push((key, meta.len()));
        }
    }
    Ok(())
}

/// The head of the next request; `None` when the client is done.
fn read_head(input: &mut impl BufRead) -> Result<Option<RequestHead>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, target) = words.next().zip(words.next()).context("not a request")?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
    let mut head =
        RequestHead { method: method.to_owned(), key: decoded(key), ..RequestHead::default() };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        head.query.push((name.to_owned(), decoded(value)));
    }
    loop {
        line.clear();
        ensure!(input.read_line(&mut line)? > 0, "the client went away in a request");
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        let value = value.trim();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => head.length = value.parse()?,
            "if-none-match" => head.only_new = value == "*",
            "range" => {
                let bounds = value.strip_prefix("bytes=").and_then(|range| range.split_once('-'));
                let (first, last) = bounds.context("a range of another kind")?;
                let last = if last.is_empty() { u64::MAX } else { last.parse()? };
                head.range = Some((first.parse()?, last));
            }
            _ => {}
        }
    }
    Ok(Some(head))
}

/// Undoes percent encoding.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let digits = (byte == b'%').then(|| [rest.next(), rest.next()]);
        let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
        match digits {
            Some([high, low]) => match digit(high).zip(digit(low)) {
                Some((high, low)) => bytes.push((high * 16 + low) as u8),
                None => bytes.push(b'?'),
            },
            None => bytes.push(if byte == b'+' { b' ' } else { byte }),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn ask(bucket: &Bucket, text: &str, body: &[u8]) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(bucket.address).unwrap();
        let request = format!("{text}Content-Length: {}\r\n\r\n", body.len());
        stream.write_all(&[request.as_bytes(), body].concat()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let at = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8_lossy(&answer[..at]).into_owned();
        (head, answer.split_off(at + 4))
    }

    #[test]
    fn objects_are_created_once_read_in_parts_listed_and_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let arm = Arc::new(Arm::new(Duration::ZERO, 1e9));
        arm.start();
        let bucket = Bucket::start(dir.path(), Arc::clone(&arm)).unwrap();
        let put = "PUT /bucket/refs/a%3Ab HTTP/1.1\r\nIf-None-Match: *\r\n";
        assert!(ask(&bucket, put, b"0123456789").0.starts_with("HTTP/1.1 200"));
        assert!(ask(&bucket, put, b"x").0.starts_with("HTTP/1.1 412"));
        let get = "GET /bucket/refs/a%3Ab HTTP/1.1\r\nRange: bytes=2-4\r\n";
        let (head, body) = ask(&bucket, get, b"");
        assert!(head.contains("206") && head.contains("bytes 2-4/10"), "{head}");
        assert_eq!(body, b"234");
        assert_eq!(arm.stop().bytes, 3);
        let list = "GET /bucket?list-type=2&prefix=refs%2F HTTP/1.1\r\n";
        let (_, body) = ask(&bucket, list, b"");
        let text = String::from_utf8(body).unwrap();
        assert!(text.contains("<Key>refs/a:b</Key><Size>10</Size>"), "{text}");
        let delete = "POST /bucket?delete HTTP/1.1\r\n";
        ask(&bucket, delete, b"<Delete><Object><Key>refs/a:b</Key></Object></Delete>");
        assert!(ask(&bucket, get, b"").0.starts_with("HTTP/1.1 404"));
    }
}
