//! Calls of the system that do not come back until the test lets them.

use crate::tool;
use std::path::{Path, PathBuf};

/// A library that is loaded before the C library. While the file that `HOLD_SYNC` names is there,
/// syncs wait of files whose path has `HOLD_SYNC_OF` in it, each with a link to its file; while that
/// of `HOLD_READ` is there, reads do of those with `HOLD_READ_OF`.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static void hold(const char *variable)
{
    char held[4096];
    const char *path = getenv(variable);
    if (!path || access(path, F_OK) != 0)
        return;
    snprintf(held, sizeof held, "%s.held", path);
    close(open(held, O_CREAT | O_WRONLY, 0600));
    while (access(path, F_OK) == 0)
        usleep(10000);
}

static int path_of(int fd, char path[4096])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, 4095);
    path[length < 0 ? 0 : length] = 0;
    return length > 0;
}

static void hold_sync(int fd)
{
    char of[4096], link[4096];
    const char *path = getenv("HOLD_SYNC"), *wanted = getenv("HOLD_SYNC_OF");
    if (!path || !wanted || access(path, F_OK) != 0 || !path_of(fd, of) || !strstr(of, wanted))
        return;
    snprintf(link, sizeof link, "%s.of.%ld", path, syscall(SYS_gettid));
    if (symlink(of, link) != 0)
        return;
    hold("HOLD_SYNC");
    unlink(link);
}

static void hold_read(int fd)
{
    char path[4096];
    const char *of = getenv("HOLD_READ_OF");
    if (of && path_of(fd, path) && strstr(path, of))
        hold("HOLD_READ");
}

#define NEXT(type, name, ...) ((type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

int fsync(int fd)
{
    hold_sync(fd);
    return NEXT(int, fsync, int)(fd);
}

int fdatasync(int fd)
{
    hold_sync(fd);
    return NEXT(int, fdatasync, int)(fd);
}

ssize_t read(int fd, void *to, size_t size)
{
    hold_read(fd);
    return NEXT(ssize_t, read, int, void *, size_t)(fd, to, size);
}

ssize_t pread64(int fd, void *to, size_t size, off_t at)
{
    hold_read(fd);
    return NEXT(ssize_t, pread64, int, void *, size_t, off_t)(fd, to, size, at);
}
"#;

/// A file system that hangs when told to. Needs `cc`.
pub struct Hanging {
    library: PathBuf,
    sync: PathBuf,
    read: PathBuf,
    read_of: &'static str,
    sync_of: &'static str,
}

impl Hanging {
    /// Its files are in `dir`; reads hang of files with `read_of` in their path, and syncs of all.
    pub fn new(dir: &Path, read_of: &'static str) -> Self {
        std::fs::write(dir.join("hold.c"), SOURCE).expect("source");
        tool::shell(dir, &[], "cc -shared -fPIC -O1 -o hold.so hold.c -ldl");
        let path = |name: &str| dir.join(name);
        Self {
            library: path("hold.so"),
            sync: path("hold-sync"),
            read: path("hold-read"),
            read_of,
            sync_of: "",
        }
    }

    /// The same; syncs hang only of files with `sync_of` in their path.
    pub fn with_syncs_of(mut self, sync_of: &'static str) -> Self {
        self.sync_of = sync_of;
        self
    }

    /// What a process needs in its environment to be held by it.
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        vec![
            ("LD_PRELOAD", text(&self.library)),
            ("HOLD_SYNC", text(&self.sync)),
            ("HOLD_SYNC_OF", self.sync_of.to_owned()),
            ("HOLD_READ", text(&self.read)),
            ("HOLD_READ_OF", self.read_of.to_owned()),
        ]
    }

    /// Holds syncs, or lets them go.
    pub fn hold_syncs(&self, held: bool) {
        hold(&self.sync, held);
    }

    /// The files of the syncs that are held now.
    pub fn held_syncs(&self) -> Vec<PathBuf> {
        let (dir, name) = (self.sync.parent(), self.sync.file_name());
        let prefix = format!("{}.of.", name.expect("name").to_string_lossy());
        let entries = std::fs::read_dir(dir.expect("directory")).expect("directory");
        let links = entries
            .map(|entry| entry.expect("entry"))
            .filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix));
        // One may be let go just now.
        links.filter_map(|entry| std::fs::read_link(entry.path()).ok()).collect()
    }

    /// Whether a read was held since the start.
    pub fn has_held_reads(&self) -> bool {
        self.read.with_extension("held").exists()
    }

    /// Holds reads, or lets them go.
    pub fn hold_reads(&self, held: bool) {
        hold(&self.read, held);
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        // Nobody must hang for ever, whatever failed.
        let _ = std::fs::remove_file(&self.sync);
        let _ = std::fs::remove_file(&self.read);
    }
}

fn hold(file: &Path, held: bool) {
    match held {
        true => std::fs::write(file, "").expect("file"),
        false => std::fs::remove_file(file).expect("file"),
    }
}
