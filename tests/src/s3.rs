//! An S3 server: versitygw, over a directory.

use crate::home::free_port;
use crate::tool::path;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// A running S3 server with a bucket `bucket`; ended when dropped.
pub struct S3 {
    child: Child,
    address: String,
    dir: TempDir,
}

impl S3 {
    /// Starts one; `None`, and a message, when the program is not there.
    pub fn start() -> Option<Self> {
        let built = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.work/bin/versitygw");
        let mut places =
            std::env::split_paths(&path()).map(|dir| dir.join("versitygw")).collect::<Vec<_>>();
        places.insert(0, built);
        let Some(program) = places.into_iter().find(|path| path.exists()) else {
            eprintln!("skipped: no versitygw; scripts/setup s3 builds it");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        for name in ["data/bucket", "sidecar"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let address = free_port().to_string();
        let child = Command::new(program)
            .args(["--access", "key", "--secret", "secret", "--quiet", "--port", &address])
            .args(["posix", "--sidecar"])
            .args([dir.path().join("sidecar"), dir.path().join("data")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let end = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(&address).is_err() {
            assert!(Instant::now() < end, "versitygw does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(Self { child, address, dir })
    }

    /// What its users have in their environment; they reach it at `address`, or where it is.
    pub fn environment(&self, address: Option<&str>) -> Vec<(&'static str, String)> {
        let endpoint = format!("http://{}", address.unwrap_or(&self.address));
        vec![
            ("AWS_ACCESS_KEY_ID", "key".into()),
            ("AWS_SECRET_ACCESS_KEY", "secret".into()),
            ("AWS_ENDPOINT_URL", endpoint),
        ]
    }

    /// The directory of its bucket, with an object in each file.
    pub fn bucket(&self) -> PathBuf {
        self.dir.path().join("data/bucket")
    }

    /// Where it is.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
