//! The scripts of the Debian package, run by themselves on trees that are made for it, as dpkg runs them for a tree
//! elsewhere (`DPKG_ROOT`), and those of its dracut module with programs that note how they are called. `make test-dist`
//! installs the whole package; the lab boots a guest by dracut.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use sojourn_tests::tool;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Where the package keeps its scripts.
fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/debian").join(name)
}

/// Makes a file, and the directories above it.
fn put(root: &Path, path: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "x").unwrap();
}

/// What `purge` says on standard error of a home with what an idle server leaves, and `more`.
fn purged(root: &Path, more: &[&str]) -> String {
    let idle = [
        "sojourn.toml",
        "lock",
        "audit.log",
        "audit.log.1",
        "tokens.json",
        "tokens.lock",
        "machines.lock",
        "vm-server",
        "disks/.reserve",
        "disks/.server",
        "disks/.server-place",
        "store/store.json",
        "store/reserve#0",
        "store/servers/d8e70a2988b96f5bc7ef72ee4292e65e",
        "indexes/key",
    ];
    for file in idle {
        put(root, &format!("var/lib/sojourn/{file}"));
    }
    for file in more {
        put(root, &format!("var/lib/{file}"));
    }
    let out = run("postrm", root, "purge", None);
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stderr).unwrap()
}

fn run(name: &str, root: &Path, argument: &str, first_in_path: Option<&Path>) -> Output {
    let mut path = std::env::var("PATH").unwrap();
    if let Some(dir) = first_in_path {
        path = format!("{}:{path}", dir.display());
    }
    let mut sh = Command::new("sh");
    sh.arg(script(name)).arg(argument).env("DPKG_ROOT", root).env("PATH", path);
    sh.output().unwrap()
}

#[test]
fn purging_deletes_what_nobody_misses() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("var/lib/sojourn-attached")).unwrap();
    assert_eq!(purged(dir.path(), &[]), "");
    assert_eq!(fs::read_dir(dir.path().join("var/lib")).unwrap().count(), 0);
    let out = run("postrm", dir.path(), "purge", None);
    assert!(out.status.success(), "twice: {out:?}");
}

#[test]
fn purging_keeps_whatever_may_be_missed() {
    for missed in [
        "sojourn/disks/alice/map.log",
        "sojourn/store/packs/0a/0a1b",
        "sojourn/images/packs/0a/0a1b",
        "sojourn/machines/box/pending/memory",
        "sojourn/attached/lab-0a1b2c3d/disks/alice/map.log",
        "sojourn/tls/ca-key.pem",
        "sojourn/store.key",
        "sojourn-attached/lab-0a1b2c3d/disks/alice/map.log",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let said = purged(dir.path(), &[missed]);
        assert!(said.contains(&format!("such as /var/lib/{missed}; delete it")), "{said}");
        assert!(dir.path().join("var/lib").join(missed).exists(), "{missed}");
        let own = missed.starts_with("sojourn/");
        assert_eq!(dir.path().join("var/lib/sojourn/sojourn.toml").exists(), own, "{missed}");
    }
}

#[test]
fn only_removal_stops_what_the_package_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (root, bin) = (dir.path(), dir.path().join("bin"));
    fs::create_dir_all(root.join("run/systemd/system")).unwrap();
    let wants = root.join("etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).unwrap();
    symlink("/nowhere", wants.join("sojourn-attach-system@lab-0a1b2c3d.service")).unwrap();
    put(root, "bin/systemctl");
    tool::executable(&bin.join("systemctl"), "#!/bin/sh\necho \"$@\"\n");
    let orders = |argument| {
        let out = run("prerm", root, argument, Some(&bin));
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(orders("upgrade"), "");
    let removed = orders("remove");
    assert!(removed.contains("--no-reload disable sojourn-attach-system@lab-0a1b2c3d.service\n"));
    assert!(removed.contains("\nstop sojourn-attach-system@*.service\n"), "{removed}");
}

/// A script of the dracut module.
fn dracut(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/dracut/95sojourn");
    fs::read_to_string(path.join(name)).unwrap()
}

/// What a shell prints that runs `script` with the programs of `bin`.
fn printed(script: &str, bin: &Path) -> String {
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let out = Command::new("sh").arg("-c").arg(script).env("PATH", path).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout).unwrap()
}

#[test]
fn an_address_that_was_lent_stays_when_dracut_has_ended_its_dhcp_client() {
    let dir = tempfile::tempdir().unwrap();
    // What iproute2 prints of one that was lent and one that was not.
    let ip = r#"#!/bin/sh
if [ "$4" = show ]; then
    cat <<'END'
2: ens3    inet 10.0.2.15/24 brd 10.0.2.255 scope global dynamic ens3\       valid_lft 43115sec preferred_lft 43115sec
3: ens4    inet 10.0.3.1/24 brd 10.0.3.255 scope global ens4\       valid_lft forever preferred_lft forever
END
else
    echo "ip $*"
fi
"#;
    put(dir.path(), "ip");
    tool::executable(&dir.path().join("ip"), ip);
    let said = printed(&dracut("keep-addresses.sh"), dir.path());
    let change = "addr change 10.0.2.15/24 dev ens3 valid_lft forever preferred_lft forever";
    assert_eq!(said, format!("ip -4 {change}\n"));
}

#[test]
fn dracut_finds_every_server_on_the_kernels_command_line() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "keeper");
    let keeper = dir.path().join("keeper");
    // Its own output goes nowhere.
    tool::executable(&keeper, "#!/bin/sh\nprintf '%s\\n' \"$@\" >&2\n");
    let hook = dracut("sojournroot.sh")
        .replace("/sojourn/diskless", keeper.to_str().unwrap())
        .replace("/sys/block/nbd0/pid", "/nowhere");
    // As dracut's own, which goes through the words of the command line.
    let library = r#"
getarg() {
    words='quiet root=/dev/nbd0p1 sojourn.disk=nbd://10.0.0.1/a,nbd://10.0.0.2/a ip=dhcp'
    for word in $words; do
        case $word in "$1"*) echo "${word#*=}" ;; esac
    done
}
die() {
    echo "$*"
    exit 1
}
exec 2>&1
"#;
    let said = printed(&format!("{library}{hook}"), dir.path());
    assert_eq!(said, "nbd://10.0.0.1/a\nnbd://10.0.0.2/a\n");
}
