//! No room left in the middle of things: the guest gets ENOSPC, the daemon lives, nothing that was
//! there is lost, and all goes on when there is room again.

use sojourn_tests::client::ENOSPC;
use sojourn_tests::{Client, Home, SmallFileSystem, content};

#[test]
fn an_import_that_finds_no_room_leaves_no_image_and_succeeds_later() {
    let here = "an_import_that_finds_no_room_leaves_no_image_and_succeeds_later";
    let Some(small) = SmallFileSystem::mount(here, 24) else { return };
    let home = Home::within(small.path());
    let first = content::image(51, 16);
    home.import("first:1", &first);
    let second = content::random(52, 40 << 20);
    std::fs::write(home.path("second.raw"), &second).unwrap();
    let message = home.fails(8, &["image", "import", "second.raw", "second:1"]);
    assert!(message.contains("full") && message.contains("room"), "{message}");
    home.fails(3, &["image", "show", "second:1"]);
    home.run(&["image", "verify", "first:1"]);

    small.resize(128);
    home.run(&["image", "import", "second.raw", "second:1"]);
    home.run(&["image", "export", "second:1", "out.raw"]);
    content::assert_same("second", &std::fs::read(home.path("out.raw")).unwrap(), &second);
}

#[test]
fn a_guest_gets_enospc_and_the_disk_goes_on_when_there_is_room() {
    let here = "a_guest_gets_enospc_and_the_disk_goes_on_when_there_is_room";
    let Some(small) = SmallFileSystem::mount(here, 48) else { return };
    let home = Home::within(small.path());
    let image = content::image(53, 64);
    home.import("golden", &image);
    home.disk("d", "golden");
    home.disk("other", "golden");
    let mut server = home.serve();
    let mut client = Client::attach(server.socket(), "d");
    let data = |index: u64| content::random(5300 + index, 1 << 20);
    let mut written = 0;
    let error = loop {
        let error = client.write(written << 20, &data(written));
        if error != 0 || written == 60 {
            break error;
        }
        written += 1;
    };
    assert_eq!(error, ENOSPC, "after {written} MiB");
    assert!(written > 4, "{written} MiB");
    server.assert_alive();
    // What was answered is there, what was not written is the image's, and others can read.
    let check = |client: &mut Client, written: u64| {
        for index in 0..written {
            content::assert_same("written", &client.read(index << 20, 1 << 20), &data(index));
        }
        let rest = (written as usize + 1) << 20;
        content::assert_same(
            "not written",
            &client.read(rest as u64, 1 << 20),
            &image[rest..][..1 << 20],
        );
    };
    check(&mut client, written);
    let mut other = Client::attach(server.socket(), "other");
    content::assert_same("other", &other.read(0, 8 << 20), &image[..8 << 20]);
    other.detach();

    small.resize(256);
    for index in written..60 {
        assert_eq!(client.write(index << 20, &data(index)), 0, "with room again");
    }
    assert_eq!(client.flush(), 0);
    check(&mut client, 60);
    client.detach();
    server.stop();
    let server = home.serve();
    let mut client = Client::attach(server.socket(), "d");
    check(&mut client, 60);
    client.detach();
    server.stop();
}
