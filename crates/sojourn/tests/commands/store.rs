//! `sojourn store`: checking a place, copying to another store, publishing.

use crate::common::Lab;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// The address of a web server for the files of a directory.
fn web(directory: PathBuf) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let Some(Ok(request)) = lines.next() else { continue };
            let headers: Vec<String> =
                lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let (head, rest) = answer(&directory, &request, &headers);
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&rest));
        }
    });
    address
}

fn answer(directory: &Path, request: &str, headers: &[String]) -> (String, Vec<u8>) {
    let end = "Connection: close\r\n\r\n";
    let mut words = request.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    let Ok(bytes) = std::fs::read(directory.join(path.trim_start_matches('/'))) else {
        return (format!("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n{end}"), Vec::new());
    };
    let range = headers.iter().find_map(|line| {
        let line = line.to_lowercase();
        let (first, last) = line.strip_prefix("range: bytes=")?.split_once('-')?;
        let last = last.parse().map_or(bytes.len() - 1, |last: usize| last.min(bytes.len() - 1));
        Some((first.parse::<usize>().ok()?, last))
    });
    let (status, part) = match range {
        Some((first, last)) => (
            format!("206 Partial Content\r\nContent-Range: bytes {first}-{last}/{}", bytes.len()),
            &bytes[first..=last],
        ),
        None => ("200 OK".to_owned(), &bytes[..]),
    };
    let length = part.len();
    let rest = if method == "HEAD" { Vec::new() } else { part.to_vec() };
    (format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{end}"), rest)
}

#[test]
fn a_directory_can_be_trusted_with_a_store_and_is_left_as_it_was() {
    let (lab, _) = Lab::with_image();
    let before = crate::common::listing(&lab.home().join("store"));
    let report = lab.json("store check --rounds 2");
    assert_eq!(report["passed"], true, "{report}");
    assert!(report["findings"].as_array().unwrap().len() >= 8);
    assert_eq!(crate::common::listing(&lab.home().join("store")), before);
    let text = lab.line("store check --rounds 1 home/store").ok();
    assert!(text.contains("one creator wins") && !text.contains("FAILED"), "{text}");
    lab.line("store check nowhere").fails(3, &["nowhere"]);
    lab.line("store check ftp://x").fails(10, &["ftp", "s3://"]);
}

#[test]
fn images_are_copied_once_into_a_store_with_another_key() {
    let (lab, golden) = Lab::with_image();
    let other = Lab::empty();
    std::fs::write(other.path("key"), [7; 32]).unwrap();
    other.line("--key-file key init --encrypt").ok();
    let (from, to) = (lab.home().join("store"), other.home().join("store"));
    let line = format!("store copy {} {} --to-key-file key", from.display(), to.display());
    let copied = other.json(&line);
    assert_eq!(copied[0]["image"], "debian:1");
    assert!(copied[0]["outcome"]["made"]["new_chunks"].as_u64().unwrap() > 0, "{copied}");
    assert_eq!(other.json(&format!("{line} debian"))[0]["outcome"], "present");
    other.line("--key-file key image export debian out.raw").ok();
    assert!(std::fs::read(other.path("out.raw")).unwrap() == golden);
    // Another version of the same name is not overwritten.
    lab.file("second.raw", &crate::common::content(crate::common::MIB, 9));
    lab.line("image remove debian:1").ok();
    lab.line("image import second.raw debian:1").ok();
    other.line(&line).fails(4, &["debian:1"]);
    other.line(&format!("{line} nobody:1")).fails(3, &["nobody:1"]);
    other.line(&format!("store copy nowhere {}", to.display())).fails(3, &["nowhere"]);
}

#[test]
fn a_copy_makes_its_store_but_not_one_in_clear_of_what_is_encrypted() {
    let (lab, golden) = Lab::with_image();
    let store = lab.home().join("store");
    for outcome in ["made", "present"] {
        let copied = lab.json(&format!("store copy {} usb/store", store.display()));
        let found = &copied[0]["outcome"];
        assert!(found == outcome || found.get(outcome).is_some(), "{copied}");
    }
    let other = Lab::empty();
    other.line(&format!("init --store {}", lab.path("usb/store").display())).ok();
    other.line("image export debian out.raw").ok();
    assert!(std::fs::read(other.path("out.raw")).unwrap() == golden);

    let secret = Lab::empty();
    std::fs::write(secret.path("key"), [7; 32]).unwrap();
    secret.line("--key-file key init --encrypt").ok();
    secret.file("one.raw", &crate::common::content(4096, 1));
    secret.line("--key-file key image import one.raw debian").ok();
    let line = format!("--key-file key store copy {}", secret.home().join("store").display());
    secret.line(&format!("{line} usb")).fails(3, &["usb", "init --encrypt --store usb"]);
    assert!(!secret.path("usb").exists());
}

#[test]
fn what_is_encrypted_is_not_copied_in_clear_to_where_a_key_was_given_for() {
    let (secret, clear, golden) = (Lab::empty(), Lab::empty(), Lab::with_image().0);
    std::fs::write(secret.path("key"), [7; 32]).unwrap();
    secret.line("--key-file key init --encrypt").ok();
    secret.file("one.raw", &crate::common::content(4096, 1));
    secret.line("--key-file key image import one.raw debian").ok();
    std::fs::create_dir(secret.path("usb")).unwrap();
    let usb = secret.path("usb/store");
    clear.line(&format!("init --store {}", usb.display())).ok();
    let line =
        format!("--key-file key store copy {} usb/store", secret.home().join("store").display());
    let says = ["usb/store", "not encrypted", "--to-key-file names key"];
    secret.line(&format!("{line} --to-key-file key")).fails(9, &says);
    assert!(crate::common::listing(&usb.join("refs/image")).is_empty());
    secret.line(&line).ok();
    // The home knows that its own store is an encrypted one.
    let config = clear.home().join("sojourn.toml");
    let settings = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, format!("key_file = \"store.key\"\n{settings}")).unwrap();
    let from = golden.home().join("store");
    let line = format!("store copy {} file://{}", from.display(), usb.display());
    clear.line(&line).fails(9, &["not encrypted", "store.key"]);
}

#[test]
fn a_version_that_cannot_be_copied_keeps_no_other_from_it() {
    let ((lab, _), other) = (Lab::with_image(), Lab::new());
    let content = crate::common::content(4096, 2);
    lab.file("one.raw", &content);
    lab.line("image import one.raw ubuntu").ok();
    other.file("other.raw", &crate::common::content(4096, 9));
    other.line("image import other.raw debian:1").ok();
    let (from, to) = (lab.home().join("store"), other.home().join("store"));
    let line = format!("store copy {} {}", from.display(), to.display());
    for _ in 0..2 {
        other.line(&line).fails(4, &["1 of 2 versions were not copied", "copying image debian:1"]);
    }
    other.line("image export ubuntu out.raw").ok();
    assert!(std::fs::read(other.path("out.raw")).unwrap() == content);
}

#[test]
fn any_number_of_versions_is_copied_between_two_encrypted_stores() {
    let (lab, other) = (Lab::empty(), Lab::empty());
    std::fs::write(lab.path("from.key"), [5; 32]).unwrap();
    std::fs::write(other.path("to.key"), [7; 32]).unwrap();
    lab.line("--key-file from.key init --encrypt").ok();
    other.line("--key-file to.key init --encrypt").ok();
    // More than one session can hold.
    for version in 1..=33 {
        lab.file("one.raw", &crate::common::content(4096, version));
        lab.line(&format!("--key-file from.key image import one.raw debian:{version}")).ok();
    }
    let (from, to) = (lab.home().join("store"), other.home().join("store"));
    let key = lab.path("from.key");
    let line = format!(
        "store copy {} {} --from-key-file {} --to-key-file to.key",
        from.display(),
        to.display(),
        key.display()
    );
    assert_eq!(other.json(&line).as_array().unwrap().len(), 33);
    other.line("--key-file to.key image export debian:33 out.raw").ok();
    assert!(std::fs::read(other.path("out.raw")).unwrap() == crate::common::content(4096, 33));
    let wrong = line.replace(" to.key", &format!(" {}", key.display()));
    other.line(&wrong).fails(9, &["wrong key file", &to.display().to_string()]);
}

#[test]
fn publishing_lists_every_object() {
    let (lab, _) = Lab::with_image();
    let store = lab.home().join("store");
    // The room that is kept for when the disk is full is no object.
    let is_object = |(path, _): &(std::path::PathBuf, u64)| !path.ends_with("reserve#0");
    let objects = crate::common::listing(&store).into_iter().filter(is_object).count();
    for _ in 0..2 {
        assert_eq!(lab.json("store publish")["objects"], objects);
    }
    let text = std::fs::read_to_string(store.join("listing")).unwrap();
    assert!(text.starts_with("sojourn-listing 1 ") && text.contains(" refs/image/debian:1/"));
}

#[test]
fn images_are_served_from_a_store_that_is_read_only() {
    let (lab, golden) = Lab::with_image();
    lab.line("store publish").ok();
    let other = Lab::empty();
    let address = web(lab.home().join("store"));
    other.line(&format!("init --store {address}")).ok();
    other.line("image export debian out.raw").ok();
    assert!(std::fs::read(other.path("out.raw")).unwrap() == golden);
    other.line("serve --export debian:1 --run true").ok();
}

#[test]
fn a_bucket_without_credentials_is_refused_at_once_with_the_remedy() {
    let lab = Lab::empty();
    for (url, remedy) in [
        ("s3://bucket/p", "AWS_ACCESS_KEY_ID"),
        ("gs://bucket/p", "GOOGLE_APPLICATION_CREDENTIALS"),
        ("az://bucket/p", "AZURE_STORAGE_ACCOUNT_KEY"),
    ] {
        for verb in ["store check", "init --store"] {
            let start = std::time::Instant::now();
            let mut command = lab.command(verb.split(' ').chain([url]));
            command.env_clear().env("HOME", lab.path("nobody"));
            crate::common::Done::from(command.output().unwrap())
                .fails(9, &["no credentials", remedy]);
            // A machine's own credentials are asked for at an address that may never answer.
            assert!(start.elapsed().as_secs() < 60, "{verb} {url}: {:?}", start.elapsed());
        }
    }
}

/// The address of an S3 whose bucket is empty and that has no room, and how often it was asked for some.
fn full_bucket() -> (String, Arc<AtomicUsize>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let counted = Arc::new(AtomicUsize::new(0));
    let writes = Arc::clone(&counted);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let mut head = Vec::new();
            for line in reader.by_ref().lines().map_while(Result::ok) {
                match line.is_empty() {
                    true => break,
                    false => head.push(line.to_lowercase()),
                }
            }
            let length = head.iter().find_map(|line| line.strip_prefix("content-length: "));
            let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
            let _ = std::io::copy(&mut reader.take(length), &mut std::io::sink());
            let request = head.first().map_or("", String::as_str);
            let (status, body) = match request {
                put if put.starts_with("put ") => {
                    writes.fetch_add(1, SeqCst);
                    // No code that says it: MinIO's is one of its own, others send a page.
                    ("507 Insufficient Storage", "<html>\n<h1>full</h1>\n</html>\n")
                }
                list if list.contains("list-type=2") => (
                    "200 OK",
                    "<ListBucketResult><KeyCount>0</KeyCount><IsTruncated>false</IsTruncated>\
                     </ListBucketResult>",
                ),
                _ => ("404 Not Found", "<Error><Code>NoSuchKey</Code></Error>"),
            };
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {length}\r\n\
                 Connection: close\r\n\r\n"
            );
            let _ = stream.write_all(head.as_bytes());
            if !request.starts_with("head ") {
                let _ = stream.write_all(body.as_bytes());
            }
        }
    });
    (address, counted)
}

#[test]
fn a_bucket_without_room_is_named_in_one_line_and_not_asked_again() {
    let (address, writes) = full_bucket();
    let lab = Lab::empty();
    for verb in ["init --store", "store check"] {
        let mut command = lab.command(verb.split(' ').chain(["s3://bucket/p"]));
        command.env_clear().env("HOME", lab.path("nobody"));
        command.env("AWS_ENDPOINT_URL", &address).env("AWS_ALLOW_HTTP", "true");
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        let done = crate::common::Done::from(command.output().unwrap());
        done.fails(8, &["the store is full", "free some room"]);
        assert_eq!(writes.swap(0, SeqCst), 1, "{verb}");
    }
}
