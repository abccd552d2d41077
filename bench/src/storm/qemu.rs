//! What people run instead: a qemu-nbd for each client, each with a qcow2 overlay of its own, all
//! over one raw image on the same slow disk.

use crate::client::BenchConnection;
use anyhow::{Context, Result, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long servers and mounts may take to come up.
const START: Duration = Duration::from_secs(60);

/// Running servers; dropping them ends them.
pub(crate) struct QemuServers {
    children: Vec<Child>,
    sockets: Vec<PathBuf>,
    mount: Option<Mount>,
}

/// The export as a file, through the kernel's page cache.
struct Mount {
    child: Child,
    directory: PathBuf,
}

impl Drop for Mount {
    fn drop(&mut self) {
        let mut command = Command::new("fusermount3");
        // It may not be mounted: then there is nothing to undo.
        let _ = command.args(["-u", "-q"]).arg(&self.directory).status();
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for QemuServers {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        self.mount = None; // after those who have it open
    }
}

impl QemuServers {
    /// Starts one for each of `clients` in `dir`, over the image that is exported at `socket`.
    /// `page_cache`: they open it as a file, whose pages the kernel keeps for all of them.
    pub(crate) fn start(
        socket: &Path,
        clients: usize,
        page_cache: bool,
        dir: &Path,
    ) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let uri = format!("nbd+unix:///?socket={}", socket.display());
        let mut servers = Self { children: Vec::new(), sockets: Vec::new(), mount: None };
        let backing = match page_cache {
            false => uri,
            true => {
                let (mount, file) = mount(&uri, &dir.join("mount"))?;
                servers.mount = Some(mount);
                file.display().to_string()
            }
        };
        for number in 0..clients {
            let overlay = dir.join(format!("{number}.qcow2"));
            let mut create = Command::new("qemu-img");
            create.args(["create", "-q", "-f", "qcow2", "-F", "raw", "-b", &backing]);
            let output = create.arg(&overlay).output().context("cannot run qemu-img")?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "qemu-img: {}", said.trim());
            let socket = dir.join(format!("{number}.sock"));
            let mut serve = Command::new("qemu-nbd");
            serve.args(["--persistent", "--format", "qcow2", "--socket"]);
            serve.arg(&socket).arg(&overlay);
            serve.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            servers.children.push(serve.spawn().context("cannot run qemu-nbd")?);
            servers.sockets.push(socket);
        }
        let end = Instant::now() + START;
        for socket in &servers.sockets {
            while let Err(error) = BenchConnection::open(socket, "").map(BenchConnection::close) {
                ensure!(Instant::now() < end, "qemu-nbd does not serve: {error:#}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(servers)
    }

    /// A client of the server with this number.
    pub(crate) fn connect(&self, number: usize) -> Result<BenchConnection> {
        BenchConnection::open(&self.sockets[number], "")
    }
}

/// Mounts an export as a file.
fn mount(uri: &str, directory: &Path) -> Result<(Mount, PathBuf)> {
    fs::create_dir_all(directory)?;
    let file = directory.join("image.raw");
    let mut command = Command::new("nbdfuse");
    command.arg(&file).arg(uri).stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.stderr(Stdio::null()).spawn().context("cannot run nbdfuse")?;
    let mut mount = Mount { child, directory: directory.to_owned() };
    let end = Instant::now() + START;
    while fs::metadata(&file).is_err() {
        let ended = mount.child.try_wait()?;
        ensure!(ended.is_none(), "nbdfuse ended: mounting needs /dev/fuse and the right to");
        ensure!(Instant::now() < end, "nbdfuse mounts nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok((mount, file))
}
