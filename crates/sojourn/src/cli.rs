//! The command line as a whole; [`commands`](crate::commands) has the table of commands.

use crate::commands::Command;
use crate::global::Global;
use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Streams machines' disks from golden images: every machine gets its own private disk, over NBD.
#[derive(Debug, Parser)]
#[command(name = "sojourn", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "\
Examples:
  sojourn init
  sojourn image import golden.qcow2 debian
  sojourn disk create alice --from debian
  sojourn serve
  sojourn status

Exit codes: 0 done, 1 internal fault, 2 invalid input, 3 not found, 4 conflict, 5 fenced,
6 unavailable, 7 corrupt, 8 no space, 9 denied, 10 unsupported.")]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What other tools call our commands.
const ELSEWHERE: [(&str, &str); 8] = [
    ("stop", "drain"),
    ("shutdown", "drain"),
    ("start", "serve"),
    ("mount", "attach"),
    ("import", "image import"),
    ("create", "disk create"),
    ("list", "disk list"),
    ("ls", "disk list"),
];

/// The error for a command that is not there, with what it is called here.
pub(crate) fn suggest(mut error: clap::Error) -> clap::Error {
    let ours = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(asked)) if error.kind() == ErrorKind::InvalidSubcommand => {
            ELSEWHERE.iter().find(|(theirs, _)| theirs == asked).map(|(_, ours)| *ours)
        }
        _ => None,
    };
    // A verb of another noun has suggestions of its own.
    let of_all = matches!(error.get(ContextKind::Usage), Some(ContextValue::StyledStr(usage))
        if usage.to_string().contains("sojourn [OPTIONS] <COMMAND>"));
    if let Some(ours) = ours.filter(|_| of_all) {
        let suggestion = ContextValue::Strings(vec![ours.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, suggestion);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn commands_of_other_tools_are_told_by_their_name_here() {
        let said = |words: &[&str]| {
            let words = ["sojourn"].iter().chain(words);
            suggest(Cli::try_parse_from(words).unwrap_err()).to_string()
        };
        assert!(said(&["stop"]).contains("'drain'"), "{}", said(&["stop"]));
        assert!(said(&["list"]).contains("'disk list'"), "{}", said(&["list"]));
        assert!(said(&["dsk"]).contains("'disk'"), "{}", said(&["dsk"]));
        assert!(!said(&["image", "stop"]).contains("drain"), "{}", said(&["image", "stop"]));
        for (_, ours) in ELSEWHERE {
            let words: Vec<&str> = ours.split(' ').chain(["--help"]).collect();
            let help = Cli::try_parse_from(["sojourn"].iter().chain(&words)).unwrap_err();
            assert_eq!(help.kind(), ErrorKind::DisplayHelp, "{ours}");
        }
    }

    #[test]
    fn every_verb_has_help_with_an_example() {
        fn check(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} says nothing of itself");
            if command.has_subcommands() {
                command.get_subcommands().for_each(|c| check(c, &path));
            } else {
                let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(help.contains("sojourn "), "{path} has no example");
                let wide = help.lines().find(|line| line.len() > 100);
                assert_eq!(wide, None, "{path}: it would be broken where nobody can paste it");
            }
        }
        let mut program = Cli::command().disable_help_subcommand(true);
        let abouts = |program: &clap::Command| -> Vec<String> {
            let about = |command: &clap::Command| command.get_about().map(ToString::to_string);
            program.get_subcommands().filter_map(about).collect()
        };
        let table = abouts(&program);
        program.build();
        assert_eq!(abouts(&program), table, "arguments with a doc comment say that instead");
        check(&program, "");
    }
}
