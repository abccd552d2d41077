//! Processes that die in the middle of what they do to files.
//!
//! A kill from outside rarely meets the moment between a rename and the sync of the directory. So a
//! library that is loaded before the C library kills the process itself, just before or just after one
//! of the calls that make changes of files durable or visible.

use sojourn_tests::tool;
use std::path::{Path, PathBuf};

const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static uint64_t number(const char *variable)
{
    const char *text = getenv(variable);
    return text ? strtoull(text, 0, 10) : 0;
}

static uint64_t calls;

/* 0: live on; 1: die before the call; 2: die after it. */
static int fate(const char *odds)
{
    uint64_t one_in = number(odds);
    uint64_t z = number("DIE_SEED") + 0x9e3779b97f4a7c15ULL * __sync_add_and_fetch(&calls, 1);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    z ^= z >> 31;
    if (one_in == 0 || (z >> 8) % one_in)
        return 0;
    return 1 + (z & 1);
}

static void die(int now)
{
    if (now)
        kill(getpid(), SIGKILL);
}

#define NEXT(type, name, ...) ((type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))
#define LIVE_AND_DIE(odds, call) \
    int lot = fate(odds);        \
    die(lot == 1);               \
    int result = call;           \
    die(lot == 2);               \
    return result

static const char *odds_of(int fd)
{
    struct stat status;
    return fstat(fd, &status) == 0 && S_ISDIR(status.st_mode) ? "DIE_NAMES" : "DIE_DATA";
}

int fsync(int fd)
{
    LIVE_AND_DIE(odds_of(fd), NEXT(int, fsync, int)(fd));
}

int fdatasync(int fd)
{
    LIVE_AND_DIE("DIE_DATA", NEXT(int, fdatasync, int)(fd));
}

int rename(const char *from, const char *to)
{
    LIVE_AND_DIE("DIE_NAMES", NEXT(int, rename, const char *, const char *)(from, to));
}

int link(const char *from, const char *to)
{
    LIVE_AND_DIE("DIE_NAMES", NEXT(int, link, const char *, const char *)(from, to));
}

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
    LIVE_AND_DIE("DIE_NAMES", NEXT(int, linkat, int, const char *, int, const char *, int)
        (from_dir, from, to_dir, to, flags));
}

int unlink(const char *path)
{
    LIVE_AND_DIE("DIE_NAMES", NEXT(int, unlink, const char *)(path));
}
"#;

/// The library.
pub(crate) struct Dying {
    library: PathBuf,
}

impl Dying {
    /// Builds it in `dir`. Needs `cc`.
    pub(crate) fn new(dir: &Path) -> Self {
        std::fs::write(dir.join("die.c"), SOURCE).expect("source");
        tool::shell(dir, &[], "cc -shared -fPIC -O1 -o die.so die.c -ldl");
        Self { library: dir.join("die.so") }
    }

    /// What a process needs in its environment to die at one in `data` syncs of files and one in `names`
    /// changes or syncs of directories; 0 is never.
    pub(crate) fn environment(
        &self,
        seed: u64,
        data: u64,
        names: u64,
    ) -> [(&'static str, String); 4] {
        [
            ("LD_PRELOAD", self.library.to_string_lossy().into_owned()),
            ("DIE_SEED", seed.to_string()),
            ("DIE_DATA", data.to_string()),
            ("DIE_NAMES", names.to_string()),
        ]
    }
}
