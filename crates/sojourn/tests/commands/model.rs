//! Replaying, modelling and predicting from the command line.

use crate::common::Lab;
use serde_json::Value;
use std::fmt::Write;

/// A trace of 4 KiB requests: every line is time in us, client, operation, block.
fn trace(lab: &Lab, name: &str, requests: &[(u64, u32, char, u64)]) -> String {
    let mut text = "time_us,client,op,offset,length\n".to_owned();
    for (time, client, op, block) in requests {
        let _ = writeln!(text, "{time},{client},{op},{},4096", block * 4096);
    }
    lab.file(name, text.as_bytes()).display().to_string()
}

fn near(value: &Value, expected: f64) -> bool {
    (value.as_f64().unwrap() / expected - 1.0).abs() < 1e-4
}

#[test]
fn the_papers_server_is_solved_and_drawn() {
    let lab = Lab::empty();
    let line = "model solve transcom --clients 1,15 --hit 0.9,95%,1 --block 4K,32K";
    let solved = lab.json(&format!("{line} --html m.html --csv m.csv"));
    let case = &solved["cases"][1];
    assert_eq!((case["block"].as_u64(), case["hit"].as_f64()), (Some(4096), Some(0.95)));
    assert!(near(&case["rows"][1]["throughput"], 2958.37), "{case}");
    assert!(near(&case["rows"][1]["response_ms"], 5.0704), "{case}");
    assert!(near(&solved["switches"][0]["hit"], 0.97485), "{solved}");
    let page = std::fs::read_to_string(lab.path("m.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script"));
    let csv = std::fs::read_to_string(lab.path("m.csv")).unwrap();
    assert_eq!(csv.lines().count(), 1 + 12);
    let text = lab.line(line).ok();
    assert!(text.contains("disk is the bottleneck below 97.49 % hits, network above"), "{text}");
    // Known at one size alone.
    let centre = "[[centre]]\nname = \"disk\"\nmiss_ms = { 4K = 10 }\n";
    lab.file("one.toml", format!("version = 1\nname = \"one\"\n{centre}").as_bytes());
    for (block, unknown) in [("4K", false), ("32K", true)] {
        let solved = lab.json(&format!("model solve one.toml --clients 1 --hit 0 --block {block}"));
        assert_eq!(solved["cases"][0]["extrapolated"], unknown, "{solved}");
    }
    let said = "blocks of 8 KiB, 32 KiB lie outside of the sizes that the profile was measured for";
    let text = lab.line("model solve one.toml --clients 1 --hit 0 --block 32K,4K,8K").ok();
    assert!(text.contains(said), "{text}");
    // A mix, too.
    let class = |name: &str, block: &str| {
        format!("[[class]]\nname = \"{name}\"\nclients = 1\nblock = \"{block}\"\nhit = 0\n")
    };
    let classes = class("a", "4K") + &class("b", "32K") + &class("c", "8K");
    lab.file("mix.toml", format!("version = 1\nname = \"mix\"\n{centre}{classes}").as_bytes());
    let mix = lab.json("model solve mix.toml");
    let known: Vec<_> =
        (0..3).map(|at| mix["classes"][at]["extrapolated"].as_bool().unwrap()).collect();
    assert_eq!(known, [false, true, true], "{mix}");
    assert!(lab.line("model solve mix.toml").ok().contains(said));
    // Nor is a prediction silent.
    let trace = trace(&lab, "t.csv", &[(0, 0, 'R', 0), (100, 0, 'R', 4)]);
    for (block, unknown) in [("4K", false), ("30K", true)] {
        let line =
            format!("predict --profile one.toml --trace {trace} --memory 1M --block {block}");
        let notes = lab.json(&line)["notes"].to_string();
        assert_eq!(notes.contains("not measured with requests of 30 KiB"), unknown, "{notes}");
        assert_eq!(notes.contains("model fit --block"), unknown, "{notes}");
    }
    // What a piece takes is in the simulation alone.
    let with_pieces = format!("version = 1\nname = \"one\"\n{centre}piece_ms = 0.25\n");
    lab.file("pieces.toml", with_pieces.as_bytes());
    for (more, left_out) in [("--pieces 1G", true), ("--pieces 1G --simulate", false), ("", false)]
    {
        let line = format!("predict --profile pieces.toml --trace {trace} --memory 1M {more}");
        let notes = lab.json(&line)["notes"].to_string();
        assert_eq!(notes.contains("takes 0.25 ms"), left_out, "{more}: {notes}");
    }
}

#[test]
fn profiles_are_files_and_wrong_ones_are_named() {
    let lab = Lab::empty();
    let profile = "version = 1\nname = \"one disk\"\n[[centre]]\nname = \"disk\"\nmiss_ms = 10\n\
                   [[class]]\nname = \"a\"\nclients = 2\nblock = \"4K\"\nhit = 0.5\n";
    lab.file("server.toml", profile.as_bytes());
    let solved = lab.json("model solve server.toml --clients 4 --hit 0.5");
    assert!(near(&solved["cases"][0]["rows"][0]["throughput"], 200.0), "{solved}");
    let mix = lab.json("model solve server.toml");
    assert!(near(&mix["classes"][0]["throughput"], 200.0), "{mix}");
    lab.line("model solve missing.toml").fails(3, &["missing.toml"]);
    lab.file("bad.toml", profile.replace("miss_ms", "mss_ms").as_bytes());
    lab.line("model solve bad.toml").fails(2, &["bad.toml", "line 5", "mss_ms"]);
    lab.file(
        "huge.toml",
        b"version = 1\nname = \"x\"\n[[centre]]\nname = \"disk\"\nmiss_ms = 1e300\n",
    );
    let said = "centre \"disk\": the demand is 1e297 s: give a time from 0 to 1e9 s";
    lab.line("model solve huge.toml").fails(2, &["huge.toml", said]);
    lab.file("new.toml", profile.replace("version = 1", "version = 9").as_bytes());
    lab.line("model solve new.toml").fails(10, &["version 9"]);
    lab.line("model solve transcom --clients 0").fails(2, &["1 or more"]);
    lab.line("model solve transcom --clients 1-100000 --hit 0-1:0.01").fails(2, &["1000000"]);
}

#[test]
fn a_trace_is_replayed_against_private_disks_and_what_it_wrote_is_verified() {
    let (lab, _) = Lab::with_image();
    for disk in ["vm1", "vm2", "vm3"] {
        lab.line(&format!("disk create {disk} --from debian")).ok();
    }
    let mut requests = Vec::new();
    for i in 0..60 {
        requests.push((i * 100, (i % 2) as u32, 'W', i * 3 % 40));
        requests.push((i * 100, (i % 2) as u32, 'R', i % 40));
    }
    let trace = trace(&lab, "t.csv", &requests);
    let server = lab.serve(&[]);
    let uri = server.uri("vm{client}");
    lab.run(["replay", &trace, &uri]).fails(9, &["--allow-writes", "--reads-only"]);
    let args = ["--json", "replay", &trace, &uri, "--clients", "3", "--allow-writes", "--verify"];
    let report = lab.run(args).json();
    assert_eq!(report["requests"], 180, "{report}");
    assert_eq!((&report["errors"], &report["complete"]), (&0.into(), &true.into()));
    assert!(report["verified"]["grains"].as_u64().unwrap() > 100, "{report}");
    assert_eq!(report["verified"]["wrong"], 0);
    // Reads of other places than those that are written.
    let apart = self::trace(&lab, "a.csv", &[(0, 0, 'W', 1), (1, 0, 'R', 9)]);
    lab.run(["replay", &apart, &uri, "--allow-writes", "--verify"])
        .fails(2, &["nothing was verified"]);
    let image = server.uri("debian");
    let args =
        ["--json", "replay", &trace, &image, "--reads-only", "--speed", "1", "--connections", "1"];
    let report = lab.run(args).json();
    assert_eq!((&report["requests"], &report["connections"]), (&60.into(), &1.into()));
    assert_eq!(report["skipped"], 60);
    assert!(report["seconds"].as_f64().unwrap() >= 0.0059, "{report}");
    lab.run(["replay", &trace, &server.uri("nothing"), "--reads-only"]).fails(3, &["nothing"]);
    assert_eq!(server.stop(), 0);
}

#[test]
fn more_memory_holds_more_clients_and_the_backend_is_what_to_buy() {
    let lab = Lab::empty();
    // Two clients that read the same 2 MiB again and again, and pause for 1 ms.
    let requests: Vec<_> =
        (0..8000).map(|i| (i * 500, (i % 2) as u32, 'R', i * 16 % 512)).collect();
    let trace = trace(&lab, "t.csv", &requests);
    let line = format!(
        "predict --profile transcom --trace {trace} --memory 512K-4M --grain 64K --response 8ms --policy lru"
    );
    let seen = lab.json(&format!("{line} --html p.html"));
    assert!(near(&seen["think_ms"], 1.0), "{}", seen["trace"]);
    let cases = seen["cases"].as_array().unwrap();
    let clients: Vec<u64> = cases.iter().map(|case| case["clients"].as_u64().unwrap()).collect();
    assert!(clients.is_sorted() && clients[0] < clients[3], "{clients:?}");
    // A loop over 2 MiB never misses in more. In less it does, but for reads next to each other that
    // meet one chunk.
    let hits: Vec<f64> = cases.iter().map(|case| case["hit"].as_f64().unwrap()).collect();
    assert!(hits[0] < 0.25 && hits[3] > 0.99, "{hits:?}");
    assert_eq!(cases[0]["bottleneck"], "disk");
    assert_eq!(cases[3]["next"][0]["twice"], "network");
    assert!(std::fs::read_to_string(lab.path("p.html")).unwrap().contains("<svg"));
    assert!(lab.line(&line).ok().contains("asked for is 8.0000 ms"));
    // Nobody looked whether there may be more.
    let few = lab.line(&format!("{line} --clients 1-2")).ok();
    assert!(few.contains("2 or more") && few.contains("2 clients are the most"), "{few}");
    assert!(few.contains("disk 2 or more"), "{few}");
    // Each with its own data: two clients' caches for hundreds.
    let private = lab.json(&format!("{line} --data private --clients 1-300"));
    let last = |view: &Value| view["cases"][3]["clients"].as_u64().unwrap();
    assert!(last(&private) < last(&seen), "{private}");
    lab.file("ids", b"1\n2\n3\n");
    let line = "predict --profile transcom --trace ids --format ids --memory 1M";
    lab.line(line).fails(2, &["--think"]);
    lab.line(&format!("{line} --think 0s --clients 0-5")).fails(2, &["1 to"]);
}

#[test]
fn clients_in_step_are_simulated_and_arithmetic_says_that_it_cannot_tell_them() {
    let lab = Lab::empty();
    // One client that reads 100 places, 1 MiB apart.
    let requests: Vec<_> = (0..100).map(|i| (i * 1000, 0, 'R', i * 256)).collect();
    let trace = trace(&lab, "boot.csv", &requests);
    let line = format!(
        "predict --profile transcom --trace {trace} --memory 64M --think 0s --response 1s --clients 1,6"
    );
    let plain = lab.json(&line);
    let notes = plain["notes"].to_string();
    assert!(notes.contains("cannot tell") && notes.contains("--pieces 4GiB"), "{plain}");
    assert!(plain["cases"][0].get("simulated").is_none());
    let seen = lab.json(&format!("{line} --simulate"));
    let [one, six] = [0, 1].map(|at| seen["cases"][0]["simulated"][at].clone());
    let x = |point: &Value| point["throughput"].as_f64().unwrap();
    assert!(x(&six) > 4.5 * x(&one), "six share every load: {one} {six}");
    assert_eq!((&one["store_loads"], &six["store_loads"]), (&100.into(), &100.into()));
    assert!(six["shared"].as_f64().unwrap() > 0.8, "{six}");
    assert!(x(&six) > 3.0 * six["model_throughput"].as_f64().unwrap(), "{six}");
    assert!(!seen["notes"].to_string().contains("cannot tell"), "{seen}");
    // Each with data of its own: the disk is the bottleneck again.
    let own = lab.json(&format!("{line} --simulate --data private"));
    let own = &own["cases"][0]["simulated"][1];
    assert_eq!(own["store_loads"], 600);
    assert!(x(own) < 1.2 * x(&one), "{own}");
    let text = lab.line(&format!("{line} --simulate --stagger 10s")).ok();
    assert!(text.contains("by arithmetic") && text.contains("empty caches"), "{text}");
    let alone = lab.line(&format!("{line} --stagger 1s"));
    assert!(alone.code == 2 && alone.stderr.contains("--simulate"), "{}", alone.stderr);
    lab.line(&format!("{line} --data private --pieces 1G")).fails(2, &["--simulate"]);
}

#[test]
fn what_left_a_small_cache_is_answered_by_the_piece_cache() {
    let lab = Lab::empty();
    let requests: Vec<_> = (0..400).map(|i| (i * 1000, 0, 'R', i % 100 * 256)).collect();
    let trace = trace(&lab, "loop.csv", &requests);
    let line = format!(
        "predict --profile transcom --trace {trace} --memory 1M --think 0s --clients 1 --policy lru --simulate"
    );
    let figures = |line: &str| {
        let seen = lab.json(line);
        let case = &seen["cases"][0];
        let of = |value: &Value| value.as_f64().unwrap();
        (of(&case["kept"]), of(&case["throughput"]), of(&case["simulated"][0]["throughput"]))
    };
    let (none, slow, slow_simulated) = figures(&line);
    let (kept, quick, quick_simulated) = figures(&format!("{line} --pieces 4GiB"));
    assert!(none == 0.0 && (kept - 0.75).abs() < 0.01, "{none} {kept}");
    assert!(quick > 3.0 * slow, "{quick} {slow}");
    assert!((slow / slow_simulated - 1.0).abs() < 0.05, "{slow} {slow_simulated}");
    // Two pieces come for a chunk, which takes the disk a little longer.
    let quicker = quick_simulated / slow_simulated;
    assert!(quicker > 2.5 && quick_simulated < quick, "{quick_simulated} {slow_simulated}");
}

#[test]
fn a_running_servers_demands_are_measured_into_a_profile() {
    let (lab, _) = Lab::with_image();
    let server = lab.serve(&[]);
    let uri = server.uri("debian");
    let fitted = lab
        .run([
            "--json",
            "model",
            "fit",
            &uri,
            "--out",
            "server.toml",
            "--hits-only",
            "--block",
            "4K",
            "--hot",
            "4M",
            "--loads",
            "1,2",
            "--check",
            "3",
            "--time",
            "300ms",
            "--force", // a busy machine
        ])
        .json();
    let runs = fitted["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    assert!(runs.iter().all(|run| run["throughput"].as_f64().unwrap() > 10.0), "{fitted}");
    let solved = lab.json("model solve server.toml --clients 1 --hit 1");
    let predicted = solved["cases"][0]["rows"][0]["throughput"].as_f64().unwrap();
    // The load generator's own time is left out of the profile: the server alone is faster.
    let measured = runs[0]["throughput"].as_f64().unwrap();
    assert!(predicted > measured * 0.5, "{solved} {fitted}");
    let profile = std::fs::read_to_string(lab.path("server.toml")).unwrap();
    assert!(profile.starts_with("# Measured") && profile.contains("name = \"cpu\""), "{profile}");
    lab.run(["model", "fit", &uri, "--out", "x.toml", "--hot", "8M"]).fails(2, &["--hits-only"]);
    assert_eq!(server.stop(), 0);
}
