//! Virtual machines over HTTP: who may do what with which, and a real one that lives by it.

use crate::common::{Lab, Server, have};
use crate::http_client::{
    Api, HOST, JSON, PATIENCE, audit, describe_vm, must_match, served, token,
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn machines_are_listed_shown_and_removed_as_by_the_command() {
    let (lab, server, api) = served();
    let admin = token(&lab, "admin --admin");
    let document = api.document();
    assert_eq!(api.get(&admin, "/vms").is(200), json!({"vms": []}));
    lab.line("disk create alice --from debian").ok();
    describe_vm(&lab, "work", "alice");
    let listed = api.get(&admin, "/vms").is(200);
    must_match(&document, "Vms", &listed);
    assert_eq!(listed["vms"], lab.json("vm list"));
    assert_eq!(api.get(&admin, "/vms?elsewhere=true").is(200), json!({"vms": []}));
    let shown = api.get(&admin, "/vms/work").is(200);
    assert_eq!(shown, lab.json("vm show work"));
    assert_eq!(shown["state"], "stopped");
    // More than what is read of any command.
    let said = format!("{}\u{1b}[0m login:", "x".repeat(17 << 20));
    std::fs::write(lab.home().join("machines/work/console.log"), &said).unwrap();
    let log = api.get(&admin, "/vms/work/log").is(200);
    must_match(&document, "VmLog", &log);
    let text = log["text"].as_str().unwrap();
    assert!(log["is_cut"] == true && text.len() == 64 << 10 && said.ends_with(text), "{log}");
    assert_eq!(lab.line("vm log --last 7 work").ok(), " login:");
    assert!(lab.line("vm log work").ok() == said);
    let other = api.get(&admin, "/vms/work/log?qemu=true").is(200);
    assert_eq!(other, json!({"text": "", "is_cut": false}));
    assert_eq!(api.get(&admin, "/vms/work/memory").is(404)["kind"], "not found");
    let gone = api.delete(&admin, "/vms/work").is(200);
    assert_eq!(gone, json!({"done": "removed work"}));
    assert_eq!(lab.json("vm list"), json!([]));
    assert_eq!(api.get(&admin, "/vms/work").is(404)["kind"], "not found");
    assert_eq!(api.delete(&admin, "/vms/work").is(404)["kind"], "not found");
    let mut noted = audit(&lab);
    noted.retain(|line| line["verb"] == "vm.remove");
    let told = noted.iter().map(|line| {
        ["token", "object", "outcome"].map(|key| line[key].as_str().unwrap().to_owned()).join(" ")
    });
    assert_eq!(told.collect::<Vec<_>>(), ["admin work done", "admin work not found"]);
    assert_eq!(server.stop(), 0);
}

#[test]
fn what_a_verb_says_is_wrong_is_a_status_and_nothing_that_is_asked_becomes_an_option() {
    let (lab, server, api) = served();
    let admin = token(&lab, "admin --admin");
    lab.line("disk create alice --from debian").ok();
    describe_vm(&lab, "work", "alice");
    let before = lab.json("vm show work");
    let ask = |verb: &str, body: Value| api.post(&admin, &format!("/vms/{verb}"), body);
    for verb in ["work/suspend", "work/checkpoint", "work/stop"] {
        let error = ask(verb, json!({})).is(409);
        assert!(error["message"].as_str().unwrap().contains("does not run here"), "{error}");
    }
    for verb in ["work/rollback", "work/resume", "work/discard", "work@7/resume", "nosuch/start"] {
        assert_eq!(ask(verb, json!({})).is(404)["kind"], "not found", "{verb}");
    }
    ask("work/clone", json!({"new": "play"})).is(404);
    let started = ask("work/start", json!({})).is(404);
    assert!(started.to_string().contains("/nonexistent/qemu"), "{started}");
    let create = |body: Value| api.post(&admin, "/vms", body);
    let work = json!({"name": "work", "disk": "alice"});
    assert_eq!(create(work).is(409)["kind"], "conflict");
    create(json!({"name": "play", "disk": "nosuch"})).is(404);
    // What runs programs and reaches files is nothing that this takes.
    let play = |field: &str, value: Value| {
        let mut body = json!({"name": "play", "disk": "alice"});
        body[field] = value;
        create(body).is(400);
    };
    play("arguments", json!(["-kernel", "/etc/passwd"]));
    play("qemu", json!("/bin/sh"));
    play("memory", json!("1G"));
    play("memory", json!(-1));
    play("cpus", json!(0.5));
    for model in ["", "host,help", "a b", "x\u{0}"] {
        play("cpu", json!(model));
    }
    for field in ["qemu", "trust_arguments"] {
        for verb in ["start", "resume", "clone"] {
            let mut body = if verb == "clone" { json!({"new": "play"}) } else { json!({}) };
            body[field] = json!(true);
            ask(&format!("work/{verb}"), body).is(400);
        }
    }
    for name in [
        "-x",
        "--lost",
        "--help",
        "%2e%2e%2falice",
        "work%00",
        "%ff",
        "work@",
        "work@x",
        "work%0a",
        "a%20b",
    ] {
        api.get(&admin, &format!("/vms/{name}")).is(400);
        api.delete(&admin, &format!("/vms/{name}")).is(400);
        ask(&format!("{name}/start"), json!({})).is(400);
        if !name.starts_with('%') && !name.contains('%') {
            create(json!({"name": name, "disk": "alice"})).is(400);
            create(json!({"name": "play", "disk": name})).is(400);
            ask("work/clone", json!({"new": name})).is(400);
            ask("work/clone", json!({"new": "play", "disk": name})).is(400);
        }
    }
    api.get(&admin, "/vms?colour=red").is(400);
    api.get(&admin, "/vms/work/log?qemu=perhaps").is(400);
    assert_eq!(lab.json("vm show work"), before);
    assert_eq!(lab.json("vm list").as_array().unwrap().len(), 1);
    assert_eq!(server.stop(), 0);
}

#[test]
fn what_loses_data_takes_the_right_to_administer() {
    let (lab, server, api) = served();
    let operator = token(&lab, "operator --operate");
    lab.line("disk create alice --from debian").ok();
    describe_vm(&lab, "work", "alice");
    let ask =
        |verb: &str, body: Value| api.post(&operator, &format!("/vms/work/{verb}"), body).status;
    for (verb, body) in [
        ("start", json!({"fresh": true})),
        ("start", json!({"lost": true})),
        ("resume", json!({"lost": true})),
        ("stop", json!({"force": true})),
        ("rollback", json!({})),
        ("discard", json!({})),
    ] {
        assert_eq!(ask(verb, body), 403, "{verb}");
    }
    api.delete(&operator, "/vms/work").is(403);
    // The rest it may: what is wrong then is another thing.
    for (verb, status) in [("start", 404), ("resume", 404), ("stop", 409), ("suspend", 409)] {
        assert_eq!(ask(verb, json!({})), status, "{verb}");
    }
    lab.line("vm show work").ok();
    assert_eq!(server.stop(), 0);
}

#[test]
fn a_limited_token_cannot_tell_a_machine_of_another_disk_from_none() {
    let (lab, server, api) = served();
    for disk in ["alice", "bob"] {
        lab.line(&format!("disk create {disk} --from debian")).ok();
    }
    describe_vm(&lab, "work", "alice");
    describe_vm(&lab, "alice-2", "bob");
    // It goes on with another disk than its description names.
    describe_vm(&lab, "mixed", "alice");
    let pending = lab.home().join("machines/mixed/pending");
    std::fs::create_dir(&pending).unwrap();
    std::fs::write(pending.join("pending.json"), r#"{"machine": {"disk": "bob"}}"#).unwrap();
    // Nobody knows of which disk it is.
    std::fs::create_dir(lab.home().join("machines/broken")).unwrap();
    std::fs::write(lab.home().join("machines/broken/machine.json"), "{").unwrap();
    let mine = token(&lab, "mine --admin --disk alice*");
    let names = |list: Value| -> Vec<String> {
        let all = list["vms"].as_array().unwrap().iter();
        all.map(|vm| vm["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(api.get(&mine, "/vms").is(200)), ["work"]);
    let admin = token(&lab, "admin --admin");
    assert_eq!(names(api.get(&admin, "/vms").is(200)), ["alice-2", "broken", "mixed", "work"]);
    let answer = |method: &str, path: &str, body: Value, name: &str| {
        let answer = api.ask(&mine, method, &format!("/api/v1/vms/{name}{path}"), &body);
        assert_eq!(answer.status, 403, "{method} {name}{path}: {}", answer.text);
        answer.text.replace(name, "NAME")
    };
    for (method, path, body) in [
        ("GET", "", Value::Null),
        ("GET", "/log", Value::Null),
        ("GET", "/memory", Value::Null),
        ("DELETE", "", Value::Null),
        ("POST", "/start", json!({"fresh": true})),
        ("POST", "/suspend", json!({})),
        ("POST", "/resume", json!({})),
        ("POST", "/checkpoint", json!({})),
        ("POST", "/rollback", json!({})),
        ("POST", "/discard", json!({})),
        ("POST", "/clone", json!({"new": "alice-3"})),
        ("POST", "/stop", json!({"force": true})),
    ] {
        let none = answer(method, path, body.clone(), "nosuch");
        for name in ["alice-2", "mixed", "broken"] {
            assert_eq!(answer(method, path, body.clone(), name), none, "{method} {name}{path}");
        }
    }
    let create = |name: &str, disk: &str| {
        api.post(&mine, "/vms", json!({"name": name, "disk": disk})).status
    };
    assert_eq!(create("alice-4", "bob"), 403);
    assert_eq!(create("play", "alice"), 403, "its name is none of the token's");
    assert_eq!(create("alice-2", "alice"), 403, "another one has it");
    assert_eq!(create("alice-4", "alice"), 404, "there is no QEMU");
    api.get(&mine, "/vms/work").is(200);
    api.post(&mine, "/vms/work/clone", json!({"new": "play"})).is(403);
    api.post(&mine, "/vms/work/clone", json!({"new": "alice-5", "disk": "bob"})).is(403);
    api.post(&mine, "/vms/work/clone", json!({"new": "alice-5"})).is(404); // no parcel
    assert_eq!(lab.json("vm list").as_array().unwrap().len(), 4);
    assert_eq!(server.stop(), 0);
}

/// Sockets and pipes that a process has open.
fn channels(pid: u64) -> BTreeSet<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let links = entries.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let names = links.map(|link| link.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("socket:") || name.starts_with("pipe:")).collect()
}

/// Waits until something is so.
fn wait<T>(what: &str, found: impl Fn() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < end, "{what} never came");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Has something begin, and goes away without an answer.
fn begin_and_go((api, server): (&Api, &Server), token: &str, path: &str, body: &Value) {
    let (mut stream, body) = (TcpStream::connect(&api.address).unwrap(), body.to_string());
    let length = body.len();
    let request = format!(
        "POST /api/v1{path} HTTP/1.1\r\ncontent-length: {length}\r\n{JSON}authorization: Bearer {token}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    wait("its beginning", || server.log().contains("vm.suspend").then_some(()));
}

/// The map of the memory of a machine of 32 MiB, which was suspended twice.
#[track_caller]
fn must_tell_where_memory_is(api: &Api, token: &str) {
    let map = api.get(token, "/vms/work/memory").is(200);
    must_match(&api.document(), "VmMemory", &map);
    assert_eq!((&map["parcel"], &map["size"]), (&json!("work@2"), &json!(32 << 20)));
    let total = map["total"].as_object().unwrap();
    let bytes = |place: &str| total[place].as_u64().unwrap();
    assert_eq!(total.keys().map(|place| bytes(place)).sum::<u64>(), 32 << 20, "{map}");
    assert!(bytes("zero") > 0 && bytes("stored") + bytes("cached") > 0, "{map}");
    assert_eq!(bytes("private") + bytes("waiting") + bytes("unread"), 0, "{map}");
    let first = api.get(token, "/vms/work@1/memory?cells=16").is(200);
    assert_eq!((&first["parcel"], &first["cell_bytes"]), (&json!("work@1"), &json!(2 << 20)));
    for wrong in ["work/memory?cells=0", "work/memory?cells=4097", "work/memory?colour=red"] {
        api.get(token, &format!("/vms/{wrong}")).is(400);
    }
    api.get(token, "/vms/work@9/memory").is(404);
    api.get(token, "/vms/work@x/memory").is(400);
}

/// Machines that a test runs: it leaves none behind, however it ends.
struct RunningVms<'a>(&'a Lab);

impl Drop for RunningVms<'_> {
    fn drop(&mut self) {
        for name in ["work", "play"] {
            self.0.line(&format!("vm stop --force {name}"));
        }
    }
}

#[test]
fn a_machine_is_made_runs_is_suspended_and_cloned_over_http_and_outlives_client_and_server() {
    if !have("qemu-system-x86_64") {
        return;
    }
    let lab = Lab::new();
    // A guest that stands still: cli; hlt; and back to hlt.
    let mut idle = vec![0; 4 << 20];
    idle[..4].copy_from_slice(&[0xfa, 0xf4, 0xeb, 0xfd]);
    idle[510..512].copy_from_slice(&[0x55, 0xaa]);
    let file = lab.file("idle.raw", &idle);
    lab.line(&format!("image import {} idle", file.display())).ok();
    let server = lab.serve(&["--http", "127.0.0.1:0"]);
    let api = Api::of(&lab);
    let document = api.document();
    let admin = token(&lab, "admin --admin");
    api.post(&admin, "/disks", json!({"name": "alice", "from": "idle"})).is(201);

    let _running = RunningVms(&lab);
    let described = json!({"name": "work", "disk": "alice", "memory": 32 << 20});
    let made = api.post(&admin, "/vms", described);
    assert!(made.head.contains("location: /api/v1/vms/work"), "{}", made.head);
    let made = made.is(201);
    must_match(&document, "VmDescription", &made);
    assert_eq!((&made["memory"], &made["arguments"]), (&json!(32 << 20), &json!([])));
    let running = api.post(&admin, "/vms/work/start", json!({})).is(200);
    must_match(&document, "VmRunning", &running);
    let keeper = running["keeper"].as_u64().unwrap();
    // What this test was started with, all have.
    let own = channels(std::process::id().into());
    let mut both = channels(keeper);
    both.retain(|one| channels(server.pid().into()).contains(one) && !own.contains(one));
    assert_eq!(both, BTreeSet::new(), "the keeper has something of the server");
    let shown = api.get(&admin, "/vms/work").is(200);
    must_match(&document, "Vm", &shown);
    assert_eq!((&shown["state"], &shown["running"]["keeper"]), (&json!("running"), &json!(keeper)));
    assert_eq!(api.post(&admin, "/vms/work/start", json!({})).is(409)["kind"], "conflict");
    api.delete(&admin, "/vms/work").is(409);
    let stored = api.post(&admin, "/vms/work/checkpoint", json!({})).is(201);
    must_match(&document, "VmStored", &stored);
    assert_eq!(stored["parcel"], "work@1");

    // Whoever asked for it has gone; it is finished, and noted.
    begin_and_go((&api, &server), &admin, "/vms/work/suspend", &json!({"wait": true}));
    let noted = wait("a line of the audit log", || {
        audit(&lab).into_iter().find(|line| line["verb"] == "vm.suspend")
    });
    assert_eq!(noted["outcome"], "done", "{noted}");
    let told = api.get(&admin, "/vms").is(200);
    must_match(&document, "Vms", &told);
    assert_eq!(
        (&told["vms"][0]["state"], &told["vms"][0]["parcels"][1]["parcel"]),
        (&json!("suspended"), &json!("work@2"))
    );
    assert!(api.post(&admin, "/vms/work/rollback", json!({})).is(200)["done"].is_string());
    must_tell_where_memory_is(&api, &admin);

    let cloned = api.post(&admin, "/vms/work@2/clone", json!({"new": "play"}));
    assert!(cloned.head.contains("location: /api/v1/vms/play"), "{}", cloned.head);
    must_match(&document, "VmDescription", &cloned.is(201));
    let resumed = api.post(&admin, "/vms/play/resume", json!({})).is(200);
    must_match(&document, "VmRunning", &resumed);
    let mine = token(&lab, "mine --operate --disk play");
    let seen = api.get(&mine, "/vms").is(200);
    assert_eq!(seen["vms"].as_array().unwrap().len(), 1, "{seen}");
    assert_eq!(seen["vms"][0]["name"], "play");
    api.get(&mine, "/vms/work").is(403);
    let kept = api.post(&mine, "/vms/play/suspend", json!({})).is(200);
    assert!(kept["parcel"] == "play@2", "{kept}");
    let stored = api.post(&mine, "/vms/play/suspend", json!({"wait": true})).is(200);
    assert_eq!(stored["parcel"], "play@2");
    api.delete(&admin, "/vms/play@1").is(200);

    // It runs on when the server has ended, which did not have it.
    let resumed = api.post(&admin, "/vms/work/resume", json!({})).is(200);
    assert_eq!(server.stop(), 0);
    let running = lab.json("vm show work");
    assert_eq!(
        (&running["state"], &running["running"]["keeper"]),
        (&json!("running"), &resumed["keeper"])
    );
    let noted: BTreeSet<String> =
        audit(&lab).iter().map(|line| line["verb"].as_str().unwrap().to_owned()).collect();
    for verb in
        ["create", "start", "checkpoint", "suspend", "rollback", "clone", "resume", "remove"]
    {
        assert!(noted.contains(&format!("vm.{verb}")), "{verb}: {noted:?}");
    }
}

#[test]
fn lists_of_machines_take_a_token_also_where_others_may_look() {
    let (_lab, server, api) = served();
    for path in [
        "/api/v1/vms",
        "/api/v1/vms/work",
        "/api/v1/vms/work/log",
        "/api/v1/media",
        "/api/v1/media/usb",
    ] {
        assert_eq!(api.send("GET", path, HOST, "").status, 401, "{path}");
    }
    assert_eq!(server.stop(), 0);
}
