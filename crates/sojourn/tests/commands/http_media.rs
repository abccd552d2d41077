//! Media over HTTP: those that the configuration names, and no other place.

use crate::http_client::{add_medium, audit, configure_sources, must_match, served, token};
use serde_json::{Value, json};

#[test]
fn a_medium_of_the_configuration_is_shown_written_verified_and_cleared_over_http() {
    let (lab, server, api) = served();
    add_medium(&lab);
    let admin = token(&lab, "admin --admin");
    let document = api.document();
    let listed = api.get(&admin, "/media").is(200);
    must_match(&document, "Media", &listed);
    assert_eq!(listed, json!({"media": [{"name": "usb", "kind": "medium"}]}));
    let place = lab.home().join("usb").display().to_string();
    let command = || lab.json(&format!("media list {place}"));
    let shown = api.get(&admin, "/media/usb").is(200);
    must_match(&document, "Medium", &shown);
    assert_eq!((&shown["holds"], &shown["holds"][0]["name"]), (&command(), &json!("debian")));

    lab.line("disk create alice --from debian").ok();
    lab.line("disk snapshot alice monday").ok();
    let body = json!({"names": ["alice", "debian:1"], "refresh": true, "size": 1 << 30});
    let written = api.post(&admin, "/media/usb/write", body).is(200);
    must_match(&document, "MediumWritten", &written);
    let names = |list: &Value| -> Vec<String> {
        let all = list.as_array().unwrap().iter();
        let mut names: Vec<_> = all.map(|one| one["name"].as_str().unwrap().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(names(&command()), ["alice", "debian", "debian:1"]);
    let sound = api.post(&admin, "/media/usb/verify", json!({})).is(200);
    must_match(&document, "MediumVerified", &sound);
    assert_eq!(sound["damaged"], json!([]));
    let freed = api.delete(&admin, "/media/usb/held/alice").is(200);
    must_match(&document, "MediumFreed", &freed);
    assert_eq!(names(&command()), ["debian", "debian:1"]);
    api.delete(&admin, "/media/usb/held/alice").is(404);

    // What is damaged is an answer, and no fault of the server.
    let packs = std::fs::read_dir(lab.home().join("usb/sojourn.med")).unwrap().flatten();
    let pack =
        packs.map(|entry| entry.path()).find(|path| path.extension().is_some_and(|e| e == "pck"));
    let pack = pack.unwrap();
    let mut bytes = std::fs::read(&pack).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&pack, bytes).unwrap();
    let damaged = api.post(&admin, "/media/usb/verify", json!({})).is(200);
    must_match(&document, "MediumVerified", &damaged);
    assert_eq!((&damaged["damaged_chunks"], &damaged["dropped"]), (&json!(1), &json!(false)));
    let dropped = api.post(&admin, "/media/usb/verify", json!({"drop_damaged": true})).is(200);
    assert_eq!(dropped["dropped"], true);
    let noted = audit(&lab);
    let told = noted.iter().filter(|line| line["object"] == "usb");
    let told = told.map(|line| line["verb"].as_str().unwrap().to_owned()).collect::<Vec<_>>();
    let verbs = ["write", "verify", "remove", "remove", "verify", "verify"];
    assert_eq!(told, verbs.map(|verb| format!("media.{verb}")));
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_place_that_the_configuration_does_not_name_is_none_and_each_kind_has_its_verbs() {
    let (lab, server, api) = served();
    let admin = token(&lab, "admin --admin");
    let operator = token(&lab, "operator --operate");
    assert_eq!(api.get(&admin, "/media").is(200), json!({"media": []}));
    let tree = lab.path("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("file"), vec![7; 100_000]).unwrap();
    let (tree, image) = (tree.display().to_string(), lab.path("golden.raw").display().to_string());
    configure_sources(&lab, &[&tree, &image, "store", "nosuch", "s3://bucket/copy"]);
    let document = api.document();
    let listed = api.get(&admin, "/media").is(200);
    must_match(&document, "Media", &listed);
    let kinds: Vec<_> =
        listed["media"].as_array().unwrap().iter().map(|one| &one["kind"]).collect();
    assert_eq!(json!(kinds), json!(["tree", "image", "store", null, "store"]));
    let encoded = tree.replace('/', "%2F");
    let at = |medium: &str, verb: &str| format!("/media/{medium}/{verb}");
    let shown = api.get(&admin, &format!("/media/{encoded}")).is(200);
    must_match(&document, "Medium", &shown);
    assert_eq!((&shown["name"], &shown["holds"]), (&json!(tree), &json!([])));
    let indexed = api.post(&operator, &at(&encoded, "index"), json!({})).is(200);
    must_match(&document, "MediumIndexed", &indexed);
    assert_eq!(indexed["read_files"], 1);
    api.post(&operator, &at(&image.replace('/', "%2F"), "index"), json!({})).is(200);

    for place in ["%2Fetc", "usb", "..", "%2e%2e%2fhome", "-x", "--help", "%00", "tree"] {
        api.get(&admin, &format!("/media/{place}")).is(404);
        api.post(&admin, &at(place, "write"), json!({"names": ["debian"]})).is(404);
        api.post(&admin, &at(place, "index"), json!({})).is(404);
        api.delete(&admin, &at(place, "held/debian")).is(404);
    }
    api.post(&admin, &at(&encoded, "verify"), json!({})).is(409);
    api.post(&admin, &at("store", "write"), json!({"names": ["debian"]})).is(409);
    api.post(&admin, &at("s3:%2F%2Fbucket%2Fcopy", "index"), json!({})).is(409);
    api.post(&admin, &at("nosuch", "write"), json!({"names": ["debian"]})).is(503);
    for body in [
        json!({}),
        json!({"names": []}),
        json!({"names": ["a\u{0}"]}),
        json!({"names": [7]}),
        json!({"path": "/"}),
    ] {
        api.post(&admin, &at(&encoded, "write"), body).is(400);
    }
    // No name is an option.
    for name in ["--size=1", "-h", "--refresh", "nosuch"] {
        let refused =
            api.post(&admin, &at(&encoded, "write"), json!({"names": [name], "make": true}));
        assert!(matches!(refused.status, 400 | 404), "{name}: {}", refused.text);
    }
    api.post(&operator, &at(&encoded, "write"), json!({"names": ["debian"]})).is(403);
    // A directory becomes a medium where that is meant, and it is not the place of one that is not mounted.
    let refused = api.post(&admin, &at(&encoded, "write"), json!({"names": ["debian"]})).is(409);
    assert!(refused["message"].as_str().unwrap().contains("mount"), "{refused}");
    let body = json!({"names": ["debian"], "make": true});
    api.post(&admin, &at(&encoded, "write"), body).is(200);
    assert_eq!(api.get(&admin, &format!("/media/{encoded}")).is(200)["holds"][0]["name"], "debian");
    api.post(&operator, &at(&encoded, "verify"), json!({"drop_damaged": true})).is(403);
    api.post(&operator, &at(&encoded, "verify"), json!({})).is(200);
    let limited = token(&lab, "limited --admin --disk alice --image debian");
    api.get(&limited, "/media").is(403);
    api.get(&limited, &format!("/media/{encoded}")).is(403);
    assert_eq!(server.stop(), 0);
}
