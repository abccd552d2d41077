//! TLS, certificates and access rules, with libnbd and QEMU as clients: the right ones are served,
//! and everybody else is refused.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a failed step is a failed test")]

use rustix::process::{Pid, Signal, kill_process};
use sojourn_tests::home::free_port;
use sojourn_tests::tool::{shell, shell_fails, sojourn, texts};
use sojourn_tests::{Home, Server, clients, content, require};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const MIB: usize = 8;

/// A home with an authority, a server's certificate, the disks `alice` and `bob`, and clients of
/// these names. Each may write its own disk and read the image.
fn lab() -> Home {
    let home = Home::new();
    home.import("golden:1", &content::image(1, MIB));
    home.disk("alice", "golden");
    home.disk("bob", "golden");
    home.run(&["cert", "ca"]);
    home.run(&["cert", "server", "localhost", "127.0.0.1"]);
    home.run(&["cert", "client", "alice"]);
    home.run(&["cert", "client", "bob"]);
    let rules = "access = [\n{ certificate = \"*\", write = [\"{name}\"], read = [\"golden:*\"] },\n\
                 { uid = 4000000000, write = [\"bob\"] },\n]\n";
    prepend(&home.path("home/sojourn.toml"), rules);
    home
}

fn prepend(path: &Path, text: &str) {
    let rest = std::fs::read_to_string(path).expect("configuration");
    std::fs::write(path, format!("{text}{rest}")).expect("configuration");
}

/// A server on TCP and on a unix socket, with TLS in this mode.
fn serve(home: &Home, mode: &str) -> (Server, String) {
    let port = free_port().port().to_string();
    let server = home.serve_with(&["--nbd", &format!("127.0.0.1:{port}"), "--tls", mode]);
    (server, port)
}

/// Runs a script that knows how to speak to the server: `$P` is its port, `$T/NAME` the directory
/// of a client's certificate.
fn script(home: &Home, port: &str, script: &str) -> String {
    let tls = home.path("home/tls/clients");
    shell(home.dir(), &[("P", port), ("T", &tls.to_string_lossy())], script)
}

/// The same, of a script that must fail.
fn fails(home: &Home, port: &str, script: &str) -> String {
    let tls = home.path("home/tls/clients");
    shell_fails(home.dir(), &[("P", port), ("T", &tls.to_string_lossy())], script)
}

/// Asks for the size of an export, as a client.
fn size(client: &str, export: &str) -> String {
    format!(r#"nbdinfo --size "nbds://localhost:$P/{export}?tls-certificates=$T/{client}""#)
}

/// QEMU's options for an export, as a client.
fn qemu(client: &str, export: &str) -> String {
    format!(
        "--object tls-creds-x509,id=t,endpoint=client,dir=$T/{client} --image-opts \
         driver=nbd,host=localhost,port=$P,export={export},tls-creds=t"
    )
}

#[test]
fn clients_with_the_right_certificate_use_their_own_disk() {
    clients::each(|| {
        require!("nbdinfo", "nbdcopy", "qemu-img", "qemu-io");
        let home = lab();
        let (server, port) = serve(&home, "required");
        let bytes = content::image(7, MIB);
        content::write_sparse(&home.path("in.raw"), &bytes);
        script(
            &home,
            &port,
            r#"U="nbds://localhost:$P/alice?tls-certificates=$T/alice"
        nbdcopy in.raw "$U"; nbdcopy "$U" out.raw; cmp in.raw out.raw
        nbdcopy --connections=4 --requests=32 "$U" again.raw; cmp in.raw again.raw"#,
        );
        script(
            &home,
            &port,
            &format!(
                "qemu-img info {q}; qemu-img convert -O raw {q} q.raw; cmp in.raw q.raw
             qemu-io -c 'write -P 7 0 64k' -c flush -c 'read -P 7 0 64k' {q}",
                q = qemu("alice", "alice")
            ),
        );
        script(&home, &port, &size("bob", "bob"));
        assert!(server.log().contains("cert:alice@"), "sessions are logged by certificate");
        server.stop();
    });
}

#[test]
fn a_good_certificate_opens_no_other_clients_disk() {
    clients::each(|| {
        require!("nbdinfo", "qemu-img", "nbdsh");
        let home = lab();
        let (server, port) = serve(&home, "required");
        fails(&home, &port, &size("alice", "bob"));
        fails(&home, &port, &format!("qemu-img info {}", qemu("alice", "bob")));
        let of_others = fails(&home, &port, &size("alice", "bob"));
        let of_nobody = fails(&home, &port, &size("alice", "bbb"));
        assert_eq!(of_others.replace("bob", "bbb"), of_nobody, "absent and denied look the same");
        let list = script(
            &home,
            &port,
            r#"nbdinfo --list --json "nbds://localhost:$P/?tls-certificates=$T/alice""#,
        );
        assert!(list.contains("\"alice\"") && list.contains("\"golden:1\""), "{list}");
        assert!(!list.contains("bob"), "{list}");
        // The image may be read, and not be written.
        script(
            &home,
            &port,
            r#"nbdsh -c '
import os
h.set_uri_allow_local_file(True)
h.connect_uri("nbds://localhost:%s/golden:1?tls-certificates=%s/alice" % (os.environ["P"], os.environ["T"]))
assert h.is_read_only()
h.set_strict_mode(0)
try: h.pwrite(bytes(512), 0); raise SystemExit("written")
except nbd.Error as e: assert e.errno == "EPERM", e
h.pread(512, 0)'"#,
        );
        server.stop();
    });
}

#[test]
fn a_file_is_for_every_client_with_a_certificate_of_the_authority_that_was_named() {
    clients::each(|| {
        require!("nbdinfo", "nbdsh", "qemu-io");
        let home = Home::new();
        for cert in [&["ca"][..], &["server", "localhost"], &["client", "alice"]] {
            home.run(&[&["cert"], cert, &["--dir", "home/tls"]].concat());
        }
        std::fs::write(home.path("file"), content::image(1, MIB)).unwrap();
        let port = free_port().port().to_string();
        let (at, tls) = (format!("127.0.0.1:{port}"), home.path("home/tls").display().to_string());
        let more = ["--nbd", &at, "--tls", "required", "--tls-dir", &tls, "--format", "raw"];
        let server = home.serve_file(&home.path("file"), &more);
        script(&home, &port, &size("alice", ""));
        script(
            &home,
            &port,
            &format!("qemu-io -c 'write -P 7 0 64k' -c flush {}", qemu("alice", "")),
        );
        assert_eq!(std::fs::read(home.path("file")).unwrap()[..65536], [7; 65536]);
        fails(&home, &port, r#"nbdinfo --size "nbd://localhost:$P/""#);
        home.run(&["cert", "ca", "--dir", "other"]);
        home.run(&["cert", "client", "alice", "--dir", "other"]);
        script(&home, &port, r#"cp "$T/alice/ca-cert.pem" other/clients/alice/"#);
        let stranger =
            r#"nbdinfo --size "nbds://localhost:$P/?tls-certificates=$PWD/other/clients/alice""#;
        fails(&home, &port, stranger);
        server.stop();
    });
}

#[test]
fn plain_connections_are_refused_where_tls_is_required() {
    clients::each(|| {
        require!("nbdinfo", "qemu-img", "nbdsh");
        let home = lab();
        let (server, port) = serve(&home, "required");
        fails(&home, &port, r#"nbdinfo --size "nbd://localhost:$P/alice""#);
        fails(&home, &port, r#"nbdinfo --list "nbd://localhost:$P/""#);
        let told = fails(&home, &port, r#"qemu-img info "nbd://localhost:$P/alice""#);
        assert!(told.to_lowercase().contains("tls"), "{told}");
        // One that asks for TLS and shows no certificate.
        fails(
            &home,
            &port,
            r#"mkdir none; cp "$T/alice/ca-cert.pem" none
        nbdinfo --size "nbds://localhost:$P/alice?tls-certificates=$PWD/none""#,
        );
        script(&home, &port, &size("alice", "alice"));
        server.stop();
    });
}

#[test]
fn certificates_that_are_unknown_expired_or_revoked_are_refused() {
    clients::each(|| {
        require!("nbdinfo", "openssl");
        let home = lab();
        let (server, port) = serve(&home, "required");
        // Another authority, which calls its client alice too.
        home.run(&["cert", "ca", "--dir", "other"]);
        home.run(&["cert", "client", "alice", "--dir", "other"]);
        script(&home, &port, r#"cp "$T/alice/ca-cert.pem" other/clients/alice/"#);
        let other = |name: &str| {
            format!(r#"nbdinfo --size "nbds://localhost:$P/alice?tls-certificates=$PWD/{name}""#)
        };
        fails(&home, &port, &other("other/clients/alice"));
        // Our authority's signature, on a certificate that ended.
        script(
            &home,
            &port,
            r#"mkdir -p old; cp "$T/alice/ca-cert.pem" "$T/alice/client-key.pem" old
        printf 'extendedKeyUsage=clientAuth\n' > ext
        openssl req -new -key old/client-key.pem -subj /CN=alice -out old.csr
        sign() { openssl x509 -req -in old.csr -CA home/tls/ca-cert.pem -CAkey home/tls/ca-key.pem \
            -set_serial "$1" -days "$2" -extfile ext -out old/client-cert.pem; }
        sign 1 -1"#,
        );
        fails(&home, &port, &other("old"));
        script(
            &home,
            &port,
            r#"openssl x509 -req -in old.csr -CA home/tls/ca-cert.pem -CAkey home/tls/ca-key.pem \
            -set_serial 2 -days 1 -extfile ext -out old/client-cert.pem"#,
        );
        script(&home, &port, &other("old")); // that was the only thing wrong with it
        // Revoked, while the server runs.
        script(&home, &port, r#"cp -r "$T/alice" kept"#);
        script(&home, &port, &other("kept"));
        home.run(&["cert", "revoke", "alice"]);
        server.reload("certificates read again");
        fails(&home, &port, &other("kept"));
        script(&home, &port, &size("bob", "bob"));
        home.run(&["cert", "client", "alice"]);
        script(&home, &port, &size("alice", "alice"));
        server.stop();
    });
}

#[test]
fn optional_tls_serves_plain_clients_by_their_rules() {
    clients::each(|| {
        require!("nbdinfo");
        let home = lab();
        let (server, port) = serve(&home, "optional");
        script(&home, &port, &size("alice", "alice"));
        // Without a certificate a TCP client is nobody, and no rule is about it.
        fails(&home, &port, r#"nbdinfo --size "nbd://localhost:$P/alice""#);
        // Nor is one about the user who runs this.
        let uri = server.uri("alice");
        fails(&home, &port, &format!("nbdinfo --size '{uri}'"));
        server.stop();
    });
}

/// Asks for the size of alice's disk on a unix socket, as alice.
fn size_at(socket: &Path) -> String {
    let socket = socket.display();
    format!(r#"nbdinfo --size "nbds+unix:///alice?socket={socket}&tls-certificates=$T/alice""#)
}

/// The same of a client that does not encrypt.
fn plain_size_at(socket: &Path) -> String {
    format!("nbdinfo --size 'nbd+unix:///alice?socket={}'", socket.display())
}

#[test]
fn a_unix_socket_is_encrypted_as_the_command_line_says() {
    clients::each(|| {
        require!("nbdinfo", "qemu-img");
        let home = lab();
        let server = home.serve_with(&["--tls", "required"]);
        fails(&home, "", &plain_size_at(server.socket()));
        // Not every client hands on what it was told.
        let ask = format!("qemu-img info 'nbd+unix:///alice?socket={}'", server.socket().display());
        let refused = fails(&home, "", &ask);
        assert!(refused.to_lowercase().contains("tls"), "{refused}");
        script(&home, "", &size_at(server.socket()));
        // Newer ones ask for the size alone before they have a session.
        script(&home, "", &size_at(server.socket()).replace("--size", "--map"));
        assert!(server.log().contains("cert:alice@"), "{}", server.log());
        server.stop();
    });
}

#[test]
fn sockets_of_the_service_manager_are_encrypted_as_the_command_line_says() {
    clients::each(|| {
        require!("nbdinfo");
        let home = lab();
        let (unix, tcp) =
            (home.path("a.sock"), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let port = tcp.local_addr().unwrap().port().to_string();
        let socket = std::os::unix::net::UnixListener::bind(&unix).unwrap();
        let mut server = activated(&home, &[socket.as_fd(), tcp.as_fd()], &["--tls", "required"]);
        fails(&home, &port, &plain_size_at(&unix));
        fails(&home, &port, r#"nbdinfo --size "nbd://localhost:$P/alice""#);
        script(&home, &port, &size_at(&unix));
        script(&home, &port, &size("alice", "alice"));
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        assert!(server.wait().unwrap().success());
    });
}

#[test]
fn the_one_client_of_single_is_encrypted_as_the_command_line_says() {
    clients::each(|| {
        require!("nbdinfo", "nbdsh");
        let home = lab();
        // On an inherited socket.
        for (ask, good) in [(plain_size_at as fn(&Path) -> String, false), (size_at, true)] {
            let path = home.path("one.sock");
            let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
            let more = ["--single", "--tls", "required"];
            let mut server = activated(&home, &[socket.as_fd()], &more);
            drop(socket);
            match good {
                true => drop(script(&home, "", &ask(&path))),
                false => drop(fails(&home, "", &ask(&path))),
            }
            server.wait().unwrap();
            std::fs::remove_file(&path).unwrap();
        }
        // On a socket, and on pipes, that its own user made.
        let serve = |export: &str| {
            let (binary, home) = (sojourn(), home.home().display().to_string());
            let binary = binary.display();
            format!(
                "['{binary}', '--home', '{home}', 'serve', '--export', '{export}', '--single', '--tls', 'required']"
            )
        };
        let as_alice = "import os; h.set_tls(nbd.TLS_REQUIRE); \
                    h.set_tls_certificates(os.environ['T'] + '/alice'); ";
        let connect = |export: &str| format!("h.connect_command({})", serve(export));
        script(&home, "", &format!("nbdsh -c \"{as_alice}{}; h.pread(512, 0)\"", connect("alice")));
        fails(&home, "", &format!("nbdsh -c \"{}\"", connect("alice")));
        // The certificate says what it may do.
        fails(&home, "", &format!("nbdsh -c \"{as_alice}{}\"", connect("bob")));
        let plain = r#"printf '\0\0\0\3IHAVEOPT\0\0\0\6\0\0\0\0IHAVEOPT\0\0\0\2\0\0\0\0'"#;
        let pipes = format!(
            "{plain} | \"$S\" --home home serve --export alice --single --tls required > out || true"
        );
        let binary = sojourn().to_string_lossy().into_owned();
        shell(home.dir(), &[("S", &binary)], &pipes);
        let told = std::fs::read(home.path("out")).unwrap();
        let required = [0x80, 0, 0, 5]; // NBD_REP_ERR_TLS_REQD
        assert!(told.windows(4).any(|bytes| bytes == required), "{told:?}");
    });
}

#[test]
fn a_command_gets_no_socket_that_pretends_to_be_encrypted() {
    let home = lab();
    let told = home.fails(2, &["serve", "--run", "true", "--tls", "required"]);
    assert!(told.contains("--tls") && told.contains("leave"), "{told}");
    home.run(&["serve", "--run", "true", "--tls", "off"]);
}

/// A server to which a service manager passes these sockets.
fn activated(home: &Home, sockets: &[BorrowedFd<'_>], more: &[&str]) -> Child {
    let inherited: Vec<_> = sockets.iter().map(|socket| rustix::io::dup(socket).unwrap()).collect();
    let put = |(at, socket): (usize, &OwnedFd)| format!("{}<&{} ", at + 3, socket.as_raw_fd());
    let put: String = inherited.iter().enumerate().map(put).collect();
    let script = format!(
        "exec {put}; LISTEN_PID=$$ LISTEN_FDS={} exec {} --home {} serve {}",
        inherited.len(),
        sojourn().display(),
        home.home().display(),
        more.join(" ")
    );
    Command::new("bash").args(["-c", &script]).stdin(Stdio::null()).spawn().unwrap()
}

#[test]
fn users_of_this_machine_are_known_by_their_ids() {
    clients::each(|| {
        require!("nbdinfo");
        let home = Home::new();
        home.import("golden:1", &content::image(1, MIB));
        home.disk("mine", "golden");
        home.disk("other", "golden");
        let uid = rustix::process::geteuid().as_raw();
        let rules =
            format!("access = [{{ uid = {uid}, write = [\"mine\"], read = [\"golden:1\"] }}]\n");
        prepend(&home.path("home/sojourn.toml"), &rules);
        let server = home.serve();
        let ask = |export: &str| format!("nbdinfo --size '{}'", server.uri(export));
        script(&home, "", &ask("mine"));
        script(&home, "", &ask("golden:1"));
        fails(&home, "", &ask("other"));
        server.stop();
    });
}

#[test]
fn keys_are_for_their_owner_and_authorities_are_not_overwritten() {
    use std::os::unix::fs::MetadataExt;
    let home = lab();
    for key in ["ca-key.pem", "server-key.pem", "clients/alice/client-key.pem"] {
        let mode = std::fs::metadata(home.path("home/tls").join(key)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
    home.fails(4, &["cert", "ca"]);
    home.fails(4, &["cert", "client", "alice"]);
    home.fails(2, &["cert", "client", "../alice"]);
    home.fails(3, &["cert", "revoke", "carol"]);
    home.fails(9, &["serve", "--nbd", "0.0.0.0:0"]);
    let output = home.command().args(["cert", "server", "a b"]).output().unwrap();
    assert!(!output.status.success(), "{:?}", texts(&output));
}

#[test]
fn our_own_client_uses_what_is_encrypted() {
    let home = lab();
    let (server, port) = serve(&home, "required");
    let uri = |client: &str, export: &str| {
        let dir = home.path("home/tls/clients").join(client);
        format!("nbds://localhost:{port}/{export}?tls-certificates={}", dir.display())
    };
    let bytes = content::image(9, MIB);
    home.import("other:1", &bytes);
    home.run(&["image", "export", "other:1", &uri("alice", "alice")]);
    home.run(&["image", "import", &uri("alice", "alice"), "again:1"]);
    home.run(&["image", "export", "again:1", "again.raw"]);
    content::assert_same("again", &std::fs::read(home.path("again.raw")).unwrap(), &bytes);
    let message = home.fails(3, &["image", "import", &uri("bob", "alice"), "none:1"]);
    assert!(message.contains("alice"), "{message}");
    let plain = format!("nbd://localhost:{port}/alice");
    let output = home.command().args(["image", "import", &plain, "none:1"]).output().unwrap();
    assert!(!output.status.success(), "{:?}", texts(&output));
    let nowhere = format!("nbds://localhost:{port}/alice?tls-certificates=/nowhere");
    home.fails(3, &["image", "import", &nowhere, "none:1"]);
    // A trace of reads, replayed over it.
    let trace = "time_s,client,op,offset,length\n0,a,read,0,4096\n0.001,a,read,65536,8192\n";
    std::fs::write(home.path("t.csv"), trace).unwrap();
    let report = home.json(&["replay", "t.csv", &uri("bob", "bob"), "--clients", "3"]);
    assert_eq!((&report["requests"], &report["errors"]), (&6.into(), &0.into()), "{report}");
    server.stop();
}

#[test]
fn our_own_client_uses_nbdkit_with_tls() {
    require!("nbdkit");
    let home = lab();
    let bytes = content::image(11, MIB);
    std::fs::write(home.path("disk.raw"), &bytes).unwrap();
    let text = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
    let (port, tls) = (free_port().port().to_string(), text(home.path("home/tls")));
    let (alice, program) = (text(home.path("home/tls/clients/alice")), text(sojourn()));
    let env = [("P", &*port), ("T", &*tls), ("A", &*alice), ("SOJOURN", &*program)];
    // One that asks for certificates, and one that does not.
    for (verify, client) in [("--tls-verify-peer", "$A"), ("", "$PWD/trusting")] {
        shell(
            home.dir(),
            &env,
            &format!(
                r#"mkdir -p trusting; cp "$A/ca-cert.pem" trusting
                nbdkit -f -i 127.0.0.1 -p "$P" -P kit.pid --tls=require {verify} \
                    --tls-certificates="$T" file disk.raw & kit=$!
                trap 'kill $kit; wait $kit || true' EXIT
                for i in $(seq 200); do [ -s kit.pid ] && break; sleep 0.05; done
                "$SOJOURN" --home home image import \
                    "nbds://localhost:$P/?tls-certificates={client}" "kit{n}:1"
                "$SOJOURN" --home home image export "kit{n}:1" out{n}.raw
                cmp disk.raw out{n}.raw; rm kit.pid"#,
                n = verify.len()
            ),
        );
    }
}
