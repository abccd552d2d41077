//! The manual page of a command: what its help says, and the files, exit codes and other pages that belong to it.

use super::{roff, tables};
use block::{Error, Result};
use clap::Command;
use clap_mangen::Man;

/// The files of a home.
pub(super) const FILES: [(&str, &str); 9] = [
    (
        "/var/lib/sojourn, ~/.local/share/sojourn",
        "The home of root, and of other users, unless --home or SOJOURN_HOME names another one.",
    ),
    ("sojourn.toml", "In the home: the configuration, sojourn.toml(5)."),
    ("store/", "In the home: images, unless the configuration names another place."),
    ("disks/", "In the home: a directory for each private disk."),
    ("machines/", "In the home: a directory for each virtual machine."),
    ("tls/", "In the home: certificates and keys, made by sojourn cert."),
    ("nbd.sock", "In the home: where the server listens for NBD unless told otherwise."),
    ("control.sock", "In the home: by which commands talk to the server."),
    ("lock", "In the home: held by the server, with its process id."),
];

/// The name of a command's page.
pub(super) fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// Its text; `above` is the command that it is a verb of.
///
/// # Errors
/// [`Internal`](block::ErrorKind::Internal) when the help cannot be written as a page.
pub(super) fn text(command: &Command, above: Option<&Command>) -> Result<String> {
    let man = Man::new(command.clone());
    let mut bytes = Vec::new();
    let failed = |e| Error::internal("a manual page cannot be written").with_source(e);
    man.render_title(&mut bytes).map_err(failed)?;
    man.render_name_section(&mut bytes).map_err(failed)?;
    man.render_synopsis_section(&mut bytes).map_err(failed)?;
    man.render_description_section(&mut bytes).map_err(failed)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut bytes).map_err(failed)?;
    }
    if command.get_subcommands().any(|verb| !verb.is_hide_set()) {
        man.render_subcommands_section(&mut bytes).map_err(failed)?;
    }
    let mut page = String::from_utf8(bytes)
        .map_err(|e| Error::internal("a manual page is no text").with_source(e))?;
    examples(&mut page, command);
    roff::section(&mut page, "EXIT STATUS");
    for (code, meaning) in tables::exit_codes() {
        roff::term(&mut page, &code, &meaning);
    }
    roff::section(&mut page, "FILES");
    files(&mut page);
    roff::section(&mut page, "SEE ALSO");
    let others = above.into_iter().flat_map(|above| above.get_subcommands().chain([above]));
    let below = command.get_subcommands();
    let mut pages: Vec<(&str, u8)> = others
        .chain(below)
        .filter(|other| !other.is_hide_set() && name(other) != name(command))
        .map(|other| (name(other), 1))
        .collect();
    // Of the commands of the top all would be named on each page.
    if above.is_some_and(|above| above.get_name() == "sojourn") {
        let own = |name: &&str| command.get_subcommands().any(|verb| self::name(verb) == *name);
        pages.retain(|(name, _)| *name == "sojourn" || own(name));
    }
    pages.push(("sojourn.toml", 5));
    pages.sort_unstable();
    roff::pages(&mut page, pages.into_iter());
    Ok(page)
}

/// The examples, and what follows them, as they are written: they are aligned.
fn examples(page: &mut String, command: &Command) {
    let Some(help) = command.get_after_help() else { return };
    roff::section(page, "EXAMPLES");
    let help = help.to_string();
    let text = help.strip_prefix("Examples:\n").unwrap_or(&help);
    page.push_str(&format!(".nf\n{}\n.fi\n", roff::escaped(text)));
}

/// The files of a home.
pub(super) fn files(page: &mut String) {
    for (path, what) in FILES {
        roff::term(page, path, what);
    }
}
