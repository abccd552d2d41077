//! The HTTP API that changes things: who may have what done, by real requests to a real server. What the
//! document describes is tried as it stands there, so that a path that is added is tried too.

use crate::http_client::{
    Api, HOST, JSON, PATIENCE, add_medium, audit, describe_vm, must_match, served, token,
};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// An operation of the document, with each way to fill it in: a path, and a body.
struct Operation {
    method: String,
    path: String,
    right: String,
    /// One may look without a token.
    is_open: bool,
    ways: Vec<(String, Value)>,
}

/// All of them; names in paths and bodies are these, by turns.
fn operations(
    document: &Value,
    disks: &[&str],
    snapshots: &[&str],
    images: &[&str],
    vms: &[&str],
) -> Vec<Operation> {
    let pool = |name: &str| -> Vec<Value> {
        let words = match name {
            "disk" | "name" | "new" => disks,
            "snapshot" => snapshots,
            "image" | "held" => images,
            "vm" => vms,
            "medium" => &["usb"],
            "from" => {
                let of_disks =
                    disks.iter().flat_map(|d| snapshots.iter().map(move |s| format!("{d}@{s}")));
                let images = images.iter().map(|image| (*image).to_owned());
                return images.chain(of_disks).map(Value::from).collect();
            }
            "size" => return vec![json!(1 << 30)],
            "seconds" => return vec![json!(60)],
            "policy" => return vec![json!("lru")],
            "storm" => return vec![json!("0")],
            "machine" => return vec![json!("52:54:00:12:34:56")],
            "method" => return vec![json!("nbd")],
            "append" => return vec![json!(["quiet"])],
            "memory" => return vec![json!(64 << 20)],
            "cpus" => return vec![json!(1)],
            "cpu" => return vec![json!("qemu64")],
            "screen" | "keep_mac" | "no_fill" => return vec![json!(false)],
            "names" => return vec![json!(images)],
            "ephemeral" | "write_through" | "keep_mine" | "force" | "sending" | "lost"
            | "fresh" | "wait" | "refresh" | "drop_damaged" | "make" => {
                return vec![json!(true), json!(false)];
            }
            other => panic!("the test does not know what to fill in for {other:?}"),
        };
        words.iter().map(|word| json!(word)).collect()
    };
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let mut paths = vec![path.clone()];
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let name = parameter["name"].as_str().unwrap();
                if parameter["in"] != "path" {
                    continue;
                }
                let filled = |path: &String| {
                    let words = pool(name);
                    let path = path.clone();
                    words.into_iter().map(move |word| {
                        path.replace(&format!("{{{name}}}"), word.as_str().unwrap())
                    })
                };
                paths = paths.iter().flat_map(filled).collect();
            }
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            let mut bodies = vec![if schema.is_null() { Value::Null } else { json!({}) }];
            for name in
                schema["properties"].as_object().into_iter().flat_map(|fields| fields.keys())
            {
                bodies = bodies
                    .iter()
                    .flat_map(|body| {
                        pool(name).into_iter().map(|word| {
                            let mut body = body.clone();
                            body[name] = word;
                            body
                        })
                    })
                    .collect();
            }
            let ways = paths
                .iter()
                .flat_map(|path| bodies.iter().map(|body| (path.clone(), body.clone())));
            all.push(Operation {
                method: method.to_uppercase(),
                path: path.clone(),
                is_open: operation["security"][0] == json!({}),
                right: operation["x-right"].as_str().unwrap_or("nobody's").to_owned(),
                ways: ways.collect(),
            });
        }
    }
    all
}

#[test]
fn a_token_for_one_disk_sees_and_does_nothing_else() {
    let (lab, server, api) = served();
    lab.line("image import golden.raw topsecret").ok();
    for name in ["alice", "classified"] {
        lab.line(&format!("disk create {name} --from topsecret")).ok();
    }
    lab.line("disk snapshot alice monday").ok();
    lab.line("disk snapshot classified hidden").ok();
    describe_vm(&lab, "work", "alice");
    describe_vm(&lab, "hush", "classified");
    add_medium(&lab);
    let before = (lab.json("disk show classified"), lab.json("image list"));
    let mine = token(&lab, "mine --admin --disk alice --image debian");

    let foreign = ["classified", "hidden", "topsecret", "hush"];
    let disks = ["alice", "classified", "classified2"];
    let operations = operations(
        &api.document(),
        &disks,
        &["monday", "hidden"],
        &["debian:1", "topsecret:1", "topsecret"],
        &["work", "hush", "nosuch"],
    );
    let (mut asked, mut done) = (0, 0);
    for operation in &operations {
        for (path, body) in &operation.ways {
            let what = format!("{} {path} {body}", operation.method);
            let answer = api.ask(&mine, &operation.method, path, body);
            // Its own disk, its own snapshots and its images it may name.
            let names_foreign = ["classified", "topsecret", "hush", "nosuch"];
            let names_foreign = names_foreign.iter().any(|word| what.contains(word));
            match operation.path.as_str() {
                "/api/v1/openapi.json" => continue,
                _ if names_foreign => assert_eq!(answer.status, 403, "{what}: {}", answer.text),
                "/api/v1/disks" | "/api/v1/images" | "/api/v1/lineage" | "/api/v1/elsewhere"
                | "/api/v1/vms" | "/api/v1/token" => {}
                path if path.starts_with("/api/v1/disks/")
                    || path.starts_with("/api/v1/images/")
                    || path.starts_with("/api/v1/vms/") => {}
                _ => assert_eq!(answer.status, 403, "it tells of all: {what}"),
            }
            assert!(answer.status < 500, "{what}: {}", answer.text);
            for word in foreign {
                assert!(
                    what.contains(word) || !answer.text.contains(word),
                    "{what} tells of {word}: {}",
                    answer.text
                );
            }
            asked += 1;
            done += u32::from(answer.status < 300);
        }
    }
    assert!(asked > 100 && done > 3, "{done} of {asked}");
    for path in ["/metrics", "/v1/status"] {
        assert_eq!(api.ask(&mine, "GET", path, &Value::Null).status, 403, "{path}");
    }
    // Of its image, those who stand on it are not told either.
    lab.line("disk create classified3 --from debian").ok();
    let images = api.get(&mine, "/images").is(200);
    let told: Vec<&Value> =
        images["images"].as_array().unwrap().iter().map(|image| &image["image"]).collect();
    assert!(told.iter().all(|image| image.as_str().unwrap().starts_with("debian:")), "{images}");
    assert!(!images.to_string().contains("classified"), "{images}");
    let image = api.get(&mine, "/images/debian").is(200);
    assert_eq!((&image["image"], &image["used_by"]), (&json!("debian:1"), &json!([])), "{image}");
    let conflict = api.delete(&mine, "/images/debian:1").is(409);
    assert!(!conflict.to_string().contains("classified"), "{conflict}");

    assert!(lab.line("vm show hush").ok().contains("classified"));
    let after = (lab.json("disk show classified"), lab.json("image list"));
    assert_eq!(before.0, after.0);
    let kept = |list: &Value| -> Vec<String> {
        let names = list.as_array().unwrap().iter().map(|one| one["image"].as_str().unwrap());
        names.filter(|name| name.starts_with("topsecret")).map(str::to_owned).collect()
    };
    assert_eq!(kept(&before.1), kept(&after.1));
    assert_eq!(server.stop(), 0);
}

#[test]
fn every_change_takes_a_good_token_with_the_right_that_the_document_says() {
    let (lab, server, api) = served();
    lab.line("disk create alice --from debian").ok();
    lab.line("disk snapshot alice monday").ok();
    describe_vm(&lab, "work", "alice");
    add_medium(&lab);
    let before = (lab.json("disk list"), lab.json("image list"), lab.json("vm list"));
    let reader = token(&lab, "reader --read");
    let operator = token(&lab, "operator --operate");
    let revoked = token(&lab, "revoked --admin");
    lab.line("token revoke revoked").ok();
    let expired = token(&lab, "expired --admin --days 1");
    let file = lab.home().join("tokens.json");
    let mut tokens: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    for one in tokens["tokens"].as_array_mut().unwrap() {
        if one["name"] == "expired" {
            one["expires"] = json!(1_000_000_000);
        }
    }
    std::fs::write(&file, tokens.to_string()).unwrap();
    let forged = format!("sojourn_{}", "0".repeat(64));

    for operation in operations(&api.document(), &["alice"], &["monday"], &["debian:1"], &["work"])
    {
        let (path, body) = operation.ways.last().unwrap();
        let what = format!("{} {path}", operation.method);
        let ask = |token: &str| api.ask(token, &operation.method, path, body);
        if operation.path == "/api/v1/openapi.json" {
            continue;
        }
        for bad in [&revoked, &expired, &forged, "x", ""] {
            let answer = ask(bad);
            assert_eq!(answer.status, 401, "{what}");
            assert!(answer.head.contains("www-authenticate: bearer"), "{}", answer.head);
        }
        if operation.method == "GET" {
            assert_eq!(operation.right, "read", "{what}");
            if !operation.is_open {
                assert_eq!(api.send("GET", path, HOST, "").status, 401, "{what}");
                // The machine was never suspended.
                let found = if path.ends_with("/memory") { 404 } else { 200 };
                assert_eq!(ask(&reader).status, found, "{what}");
            }
            continue;
        }
        let cookie = format!("{JSON}cookie: token={operator}\r\n");
        for nobody in [JSON, &cookie] {
            assert_eq!(
                api.send(&operation.method, path, nobody, &body.to_string()).status,
                401,
                "{what}"
            );
        }
        assert_eq!(ask(&reader).status, 403, "{what}");
        assert!(
            ask(&reader).json()["message"].as_str().unwrap().contains(&operation.right),
            "{what}"
        );
        match operation.right.as_str() {
            "admin" => assert_eq!(ask(&operator).status, 403, "{what}"),
            right => assert_eq!(right, "operate", "{what}"),
        }
    }
    assert_eq!(
        before,
        (lab.json("disk list"), lab.json("image list"), lab.json("vm list")),
        "a refusal changed something"
    );
    let force = api.post(&operator, "/disks/alice/take", json!({"force": true}));
    assert_eq!(force.status, 403, "{}", force.text);
    assert!(lab.json("token list").to_string().contains("\"expired\":true"));
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_token_is_told_what_it_is_for() {
    let (lab, server, api) = served();
    let mine = token(&lab, "mine --operate --disk alice --disk bob* --days 1");
    let told = api.get(&mine, "/token").is(200);
    must_match(&api.document(), "TokenState", &told);
    assert_eq!((&told["name"], &told["right"]), (&json!("mine"), &json!("operate")));
    assert_eq!((&told["disks"], &told["images"]), (&json!(["alice", "bob*"]), &Value::Null));
    assert!(told["expires"].as_u64() > told["created"].as_u64(), "{told}");
    let all = api.get(&token(&lab, "all --admin"), "/token").is(200);
    assert_eq!((&all["disks"], &all["expires"]), (&Value::Null, &Value::Null));
    // Nobody's is told, also where everybody may look.
    assert_eq!(api.send("GET", "/api/v1/token", HOST, "").status, 401);
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_disk_lives_over_http_and_answers_are_what_the_command_prints() {
    let (lab, server, api) = served();
    let admin = token(&lab, "admin --admin");
    let made = api.post(&admin, "/disks", json!({"name": "alice", "from": "debian"}));
    assert!(made.head.contains("location: /api/v1/disks/alice"), "{}", made.head);
    assert_eq!(made.is(201), lab.json("disk show alice"));
    assert_eq!(
        api.get(&admin, "/disks").is(200)["disks"][0]["name"],
        "alice",
        "it is in the list at once"
    );
    let snapshot =
        api.post(&admin, "/disks/alice/snapshots", json!({"snapshot": "monday"})).is(201);
    assert_eq!(snapshot, lab.json("disk show alice")["snapshots"][0]);
    let grown = api.post(&admin, "/disks/alice/grow", json!({"size": 16 << 20})).is(200);
    assert_eq!(grown["size"], 16 << 20);
    let image = api.post(&admin, "/disks/alice/commit", json!({"image": "debian"})).is(201);
    assert_eq!(image["image"], "debian:2");
    let back = api.post(&admin, "/disks/alice/rollback", json!({"snapshot": "monday"})).is(200);
    assert_eq!(back["size"], 8 << 20);
    let moved = api.post(&admin, "/disks/alice/rebase", json!({"image": "debian:2"})).is(200);
    assert_eq!(moved["disk"]["image"], "debian:2");
    assert_eq!(moved["disk"], lab.json("disk show alice"));
    assert_eq!(api.post(&admin, "/disks/alice/reset", json!({})).is(200)["unchanged"], true);
    let published = api.post(&admin, "/disks/alice/publish", json!({})).is(200);
    assert_eq!(published, json!({"disk": "alice", "bytes": 0}));
    assert_eq!(api.delete(&admin, "/images/debian:2").is(409)["kind"], "conflict");
    let used = api.delete(&admin, "/images/debian:1").is(409);
    assert!(used.to_string().contains("alice@monday"), "{used}");
    let gone = api.delete(&admin, "/disks/alice/snapshots/monday").is(200);
    assert_eq!(gone, json!({"done": "snapshot alice@monday removed"}));
    api.delete(&admin, "/images/debian:1").is(200);
    api.post(&admin, "/images/debian:1/restore", json!({})).is(200);
    assert_eq!(lab.json("image list").as_array().unwrap().len(), 2);
    assert_eq!(api.get(&admin, "/images/debian").is(200), lab.json("image show debian:2"));
    // The newest is another one than this token is for.
    let first = token(&lab, "first --read --image debian:1");
    api.get(&first, "/images/debian:1").is(200);
    api.get(&first, "/images/debian").is(403);
    // Another server may go on with it, or this one again.
    api.post(&admin, "/disks/alice/release", json!({})).is(200);
    assert_eq!(api.get(&admin, "/elsewhere").is(200)[0]["name"], "alice");
    assert_eq!(api.post(&admin, "/disks/alice/take", json!({})).is(200)["name"], "alice");
    assert_eq!(api.delete(&admin, "/disks/alice").is(200), json!({"done": "disk alice removed"}));
    assert_eq!(api.get(&admin, "/disks/alice").is(404)["kind"], "not found");
    assert_eq!(server.stop(), 0);
}

#[test]
fn what_is_wrong_with_a_request_is_its_status_and_a_sentence() {
    let (lab, server, api) = served();
    let admin = token(&lab, "admin --admin");
    lab.line("disk create alice --from debian").ok();
    let disk = |name: &str| json!({"name": name, "from": "debian"});
    assert_eq!(api.post(&admin, "/disks", disk("alice")).is(409)["kind"], "conflict");
    assert_eq!(api.post(&admin, "/disks", disk("../alice")).is(400)["kind"], "invalid");
    assert_eq!(
        api.post(&admin, "/disks", json!({"name": "a", "from": "nosuch"})).is(404)["kind"],
        "not found"
    );
    api.post(&admin, "/disks", json!({"name": "a"})).is(400);
    api.post(&admin, "/disks", json!({"name": "a", "from": "debian", "colour": "red"})).is(400);
    api.post(&admin, "/disks", json!({"name": "a", "from": "debian", "size": -1})).is(400);
    api.post(&admin, "/disks/alice/grow", json!({"size": 1})).is(400);
    api.post(&admin, "/disks/alice/rollback", json!({"snapshot": "nosuch"})).is(404);
    api.post(&admin, "/disks/%2e%2e%2falice/reset", json!({})).is(400);
    api.post(&admin, "/disks/%ff/reset", json!({})).is(400);
    api.delete(&admin, "/disks/alice?lost=perhaps").is(400);
    api.delete(&admin, "/images/debian").is(400);
    api.post(&admin, "/nothing", json!({})).is(404);
    let authorization = format!("authorization: Bearer {admin}\r\n");
    let send = |kind: &str, body: &str| {
        let headers = format!("{HOST}{authorization}{kind}");
        api.send("POST", "/api/v1/disks/alice/reset", &headers, body)
    };
    for form in
        ["", "content-type: text/plain\r\n", "content-type: application/x-www-form-urlencoded\r\n"]
    {
        send(form, "{}").is(415);
    }
    send("content-type: application/json; charset=utf-8\r\n", "{}").is(200);
    for body in ["", "{", "[]", "7", "{} {}", "\u{fffd}"] {
        send("content-type: application/json\r\n", body).is(400);
    }
    let long = format!("{{\"x\":\"{}\"}}", "y".repeat(80 << 10));
    send("content-type: application/json\r\n", &long).is(413);
    let headers = format!("{HOST}{authorization}");
    assert_eq!(api.send("PUT", "/api/v1/disks/alice", &headers, "").status, 405);
    assert_eq!(api.send("POST", "/api/v1/status", &headers, "").status, 405);

    // Pages of other origins, with a token that they cannot have.
    for page in
        ["origin: http://evil.example\r\n", "origin: null\r\n", "sec-fetch-site: cross-site\r\n"]
    {
        let headers = format!("{JSON}{authorization}{page}");
        let answer = api.send("POST", "/api/v1/disks/alice/reset", &headers, "{}");
        assert_eq!(answer.status, 403, "{page}");
        assert!(!answer.head.contains("access-control"), "{}", answer.head);
    }
    let preflight =
        format!("{HOST}origin: http://evil.example\r\naccess-control-request-method: POST\r\n");
    let answer = api.send("OPTIONS", "/api/v1/disks", &preflight, "");
    assert!(answer.status >= 400 && !answer.head.contains("access-control"), "{}", answer.head);
    let rebound =
        format!("host: rebound.example\r\ncontent-type: application/json\r\n{authorization}");
    assert_eq!(api.send("POST", "/api/v1/disks/alice/reset", &rebound, "{}").status, 421);
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_map_is_what_the_command_prints_and_takes_a_token_only_where_looking_does() {
    let (lab, server, api) = served();
    for disk in ["alice", "bob"] {
        lab.line(&format!("disk create {disk} --from debian")).ok();
    }
    let noted = audit(&lab);
    let look = |rest: &str| api.send("GET", &format!("/api/v1/disks/{rest}"), HOST, "");
    assert_eq!(look("alice/map").is(200), lab.json("disk map alice"));
    let few = look("alice/map?cells=16").is(200);
    assert_eq!(few, lab.json("disk map alice --cells 16"));
    assert_eq!(few["cells"]["stored"].as_array().unwrap().len(), 16);
    for wrong in ["cells=0", "cells=4097", "cells=x", "cells=-1", "cells=", "colour=red"] {
        assert_eq!(look(&format!("alice/map?{wrong}")).is(400)["kind"], "invalid", "{wrong}");
    }
    for wrong in ["%2e%2e%2falice/map", "%ff/map"] {
        look(wrong).is(400);
    }
    look("nosuch/map").is(404);
    let mine = token(&lab, "mine --read --disk alice");
    api.get(&mine, "/disks/alice/map").is(200);
    api.get(&mine, "/disks/bob/map").is(403);
    api.get(&mine, "/disks/nosuch/map").is(403);
    assert_eq!(audit(&lab), noted, "looking is not noted");
    // The one that was drawn just now does not outlive the disk for long.
    lab.line("disk remove --yes alice").ok();
    let end = Instant::now() + PATIENCE;
    while look("alice/map").status != 404 {
        assert!(Instant::now() < end, "the map of a disk that is gone");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(server.stop(), 0);
}

#[test]
fn the_lineage_tells_what_each_version_snapshot_and_disk_stands_on() {
    let (lab, server, api) = served();
    for line in [
        "disk create alice --from debian",
        "disk snapshot alice monday",
        "disk grow alice 16M",
        "disk snapshot alice tuesday",
        "disk create bob --from alice@tuesday",
        "disk grow alice 32M",
        "disk commit alice debian",
        "disk create carol --from debian:2",
    ] {
        lab.line(line).ok();
    }
    let told = |lineage: &Value| -> Vec<String> {
        let name = |one: &Value| match one {
            Value::Null => "-".to_owned(),
            one => format!("{} {}", one["kind"].as_str().unwrap(), one["name"].as_str().unwrap()),
        };
        let nodes = lineage["nodes"].as_array().unwrap().iter();
        nodes
            .map(|one| format!("{}: {}, {}", name(one), name(&one["on"]), name(&one["by"])))
            .collect()
    };
    let open = api.send("GET", "/api/v1/lineage", HOST, "").is(200);
    assert_eq!(
        told(&open),
        [
            "image debian:1: -, -",
            "image debian:2: image debian:1, disk alice",
            "snapshot alice@monday: image debian:1, -",
            "snapshot alice@tuesday: image debian:1, -",
            "disk alice: image debian:1, -",
            "disk bob: snapshot alice@tuesday, -",
            "disk carol: image debian:2, -",
        ]
    );
    lab.line("disk rollback alice tuesday").ok();
    let admin = token(&lab, "admin --admin");
    let anew = api.get(&admin, "/lineage").is(200);
    assert_eq!(told(&anew)[4], "disk alice: snapshot alice@tuesday, -");
    // Who sees a part is not told what that stands on beyond it.
    let mine = token(&lab, "mine --read --disk carol --disk alice --image debian:2");
    assert_eq!(
        told(&api.get(&mine, "/lineage").is(200)),
        [
            "image debian:2: -, disk alice",
            "snapshot alice@monday: -, -",
            "snapshot alice@tuesday: -, -",
            "disk alice: snapshot alice@tuesday, -",
            "disk carol: image debian:2, -",
        ]
    );
    lab.line("disk remove --yes alice").ok();
    lab.line("image remove debian:1").fails(4, &["bob"]);
    assert_eq!(
        told(&api.get(&admin, "/lineage").is(200))[1],
        "image debian:2: image debian:1, disk alice"
    );
    assert_eq!(server.stop(), 0);
}

#[test]
fn the_server_itself_is_changed_and_ended_over_http() {
    let (lab, mut server, api) = served();
    let admin = token(&lab, "admin --admin");
    let cache = || api.send("GET", "/api/v1/cache", HOST, "").is(200);
    assert_eq!(cache(), lab.json("cache show"));
    let changed = api.post(&admin, "/cache", json!({"size": 64 << 20, "policy": "lru"})).is(200);
    assert_eq!(changed["capacity_bytes"], 64 << 20);
    assert_eq!(cache()["policy"], "lru");
    for wrong in [json!({"size": 1}), json!({"policy": "nosuch"}), json!({"colour": "red"})] {
        assert_eq!(api.post(&admin, "/cache", wrong.clone()).is(400)["kind"], "invalid", "{wrong}");
    }
    assert_eq!(cache()["capacity_bytes"], 64 << 20, "what was wrong changed nothing");
    let reloaded = api.post(&admin, "/reload", json!({})).is(200);
    assert_eq!(reloaded, json!({"restart": [], "opened": [], "closed": []}));
    assert_ne!(cache()["policy"], "lru", "the configuration counts again");
    std::fs::write(lab.home().join("sojourn.toml"), "store = 7").unwrap();
    api.post(&admin, "/reload", json!({})).is(400);
    api.post(&admin, "/drain", json!({"seconds": -1})).is(400);
    api.post(&admin, "/drain", json!({"to_successor": true})).is(400);
    let drained = api.post(&admin, "/drain", json!({"seconds": 60})).is(200);
    assert_eq!(drained, json!({"connections": 0}));
    assert_eq!(server.wait(), 0);
    let told: Vec<String> = audit(&lab)
        .iter()
        .map(|line| {
            format!("{} {}", line["verb"].as_str().unwrap(), line["outcome"].as_str().unwrap())
        })
        .filter(|line| line.starts_with("server.") && !line.ends_with("invalid"))
        .collect();
    assert_eq!(told, ["server.cache done", "server.reload done", "server.drain done"]);
}

#[test]
fn a_machine_that_waits_gets_a_disk_over_http() {
    let (lab, server, api) = served();
    assert_eq!(
        api.send("GET", "/api/v1/machines", HOST, "").is(200),
        json!({"machines": [], "waiting": []})
    );
    let mac = "52:54:00:12:34:56";
    let waiting = json!([{"mac": mac, "first_seen": 1, "last_seen": 2, "times": 3}]);
    let seen = |seen: &Value| {
        std::fs::write(lab.home().join("machines-seen.json"), seen.to_string()).unwrap();
    };
    seen(&waiting);
    let operator = token(&lab, "operator --operate");
    let machines = || api.get(&operator, "/machines").is(200);
    assert_eq!(machines()["waiting"], waiting);
    let admin = token(&lab, "admin --admin");
    let assign_as =
        |by: &str, who: &str, body: Value| api.post(by, &format!("/machines/{who}/assign"), body);
    let assign = |who: &str, body: Value| assign_as(&operator, who, body);
    let made = assign(mac, json!({"from": "debian", "name": "lab-1"})).is(200);
    assert_eq!(made, json!({"name": "lab-1", "mac": mac, "disk": "lab-1", "method": "iscsi"}));
    assert_eq!(lab.json("disk show lab-1")["image"], "debian:1");
    assert_eq!(machines(), json!({"machines": [made], "waiting": []}));
    assert_eq!(machines(), lab.json("machine list"));
    let other = json!({"method": "nbd", "append": ["quiet"]});
    assign("lab-1", other.clone()).is(403);
    let other = assign_as(&admin, "lab-1", other).is(200);
    assert_eq!((&other["method"], &other["disk"]), (&json!("nbd"), &json!("lab-1")));
    assert_eq!(api.get(&operator, "/machines/lab-1").is(200), lab.json("machine show lab-1"));

    let second = "52:54:00:12:34:57";
    assign(second, json!({"disk": "nosuch"})).is(403); // it did not ask
    seen(&json!([{"mac": second, "first_seen": 1, "last_seen": 2, "times": 3}]));
    assign("lab-2", json!({"from": "debian"})).is(404);
    assign(second, json!({})).is(400);
    assign(second, json!({"from": "debian", "disk": "lab-1"})).is(400);
    assign(second, json!({"disk": "lab-1", "ephemeral": true})).is(400);
    assign(second, json!({"method": "floppy", "disk": "lab-1"})).is(400);
    assign(second, json!({"disk": "nosuch"})).is(404);
    assign(second, json!({"disk": "lab-1"})).is(409);
    assign(second, json!({"from": "debian", "name": "lab-1"})).is(409);
    assert_eq!(lab.json("disk list").as_array().unwrap().len(), 1, "a refusal made a disk");

    // The card of a machine that is in the list by its board.
    let board = "01020304-0506-0708-090a-0b0c0d0e0f10";
    lab.line(&format!("machine assign {board} --from debian --name lab-3")).ok();
    seen(&json!([{"mac": second, "uuid": board, "first_seen": 1, "last_seen": 2, "times": 3}]));
    assert_eq!(machines()["waiting"], json!([]));
    assign(second, json!({"from": "debian"})).is(403);
    lab.line("machine forget lab-3").ok();

    api.delete(&operator, "/machines/lab-1").is(403);
    assert_eq!(api.delete(&admin, "/machines/lab-1").is(200), other);
    api.delete(&admin, "/machines/lab-1").is(404);
    api.get(&operator, "/machines/lab-1").is(404);
    lab.line("disk show lab-1").ok();
    let told: Vec<_> = audit(&lab).iter().map(|line| line["object"].clone()).collect();
    assert_eq!((told.first().unwrap(), told.last().unwrap()), (&json!(mac), &json!("lab-1")));
    std::fs::write(lab.home().join("machines.toml"), "[[machine]]").unwrap();
    assert_eq!(api.get(&operator, "/machines").is(500)["kind"], "corrupt");
    assert_eq!(server.stop(), 0);
}

#[test]
fn who_changed_what_is_in_the_audit_log() {
    let (lab, server, api) = served();
    let admin = token(&lab, "deploy --admin");
    api.post(&admin, "/disks", json!({"name": "alice", "from": "debian"})).is(201);
    api.post(&admin, "/disks", json!({"name": "alice", "from": "debian"})).is(409);
    api.get(&admin, "/disks/alice").is(200);
    let reader = token(&lab, "reader --read");
    api.delete(&reader, "/disks/alice").is(403);
    api.delete("sojourn_00", "/disks/alice").is(401);
    lab.line("disk snapshot alice monday").ok();
    lab.line("disk list").ok();
    lab.line("cache set --size 64MiB").ok();
    lab.line("reload").ok();
    let lines = audit(&lab);
    let told: Vec<(&str, &str, &str, &str)> = lines
        .iter()
        .map(|line| {
            let text = |key: &str| line[key].as_str().unwrap_or("-");
            (text("token"), text("verb"), text("object"), text("outcome"))
        })
        .collect();
    assert_eq!(
        told,
        [
            ("deploy", "disk.create", "alice", "done"),
            ("deploy", "disk.create", "alice", "conflict"),
            ("reader", "DELETE", "/api/v1/disks/alice", "refused"),
            ("-", "DELETE", "/api/v1/disks/alice", "refused"),
            ("-", "disk.snapshot", "alice", "done"),
            ("-", "server.cache", "", "done"),
            ("-", "server.reload", "", "done"),
        ]
    );
    let own = format!("uid {}", rustix::process::geteuid().as_raw());
    assert!(lines[0]["from"].as_str().unwrap().starts_with("127.0.0.1:"), "{}", lines[0]);
    assert!(lines[4]["from"].as_str().unwrap().starts_with(&own), "{}", lines[4]);
    assert!(lines[1]["message"].as_str().unwrap().contains("alice"), "{}", lines[1]);
    assert_eq!(lines[4]["request"]["snapshot"], "monday");
    let time = lines[0]["time"].as_str().unwrap();
    assert!(time.len() == 20 && time.ends_with('Z'), "{time}");
    let everything = std::fs::read_to_string(lab.home().join("audit.log")).unwrap();
    assert!(!everything.contains(&admin["sojourn_".len()..]), "no token is in it");
    // Who is refused again and again does not drive out what was done.
    for _ in 0..100 {
        api.delete("sojourn_00", "/disks/alice").is(401);
    }
    assert!(audit(&lab).len() <= 7 + 60);
    assert_eq!(server.stop(), 0);
}

#[test]
fn nobody_looks_without_a_token_where_the_configuration_says_so() {
    let (lab, server, api) = served();
    let reader = token(&lab, "reader --read");
    assert_eq!(api.send("GET", "/api/v1/disks", HOST, "").status, 200);
    let file = lab.home().join("sojourn.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("# http_access = \"open\"", "http_access = \"tokens\"");
    std::fs::write(&file, text).unwrap();
    lab.line("reload").ok();
    let api = Api::of(&lab);
    for path in ["/api/v1/disks", "/api/v1/live", "/metrics", "/v1/status", "/api/v1/nothing"] {
        assert_eq!(api.send("GET", path, HOST, "").status, 401, "{path}");
    }
    for path in ["/", "/healthz", "/api/v1/openapi.json"] {
        assert_eq!(api.send("GET", path, HOST, "").status, 200, "{path}");
    }
    for path in ["/api/v1/disks", "/api/v1/images", "/metrics", "/v1/status"] {
        assert_eq!(api.ask(&reader, "GET", path, &Value::Null).status, 200, "{path}");
    }
    lab.line("token revoke reader").ok();
    assert_eq!(api.ask(&reader, "GET", "/metrics", &Value::Null).status, 401, "at once");
    assert_eq!(server.stop(), 0);
}
