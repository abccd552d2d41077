//! What kind of name the last word of a command line is, by the arguments of its command.

use clap::{Arg, Command};

/// What names are of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameKind {
    /// Images and their versions.
    Image,
    /// Private disks.
    Disk,
    /// Image versions, and disks.
    ImageOrDisk,
    /// Virtual machines.
    Machine,
}

/// A name that is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CompletedName {
    pub(super) kind: NameKind,
    /// The home that the line names.
    pub(super) home: Option<String>,
}

/// What the last of these words is, which are behind the program's name; none when it is no name of ours.
pub(super) fn at_end(program: &Command, words: &[String]) -> Option<CompletedName> {
    let (begun, before) = words.split_last()?;
    let mut command = program;
    let mut path: Vec<&str> = Vec::new();
    let mut positional = 0;
    let mut home = None;
    // The option whose value the next word is.
    let mut option: Option<&Arg> = None;
    for word in before {
        if let Some(of) = option.take() {
            if of.get_id() == "home" {
                home = Some(word.clone());
            }
            continue;
        }
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            let found = command.get_arguments().find(|arg| arg.get_long() == Some(name));
            match value {
                Some(value) if name == "home" => home = Some(value.to_owned()),
                Some(_) => {}
                None => option = found.filter(|arg| arg.get_action().takes_values()),
            }
        } else if word.starts_with('-') && word.len() > 1 {
            let short = word.chars().last();
            let found = command
                .get_arguments()
                .find(|arg| arg.get_short().is_some() && arg.get_short() == short);
            option = found.filter(|arg| arg.get_action().takes_values());
        } else if let Some(verb) = command.find_subcommand(word) {
            path.push(verb.get_name());
            command = verb;
        } else {
            positional += 1;
        }
    }
    let argument = match option {
        Some(option) => option,
        None if begun.starts_with('-') => return None,
        None => {
            let all: Vec<&Arg> = command.get_positionals().collect();
            let last = all.last().copied();
            // The last one may take any number.
            let many =
                last.filter(|arg| arg.get_num_args().is_some_and(|count| count.max_values() > 1));
            all.get(positional).copied().or(many)?
        }
    };
    kind(&path, argument).map(|kind| CompletedName { kind, home })
}

/// What names an argument takes; none for the name of something new, and of something else.
fn kind(path: &[&str], argument: &Arg) -> Option<NameKind> {
    let id = argument.get_id().as_str();
    if matches!(
        (path, id),
        (["disk", "create"], "names")
            | (["vm", "create"], "name")
            | (["vm", "clone"], "new" | "disk")
    ) {
        return None;
    }
    let value =
        argument.get_value_names().and_then(|names| names.first()).map(|name| name.as_str());
    let of_value = match value {
        Some("IMAGE" | "FILE|IMAGE") => Some(NameKind::Image),
        Some("DISK") => Some(NameKind::Disk),
        Some("IMAGE|DISK@SNAP") => Some(NameKind::ImageOrDisk),
        _ => None,
    };
    if of_value.is_some() {
        return of_value;
    }
    match (path, id) {
        (["disk", ..], "name") => Some(NameKind::Disk),
        (["disk", ..] | ["image", ..], "image") => Some(NameKind::Image),
        (["image", ..], "name") => Some(NameKind::Image),
        (["vm", ..], "name" | "parcel") => Some(NameKind::Machine),
        (["attach", ..] | ["detach"], "disk") | (["vm", ..], "disk") => Some(NameKind::Disk),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    #[test]
    fn words_are_known_by_their_place() {
        let mut program = Cli::command();
        program.build();
        let kind_of = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            at_end(&program, &words).map(|wanted| wanted.kind)
        };
        for (line, kind) in [
            ("disk show ", Some(NameKind::Disk)),
            ("disk show al", Some(NameKind::Disk)),
            ("--json disk rollback al", Some(NameKind::Disk)),
            ("disk rebase alice ", Some(NameKind::Image)),
            ("disk create new --from de", Some(NameKind::Image)),
            ("disk create ", None),
            ("disk sh", None),
            ("disk show --", None),
            ("image show ", Some(NameKind::Image)),
            ("image import ", None),
            ("vm start ", Some(NameKind::Machine)),
            ("vm create ", None),
            ("vm create new --disk ", Some(NameKind::Disk)),
            ("verify debian:1 al", Some(NameKind::ImageOrDisk)),
            ("serve --nbd ", None),
            ("", None),
        ] {
            assert_eq!(kind_of(line), kind, "{line:?}");
        }
    }

    #[test]
    fn the_home_of_the_line_counts() {
        let mut program = Cli::command();
        program.build();
        for line in ["--home /srv/lab disk show ", "--home=/srv/lab disk show "] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            assert_eq!(at_end(&program, &words).unwrap().home.as_deref(), Some("/srv/lab"));
        }
    }
}
