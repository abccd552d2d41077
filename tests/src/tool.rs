//! Programs of others that the tests drive.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The `PATH` of programs: where the [clients](crate::clients) of this thread are, then where Debian keeps programs, before
/// whatever else is on `PATH`: `nbdsh` needs the Python that the distribution's module was made for.
pub fn path() -> String {
    let first = crate::clients::current().directory();
    let first = first.map_or(String::new(), |first| format!("{}:", first.display()));
    format!("{first}/usr/bin:/bin:/usr/sbin:/sbin:{}", std::env::var("PATH").unwrap_or_default())
}

/// Whether all of `names` are there. If not, a message says which test is skipped for want of
/// what; in CI (with the variable `CI` set) that is a failure instead.
pub fn have(test: &str, names: &[&str]) -> bool {
    let path = path();
    let missing: Vec<&&str> = names
        .iter()
        .filter(|name| !std::env::split_paths(&path).any(|dir| dir.join(name).is_file()))
        .collect();
    if missing.is_empty() {
        return true;
    }
    skip(test, &format!("{missing:?} not installed"));
    false
}

/// Says that `test` is skipped; fails it in CI.
pub fn skip(test: &str, why: &str) {
    assert!(std::env::var_os("CI").is_none(), "{test} must not be skipped in CI: {why}");
    eprintln!("skipped: {test}: {why}");
}

/// Leaves the test unless all the named programs are installed: `require!("qemu-img", "nbdcopy")`.
#[macro_export]
macro_rules! require {
    ($($name:literal),+ $(,)?) => {
        let here = concat!(module_path!(), ":", line!());
        if !$crate::tool::have(here, &[$($name),+]) {
            return;
        }
    };
}

/// Writes a script that can be run. By another process: a file that this one writes is held open by whatever another
/// test starts meanwhile, until that runs its program, and cannot be run then.
pub fn executable(path: &Path, script: &str) {
    let write = "printf %s \"$1\" > \"$0\" && chmod 755 \"$0\"";
    let wrote = Command::new("sh").args(["-c", write]).arg(path).arg(script).status();
    assert!(wrote.expect("sh").success(), "{}", path.display());
}

/// The `sojourn` binary that was built with these tests, `target/PROFILE/sojourn`, or the one
/// that the variable `SOJOURN_BINARY` names: an installed one, say.
pub fn sojourn() -> PathBuf {
    if let Some(path) = std::env::var_os("SOJOURN_BINARY") {
        return path.into();
    }
    let test = std::env::current_exe().expect("own path");
    // target/PROFILE/deps/TEST
    let path = test.ancestors().nth(2).expect("target directory").join("sojourn");
    assert!(
        path.is_file(),
        "{} is missing; run `cargo test --workspace`, or `cargo build -p sojourn` first",
        path.display()
    );
    path
}

/// Runs a shell script with the variables `env`; ten minutes are its limit. Gives what it printed.
pub fn shell(dir: &Path, env: &[(&str, &str)], script: &str) -> String {
    let output = try_shell(dir, env, script);
    let (out, err) = texts(&output);
    assert!(
        output.status.success(),
        "{}\n{script}\n--- stdout\n{out}\n--- stderr\n{err}",
        output.status
    );
    out
}

/// The same, of a script that may fail, as it does without a network: then what it printed on both. It finds
/// the same programs as every other script.
///
/// # Errors
/// What the script printed.
pub fn attempt(dir: &Path, env: &[(&str, &str)], script: &str) -> Result<String, String> {
    let output = try_shell(dir, env, script);
    let (out, err) = texts(&output);
    if output.status.success() { Ok(out) } else { Err(out + &err) }
}

/// The same, of a script that prints JSON.
pub fn shell_json(dir: &Path, env: &[(&str, &str)], script: &str) -> serde_json::Value {
    let out = shell(dir, env, script);
    serde_json::from_str(&out).unwrap_or_else(|error| panic!("{script}\n{error}\n{out}"))
}

/// The same, of a script that must fail. Gives what it printed on both.
pub fn shell_fails(dir: &Path, env: &[(&str, &str)], script: &str) -> String {
    let output = try_shell(dir, env, script);
    let (out, err) = texts(&output);
    let timed_out = matches!(output.status.code(), Some(124 | 137));
    assert!(!output.status.success() && !timed_out, "{}\n{script}\n{out}{err}", output.status);
    out + &err
}

fn try_shell(dir: &Path, env: &[(&str, &str)], script: &str) -> Output {
    Command::new("timeout")
        .args(["-k", "5", "600", "bash", "-euo", "pipefail", "-c", script])
        .current_dir(dir)
        .env("PATH", path())
        .env("LC_ALL", "C")
        .envs(env.iter().copied())
        .output()
        .expect("timeout and bash")
}

/// Standard output and standard error as text.
pub fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}
