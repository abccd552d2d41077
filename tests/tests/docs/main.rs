//! Every console and shell block of README.md and docs/ runs as it stands: a page in one shell, with a home of its
//! own, so that later blocks build on earlier ones. Servers run beside what follows them. Ports, hosts and paths are
//! the test's own ([`scenes`]), and so are the images.
//!
//! What cannot run says why ([`page`]). Exit codes must be 0; what a page shows of the output must be printed, but for
//! numbers, times and sizes ([`words`]).

#![allow(clippy::disallowed_methods, reason = "real processes run in real time")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed step is a failed test")]
#![allow(clippy::print_stdout, reason = "it tells what is not run, and why")]

mod page;
mod scenes;
mod terminal;
mod words;

use page::{Block, Step};
use scenes::Scene;
use sojourn_tests::require;
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use terminal::{Done, Ready, Terminal};

/// No more blocks than these may be left out, or be run in part. Lower them when there are fewer; never raise them.
const NOT_RUN: usize = 27;
const RUN_IN_PART: usize = 14;

/// Commands that do not return, and by what they are known to be ready.
const SERVING: [(&str, Ready); 3] = [
    ("sojourn serve", Ready::Notified),
    ("sojourn trace record", Ready::Made("tap.sock")),
    ("curl -sN", Ready::Printed),
];

/// The top of the repository.
fn top() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The pages, by their paths from the top.
fn pages() -> Vec<String> {
    let docs = fs::read_dir(top().join("docs")).unwrap();
    let names = docs.filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let docs = names.filter(|name| name.ends_with(".md")).map(|name| format!("docs/{name}"));
    let mut pages: Vec<String> = docs.chain(["README.md".to_owned()]).collect();
    pages.sort();
    pages
}

fn blocks_of(page: &str) -> Vec<Block> {
    let text = fs::read_to_string(top().join(page)).unwrap();
    page::blocks(&text).unwrap_or_else(|error| panic!("{page}:{error}"))
}

/// Whether anything of the page is run.
fn is_run(page: &str) -> bool {
    let blocks = blocks_of(page).into_iter().filter(Block::has_commands);
    blocks.flat_map(|block| block.steps()).any(|step| step.left_out.is_none())
}

/// Runs a page; every fault is told before it panics.
fn run(scene: &Scene) {
    require!(
        "qemu-system-x86_64",
        "nbdinfo",
        "nbdcopy",
        "iscsi-ls",
        "jq",
        "curl",
        "zstd",
        "mke2fs"
    );
    let mut terminal = Terminal::new();
    let mut faults = Vec::new();
    for command in
        scenes::SETUP.lines().chain(scene.before.lines()).filter(|line| !line.trim().is_empty())
    {
        let command = terminal.with_free_ports(command.trim());
        if let Err(fault) = carry_out(&mut terminal, &command) {
            faults.push(format!("{}: before it, {command}\n{fault}", scene.page));
        }
    }
    let blocks = blocks_of(scene.page).into_iter().filter(Block::has_commands);
    let steps: Vec<Step> = blocks.flat_map(|block| block.steps()).collect();
    let steps: Vec<&Step> = steps.iter().filter(|step| step.left_out.is_none()).collect();
    for (command, _) in scene.between {
        if !steps.iter().any(|step| step.command.starts_with(command)) {
            faults.push(format!("{}: no command begins with {command}", scene.page));
        }
    }
    for step in steps {
        let at = format!("{}:{}", scene.page, step.line);
        if let Err(fault) = terminal.sit_at(&step.host) {
            faults.push(format!("{at}: {fault}"));
        }
        let between = scene.between.iter().filter(|(before, _)| step.command.starts_with(before));
        let between = between.flat_map(|(_, script)| script.lines());
        for command in between.filter(|line| !line.trim().is_empty()) {
            let command = terminal.with_free_ports(command.trim());
            if let Err(fault) = carry_out(&mut terminal, &command) {
                faults.push(format!("{at}: before it, {command}\n{fault}"));
            }
        }
        if let Err(fault) = try_step(&mut terminal, scene, step) {
            faults.push(format!("{at}: {}\n{fault}", step.command));
        }
    }
    for command in scene.after.lines().filter(|line| !line.trim().is_empty()) {
        if let Err(fault) = carry_out(&mut terminal, command) {
            faults.push(format!("{}: behind it, {command}\n{fault}", scene.page));
        }
    }
    if let Err(fault) = terminal.stop(None) {
        faults.push(format!("{}: {fault}", scene.page));
    }
    assert!(faults.is_empty(), "{}", faults.join("\n\n"));
}

/// Runs a command of the page, and looks for what the page shows of its output.
fn try_step(terminal: &mut Terminal, scene: &Scene, step: &Step) -> Result<(), String> {
    let command = scene.filled(&step.command, terminal);
    let done = carry_out(terminal, &command)?;
    let shown: Vec<String> = step.output.iter().map(|line| scene.filled(line, terminal)).collect();
    match words::missing(&shown, &done.printed) {
        None => Ok(()),
        Some(line) => Err(format!("does not print: {line}\nbut: {}", done.printed)),
    }
}

/// Carries a command out: `stop` ends what serves.
fn carry_out(terminal: &mut Terminal, command: &str) -> Result<Done, String> {
    if command == "stop" {
        return terminal.stop(None).map(|()| Done { code: 0, printed: String::new() });
    }
    let serving = SERVING.into_iter().find_map(|(what, ready)| {
        // Variables may stand before it.
        let (before, _) = command.split_once(what)?;
        let plain = before.split_whitespace().all(|word| word.contains('='));
        let returns = ["--run", "--single"].iter().any(|option| command.contains(option));
        (plain && !returns).then(|| (format!("{before}{what}"), ready))
    });
    let done = match serving {
        Some((what, ready)) => {
            let command =
                command.split(" #").next().unwrap_or_default().trim().trim_end_matches('&');
            terminal.serve(&what, command, ready)?
        }
        None => terminal.run(command)?,
    };
    match done.code {
        0 => Ok(done),
        code => Err(format!("exit code {code}\n{}", done.printed)),
    }
}

/// Each page that is run, as a test of its own.
macro_rules! pages {
    ($($name:ident $page:literal,)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(#[test]
        fn $name() {
            run(&Scene::of($page));
        })*
    };
}

pages! {
    readme "README.md",
    api "docs/api.md",
    attach "docs/attach.md",
    borrow "docs/borrow.md",
    cli "docs/cli.md",
    config "docs/config.md",
    dashboard "docs/dashboard.md",
    disk_lab "docs/disk-lab.md",
    disks "docs/disks.md",
    encryption "docs/encryption.md",
    gateway "docs/gateway.md",
    gc "docs/gc.md",
    images "docs/images.md",
    iscsi "docs/iscsi.md",
    media "docs/media.md",
    model "docs/model.md",
    nbd "docs/nbd.md",
    netboot "docs/netboot.md",
    replay "docs/replay.md",
    security "docs/security.md",
    serve "docs/serve.md",
    simulate "docs/simulate.md",
    stores "docs/stores.md",
    trace "docs/trace.md",
    vhost_user "docs/vhost-user.md",
    vm "docs/vm.md",
}

#[test]
fn every_page_with_commands_is_run() {
    let with_commands: Vec<String> = pages().into_iter().filter(|page| is_run(page)).collect();
    let mut run: Vec<&str> = PAGES.to_vec();
    run.sort_unstable();
    assert_eq!(with_commands, run);
}

#[test]
fn what_is_not_run_says_why() {
    let mut why = BTreeMap::<String, Vec<String>>::new();
    let (mut blocks, mut whole, mut in_part) = (0, 0, 0);
    for page in pages() {
        for block in blocks_of(&page) {
            let at = format!("{page}:{}", block.line);
            if !block.has_commands() {
                assert!(block.left_out.is_empty(), "{at}: there is nothing to run");
                continue;
            }
            blocks += 1;
            let steps = block.steps();
            let left_out = steps.iter().filter(|step| step.left_out.is_some()).count();
            assert_eq!(
                left_out == 0,
                block.left_out.is_empty(),
                "{at}: no command is on that line"
            );
            match left_out {
                0 => {}
                all if all == steps.len() => whole += 1,
                _ => in_part += 1,
            }
            for one in block.left_out {
                why.entry(one.why).or_default().push(at.clone());
            }
        }
    }
    println!("of {blocks} blocks {whole} are not run, and {in_part} in part:");
    for (why, blocks) in why {
        println!("  {why}: {}", blocks.join(", "));
    }
    assert!(whole <= NOT_RUN, "{whole} blocks are not run");
    assert!(in_part <= RUN_IN_PART, "{in_part} blocks are run in part");
}
