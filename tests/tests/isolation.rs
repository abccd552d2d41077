//! Who sees what: private disks, one client for each, images that nobody writes to.

use sojourn_tests::client::{EPERM, TRIM};
use sojourn_tests::{Client, Home, clients, content, require, tool::shell, tool::shell_fails};

const MIB: usize = 16;

#[test]
fn private_disks_of_one_image_do_not_see_each_others_writes() {
    let home = Home::new();
    let bytes = content::image(21, MIB);
    home.import("golden:1", &bytes);
    let names = ["a", "b", "c"];
    names.iter().for_each(|name| home.disk(name, "golden"));
    let server = home.serve();
    let mut clients: Vec<Client> =
        names.iter().map(|name| Client::attach(server.socket(), name)).collect();
    let data = |index: usize| content::random(100 + index as u64, 64 << 10);
    for (index, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.size, bytes.len() as u64);
        // All write the same place, and each a place of its own.
        assert_eq!(client.write(1 << 20, &data(index)), 0);
        assert_eq!(client.write((4 + index as u64) << 20, &data(index)), 0);
    }
    let check = |index: usize, client: &mut Client| {
        let mut expected = bytes.clone();
        expected[1 << 20..][..64 << 10].copy_from_slice(&data(index));
        expected[(4 + index) << 20..][..64 << 10].copy_from_slice(&data(index));
        let mut got = client.read(0, 8 << 20);
        got.extend(client.read(8 << 20, 8 << 20));
        content::assert_same(&format!("disk {index}"), &got, &expected);
    };
    for (index, client) in clients.iter_mut().enumerate() {
        check(index, client);
    }
    let mut image = Client::attach(server.socket(), "golden:1");
    content::assert_same("the image", &image.read(0, 8 << 20), &bytes[..8 << 20]);
    image.detach();
    clients.into_iter().for_each(Client::detach);
    server.stop();

    let server = home.serve();
    for (index, name) in names.iter().enumerate() {
        let mut client = Client::attach(server.socket(), name);
        check(index, &mut client);
        client.detach();
    }
    server.stop();
}

#[test]
fn a_disk_has_one_client_and_the_second_is_told_who_holds_it() {
    clients::each(|| {
        require!("nbdinfo", "qemu-io");
        let home = Home::new();
        home.import("golden", &content::image(22, MIB));
        home.disk("d", "golden");
        let server = home.serve();
        let mut holder = Client::attach(server.socket(), "d");
        // The same process may connect again; another process may not.
        Client::attach(server.socket(), "d").detach();
        let uri = server.uri("d");
        let said =
            shell_fails(home.dir(), &[("U", &uri)], r#"qemu-io -f raw -c "write 0 4k" "$U""#);
        let holder_name = format!("pid:{}", std::process::id());
        assert!(said.contains(&holder_name), "{said}\nshould name the holder {holder_name}");
        assert_eq!(holder.write(0, &[7; 4096]), 0);
        assert_eq!(holder.read(0, 4096), [7; 4096]);
        holder.detach();
        shell(home.dir(), &[("U", &uri)], r#"qemu-io -f raw -c "read -P 7 0 4k" "$U""#);
        server.stop();
    });
}

#[test]
fn read_only_exports_refuse_writes_and_stay_as_they_are() {
    clients::each(|| {
        require!("nbdinfo", "nbdsh");
        let home = Home::new();
        let bytes = content::image(23, MIB);
        home.import("golden:1", &bytes);
        let path = home.path("file.raw");
        content::write_sparse(&path, &bytes);
        let script = r#"nbdinfo --is read-only "$U"
        nbdsh -u "$U" -c '
import errno
h.set_strict_mode(0)
def err(f):
    try: f(); return 0
    except nbd.Error as e: return e.errnum
assert err(lambda: h.pwrite(bytes(4096), 0)) == errno.EPERM
assert err(lambda: h.zero(4096, 0)) in (errno.EPERM, errno.EINVAL)
assert err(lambda: h.trim(4096, 0)) in (errno.EPERM, errno.EINVAL)
h.flush()
'"#;
        let check = |server: &sojourn_tests::Server, export: &str| {
            shell(home.dir(), &[("U", &server.uri(export))], script);
            let mut client = Client::attach(server.socket(), export);
            assert_eq!(client.write(0, &[1; 4096]), EPERM);
            assert_ne!(client.request(TRIM, 0, 4096, &[]), 0);
            content::assert_same(export, &client.read(0, 8 << 20), &bytes[..8 << 20]);
            client.detach();
        };
        let server = home.serve();
        check(&server, "golden:1");
        check(&server, "golden");
        server.stop();
        let server = home.serve_file(&path, &["--read-only"]);
        check(&server, "");
        server.stop();
    });
}

#[test]
fn an_ephemeral_disk_forgets_and_a_persistent_one_keeps() {
    let home = Home::new();
    let bytes = content::image(24, MIB);
    home.import("golden", &bytes);
    home.disk("keeps", "golden");
    home.run(&["disk", "create", "forgets", "--from", "golden", "--ephemeral"]);
    let server = home.serve();
    for name in ["keeps", "forgets"] {
        let mut client = Client::attach(server.socket(), name);
        assert_eq!(client.write(0, &[9; 4096]), 0);
        assert_eq!(client.read(0, 4096), [9; 4096]);
        client.detach();
    }
    let mut client = Client::attach(server.socket(), "keeps");
    assert_eq!(client.read(0, 4096), [9; 4096]);
    client.detach();
    let mut client = Client::attach(server.socket(), "forgets");
    content::assert_same("after a reset", &client.read(0, 4096), &bytes[..4096]);
    client.detach();
    server.stop();
}
