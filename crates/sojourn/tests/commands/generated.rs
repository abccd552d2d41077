//! What the program says of itself: help, completions, manual pages.

use crate::common::{BINARY, Lab};
use std::io::Read;
use std::process::{Command, Stdio};

#[test]
fn completions_know_the_verbs() {
    for shell in ["bash", "zsh", "fish"] {
        let script = Lab::empty().run(["completions", shell]).ok();
        assert!(script.contains("rollback") && script.contains("sojourn"), "{shell}");
    }
}

#[test]
fn manual_pages_exist_for_every_verb() {
    let lab = Lab::empty();
    lab.line("man man1").ok();
    for page in ["sojourn.1", "sojourn-serve.1", "sojourn-image-import.1", "sojourn-disk-rebase.1"]
    {
        let text = std::fs::read_to_string(lab.path("man1").join(page)).unwrap();
        assert!(text.contains(".TH") && text.contains("sojourn"), "{page}");
    }
}

#[test]
fn manual_pages_name_files_exit_codes_and_other_pages() {
    let lab = Lab::empty();
    lab.line("man man1").ok();
    let page = |name: &str| std::fs::read_to_string(lab.path("man1").join(name)).unwrap();
    let text = page("sojourn-disk-rebase.1");
    for section in ["SYNOPSIS", "EXAMPLES", "EXIT STATUS", "FILES", "SEE ALSO"] {
        assert!(
            text.contains(&format!(".SH \"{section}\""))
                || text.contains(&format!(".SH {section}")),
            "{section}"
        );
    }
    for other in ["sojourn\\-disk\\fR(1)", "sojourn\\-disk\\-grow\\fR(1)", "sojourn.toml\\fR(5)"] {
        assert!(text.contains(other), "{other}: {text}");
    }
    assert!(page("sojourn.toml.5").contains("cache.size"));
    assert!(!lab.path("man1/sojourn-__complete.1").exists(), "a hidden command");
}

#[test]
fn names_of_the_home_are_completed() {
    let (lab, _) = Lab::with_image();
    for name in ["alice", "bob2", "bob10"] {
        lab.line(&format!("disk create {name} --from debian")).ok();
    }
    let names = |words: &str| {
        let words = ["__complete", "--"].into_iter().chain(words.split(' '));
        lab.run(words).ok()
    };
    assert_eq!(names("disk show "), "alice\nbob2\nbob10\n");
    assert_eq!(names("disk show bo"), "bob2\nbob10\n");
    assert_eq!(names("disk create carol --from deb"), "debian\ndebian:1\n");
    assert_eq!(names("disk create "), "");
    assert_eq!(names("serve --nbd "), "");
    assert_eq!(Lab::empty().run(["__complete", "--", "disk", "show", ""]).ok(), "");
}

#[test]
fn bash_completes_names_behind_a_colon() {
    let (lab, _) = Lab::with_image();
    let script = lab.line("completions bash").ok();
    std::fs::write(lab.path("completions"), script).unwrap();
    let type_in = |line: &str| {
        let test = format!(
            "source completions; sojourn() {{ {BINARY:?} --home {:?} \"$@\"; }}; COMP_LINE={line:?}; \
             COMP_POINT=${{#COMP_LINE}}; _sojourn_names sojourn \"${{COMP_LINE##*[ :@]}}\"; echo \"${{COMPREPLY[*]}}\"",
            lab.home()
        );
        let output =
            Command::new("bash").args(["-c", &test]).current_dir(lab.path("")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    assert_eq!(type_in("sojourn image show deb"), "debian debian:1");
    assert_eq!(type_in("sojourn image show debian:"), "1");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child =
        Command::new(BINARY).args(["completions", "zsh"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut one = [0; 1];
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut one).unwrap();
    drop(stdout);
    assert!(child.wait().unwrap().success());
}

#[test]
fn without_a_home_the_remedy_is_named() {
    let lab = Lab::empty();
    for line in ["image list", "disk list", "status", "serve"] {
        lab.line(line).fails(3, &["init", "home"]);
    }
    assert!(!lab.home().exists(), "a failed command made a home");
}

#[test]
fn a_home_is_made_once() {
    let lab = Lab::empty();
    assert!(lab.line("init").ok().contains("ready"));
    lab.line("init").fails(4, &["sojourn.toml", "--home"]);
}

#[test]
fn a_store_that_this_build_cannot_open_makes_no_home() {
    let lab = Lab::empty();
    lab.line("init --store ftp://host/store").fails(10, &["ftp://host/store"]);
    assert!(!lab.home().exists());
}

#[test]
fn a_store_can_be_shared_by_two_homes() {
    let lab = Lab::empty();
    let first = lab.json("init --store shared");
    assert_eq!(first["new_store"], true);
    let second = Lab::empty();
    let store = lab.path("shared");
    let again =
        second.run(["--json".as_ref(), "init".as_ref(), "--store".as_ref(), store.as_os_str()]);
    assert_eq!(again.json()["new_store"], false);
    lab.file("a.raw", &crate::common::content(crate::common::MIB, 1));
    lab.line("image import a.raw a").ok();
    assert_eq!(second.json("image list")[0]["image"], "a:1");
}
