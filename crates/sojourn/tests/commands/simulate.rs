//! `sojourn simulate`: caches, curves and advice, from generated traces and from recorded boots.

use crate::common::Lab;
use std::fmt::Write;

/// A trace of 64 KiB reads: one disk's 32 MiB in a loop, 12 times, by two clients in turn.
fn looping() -> String {
    let mut csv = String::from("time_us,client,op,offset,length\n");
    for at in 0..12 * 512 {
        let (client, offset) = (["a", "b"][at % 2], at % 512 * 65_536);
        writeln!(csv, "{},{client},R,{offset},65536", at * 100).unwrap();
    }
    csv
}

fn lab() -> Lab {
    let lab = Lab::empty();
    lab.file("loop.csv", looping().as_bytes());
    lab
}

/// The boot of a guest that is in the repository.
fn boot() -> String {
    format!("{}/../trace/tests/boots/office-a.csv.zst --sort", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn policies_hit_what_a_loop_lets_them_hit() {
    let lab = lab();
    let line = "simulate cache loop.csv --policy lru,lirs,opt --size 24M,64M --html t.html";
    let json = lab.json(&format!("{line} --split 8192"));
    assert_eq!((&json["requests"], &json["references"]), (&6144.into(), &98_304.into()));
    assert_eq!(json["distinct_blocks"], 8192);
    let hits: Vec<_> = json["rows"].as_array().unwrap().iter().map(|row| &row["hits"]).collect();
    // LRU loses a loop that is longer than the cache; who holds it all hits all but the first.
    assert_eq!(*hits[0], 0);
    assert!([1, 3, 5].iter().all(|at| *hits[*at] == 90_112), "{hits:?}");
    let (lirs, best) = (hits[2].as_u64().unwrap(), hits[4].as_u64().unwrap());
    assert!(lirs > 60_000 && lirs <= best && best < 90_112, "{hits:?}");
    assert_eq!(json["rows"][1]["split"], serde_json::json!([0, 0, 90_112, 0]));
    let csv = lab.line(&format!("{line} --csv")).ok();
    assert!(csv.contains("\"lru\",67108864,16384,0.916667,90112,8192,8192,"), "{csv}");
    let page = std::fs::read_to_string(lab.path("t.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("lirs") && !page.contains("http"));
}

#[test]
fn figures_of_a_boot_are_what_they_always_were() {
    let lab = Lab::empty();
    let json = lab.json(&format!("simulate cache {} --policy lru,fmpq --size 16M,64M", boot()));
    assert_eq!(json["requests"], 3732);
    let ratios: Vec<f64> = (json["rows"].as_array().unwrap().iter())
        .map(|row| row["hit_ratio"].as_f64().unwrap())
        .collect();
    let curve = lab.json(&format!("simulate curve {} --size 16M,64M", boot()));
    for (point, ratio) in curve["points"].as_array().unwrap().iter().zip(&ratios) {
        assert!((point["hit_ratio"].as_f64().unwrap() - ratio).abs() < 1e-9, "{point} {ratio}");
    }
    // Three passes over nearly the same 63 MiB.
    assert!(ratios[0] < 0.2 && ratios[1] > 0.4 && ratios[3] > 0.4, "{ratios:?}");
}

#[test]
fn a_curve_from_a_few_blocks_is_nearly_that_of_all() {
    let lab = lab();
    let ratios = |options: &str| {
        let json = lab.json(&format!("simulate curve loop.csv --size 16M,28M,36M,64M {options}"));
        let points = json["points"].as_array().unwrap().clone();
        let ratios = points.iter().map(|point| point["hit_ratio"].as_f64().unwrap());
        (ratios.collect::<Vec<_>>(), json["blocks"].as_u64().unwrap())
    };
    let (exact, blocks) = ratios("");
    assert_eq!((blocks, exact[0], exact[1]), (8192, 0.0, 0.0));
    for (options, blocks) in [("--samples 512", 400..=512), ("--one-in 8", 900..=1150)] {
        let (sampled, looked_at) = ratios(options);
        assert!(blocks.contains(&looked_at), "{options}: {looked_at} blocks");
        let near = exact.iter().zip(&sampled).all(|(exact, ratio)| (exact - ratio).abs() < 0.03);
        assert!(near, "{options}: {sampled:?}, not {exact:?}");
    }
    let small = lab.line("simulate curve loop.csv --one-in 64 --size 16M");
    assert!(small.stderr.contains("the sample is small"), "{}", small.stderr);
    assert!(!lab.line("simulate curve loop.csv --size 16M").stderr.contains("sample"));
    let csv = lab.line("simulate curve loop.csv --samples 512 --csv").ok();
    assert!(csv.starts_with("bytes,hit_ratio\n") && csv.lines().count() > 10, "{csv}");
    let both = lab.line("simulate curve loop.csv --samples 512 --one-in 8");
    assert_eq!(both.code, 2);
    lab.line("simulate curve loop.csv --samples 3").fails(2, &["use 64 to"]);
}

#[test]
fn tuning_names_a_policy_its_gain_and_the_lines_to_write() {
    let lab = lab();
    let tuned = lab.json("simulate tune loop.csv --memory 24M --html t.html");
    let case = &tuned[0];
    let policy = case["policy"].as_str().unwrap();
    assert_ne!(policy, "lru");
    assert!(case["saved"].as_f64().unwrap() > 0.4, "{case}");
    assert!(case["saved_error"].as_f64().unwrap() < 0.1, "{case}");
    // What it says is a configuration that the server takes.
    lab.line("init").ok();
    std::fs::write(lab.home().join("sojourn.toml"), case["config"].as_str().unwrap()).unwrap();
    lab.line("image list").ok();
    let measured = lab.json(&format!("simulate cache loop.csv --policy {policy} --size 24M"));
    let (best, measured) = (&case["candidates"][0], &measured["rows"][0]["hit_ratio"]);
    let [expected, error, measured] =
        [&best["hit_ratio"], &best["error"], measured].map(|number| number.as_f64().unwrap());
    assert!((expected - measured).abs() <= error, "{expected} +- {error}, not {measured}");
    let text = lab.line("simulate tune loop.csv --memory 24M").ok();
    assert!(text.contains("miss") && text.contains("[cache]\nsize = \"24 MiB\"\n"), "{text}");
    let page = std::fs::read_to_string(lab.path("t.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("<pre>[cache]"));
}

#[test]
fn memory_is_divided_and_blocks_are_chosen() {
    let lab = lab();
    let line = "simulate tune loop.csv --blocks 4K-64K --split --html t.html";
    // Each client reads half of the 32 MiB, always the same half.
    let much = lab.json(&format!("{line} --memory 96M"));
    assert_eq!(much[0]["clients"], 2);
    assert!(much[0]["best"]["client"].as_u64().unwrap() >= 16 << 20, "{}", much[0]["best"]);
    assert!(much[0]["saved"].as_f64().unwrap() > 0.3, "{}", much[0]["saved"]);
    let config = much[0]["config"].as_str().unwrap();
    assert!(config.starts_with("# each client: a cache of ") && config.contains("[cache]\n"));
    lab.line("init").ok();
    std::fs::write(lab.home().join("sojourn.toml"), config).unwrap();
    lab.line("image list").ok();
    let text = lab.line(&format!("{line} --memory 40M")).ok();
    assert!(text.contains("40 MiB for a server and 2 clients"), "{text}");
    let page = std::fs::read_to_string(lab.path("t.html")).unwrap();
    assert!(page.contains("blocks of 64 KiB") && page.contains("Time of a read"));
    assert_eq!(lab.line(&format!("{line} --memory 40M --client 1M")).code, 2);
    let none = "simulate tune loop.csv --blocks 4K --memory 40M --fetch-rate 0";
    lab.line(none).fails(2, &["0 bytes a second"]);
}

#[test]
fn what_cannot_be_simulated_is_refused_with_the_remedy() {
    let lab = lab();
    lab.file("writes.csv", b"time_us,client,op,offset,length\n0,a,W,0,4096\n");
    lab.line("simulate curve writes.csv").fails(2, &["writes.csv", "--writes"]);
    lab.line("simulate curve writes.csv --samples 64").fails(2, &["writes.csv", "--writes"]);
    lab.line("simulate tune writes.csv --memory 1M --split").fails(2, &["reads nothing"]);
    lab.line("simulate cache loop.csv --size 1K").fails(2, &["does not hold a block"]);
    lab.line("simulate cache loop.csv --size 1M --policy lru:x=1").fails(2, &["no parameter"]);
    let twice = "simulate tune - --memory 1M,2M --split";
    lab.line(twice).fails(2, &["give a file"]);
}

#[test]
fn sizes_may_be_parts_of_all_that_is_asked_for_and_policies_stand_beside_each_other() {
    let lab = lab();
    let json = lab.json("simulate cache loop.csv --policy lru,lirs --size 50%,100%");
    let bytes: Vec<u64> =
        json["rows"].as_array().unwrap().iter().map(|row| row["bytes"].as_u64().unwrap()).collect();
    assert_eq!(bytes, [16 << 20, 32 << 20, 16 << 20, 32 << 20]);
    let text = lab.line("simulate cache loop.csv --policy lru,lirs --size 50%,100%").ok();
    let table: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("hit %")).collect();
    assert_eq!(table[0].split_whitespace().collect::<Vec<_>>()[2..], ["16", "MiB", "32", "MiB"]);
    assert_eq!(table[1].split_whitespace().collect::<Vec<_>>(), ["lru", "0.00", "91.67"]);
    let curve = lab.json("simulate curve loop.csv --size 25%");
    assert_eq!(curve["points"][0]["bytes"], 8 << 20);
    assert_eq!(lab.json("simulate tune loop.csv --memory 75%")[0]["bytes"], 24 << 20);
    assert_eq!(lab.line("simulate cache loop.csv --size 110%").code, 2);
    lab.line("simulate tune loop.csv --memory 10% --split").fails(2, &["in bytes"]);
}

#[test]
fn where_nothing_is_gained_nothing_is_recommended() {
    let lab = Lab::empty();
    let mut csv = String::from("op,offset,length\n");
    (0..4096).for_each(|at| writeln!(csv, "R,{},65536", at * 65_536).unwrap());
    lab.file("once.csv", csv.as_bytes());
    let tuned = lab.json("simulate tune once.csv --memory 64M");
    assert_eq!((&tuned[0]["policy"], &tuned[0]["saved"]), (&serde_json::Value::Null, &0.0.into()));
    assert_eq!(tuned[0]["config"], "[cache]\nsize = \"64 MiB\"\n");
    let text = lab.line("simulate tune once.csv --memory 64M").ok();
    assert!(text.contains("leave the policy as it is"), "{text}");
}

/// Reads and writes of two guests with disks of one image, hot at the beginning of it.
fn guests() -> String {
    let mut random = block::conformance::Sequence::new(5);
    let mut csv = String::from("time_us,client,op,offset,length\n");
    for at in 0..6000 {
        let part = (random.number() % 1000) as f64 / 1000.0;
        let offset = ((part * part * part * 48.0 * 1024.0 * 1024.0) as u64) / 4096 * 4096;
        let op = if random.number().is_multiple_of(10) { 'W' } else { 'R' };
        let length = [4096, 16_384, 65_536][(random.number() % 3) as usize];
        writeln!(csv, "{at},{},{op},{offset},{length}", at % 2).unwrap();
    }
    csv
}

#[test]
fn a_recording_tells_the_hits_that_its_server_had() {
    let lab = Lab::new();
    let config = "[cache]\nsize = \"8MiB\"\n[serve]\nread_ahead = 0\nboot_lists = false\n";
    std::fs::write(lab.home().join("sojourn.toml"), config).unwrap();
    let mut content = vec![0; 49 << 20];
    let mut random = block::conformance::Sequence::new(3);
    content.chunks_mut(8).for_each(|word| word.copy_from_slice(&random.number().to_le_bytes()));
    lab.file("golden.raw", &content);
    lab.line("image import golden.raw debian").ok();
    lab.line("disk create vm1 --from debian").ok();
    lab.line("disk create vm2 --from debian").ok();
    lab.file("guests.csv", guests().as_bytes());
    let server = lab.serve(&["--trace", "day.sjt"]);
    let uri = server.uri("vm{client}");
    lab.run(["replay", "guests.csv", &uri, "--allow-writes"]).ok();
    let cache = &lab.json("status")["cache"];
    let [hits, misses] = ["hits", "misses"].map(|field| cache[field].as_f64().unwrap());
    assert_eq!(server.stop(), 0);
    let live = hits / (hits + misses);
    let row = &lab.json("simulate cache day.sjt --policy duel --size 8M")["rows"][0];
    let simulated = row["hit_ratio"].as_f64().unwrap();
    let case = &lab.json("predict --profile transcom --trace day.sjt --memory 8M")["cases"][0];
    assert_eq!(case["cache_hit"].as_f64().unwrap(), simulated, "{case}");
    // Where the image was cut the trace does not tell.
    assert!((0.2..0.95).contains(&live), "{live} says nothing");
    assert!((live - simulated).abs() < 0.05, "the server hit {live}, and {simulated} is simulated");
    let disks = "simulate cache day.sjt --policy duel --size 8M --share disk --block 4K";
    assert!(lab.json(disks)["rows"][0]["hit_ratio"].as_f64().unwrap() < live);
}
