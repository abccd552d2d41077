//! sojourn.toml(5): what docs/config.md says, as a manual page.

use super::{roff, tables};

const HEADER: &str = "| key | default | meaning | changes by SIGHUP |";

/// The page.
pub(super) fn text() -> String {
    let version = env!("CARGO_PKG_VERSION");
    let mut page = format!(".TH sojourn.toml 5 \"\" \"sojourn {version}\"\n");
    roff::section(&mut page, "NAME");
    page.push_str("sojourn.toml \\- the configuration of Sojourn\n");
    roff::section(&mut page, "DESCRIPTION");
    for part in paragraphs() {
        roff::paragraph(&mut page, &part);
    }
    roff::section(&mut page, "KEYS");
    for row in tables::rows(tables::CONFIGURATION, HEADER) {
        let [key, default, meaning, changes] = row.as_slice() else { continue };
        let changes = match changes.as_str() {
            "yes" => "Changes by SIGHUP.".to_owned(),
            "no" => "Changes by a restart.".to_owned(),
            other => format!("Changes by SIGHUP: {other}."),
        };
        roff::term(&mut page, key, &format!("{meaning}.\nDefault: {default}. {changes}"));
    }
    roff::section(&mut page, "EXAMPLES");
    let example = tables::CONFIGURATION.split("```toml\n").nth(1);
    let example = example.and_then(|rest| rest.split("```").next()).unwrap_or_default();
    page.push_str(&format!(".nf\n{}\n.fi\n", roff::escaped(example)));
    roff::section(&mut page, "FILES");
    super::page::files(&mut page);
    roff::section(&mut page, "SEE ALSO");
    let pages =
        [("sojourn", 1), ("sojourn-config-check", 1), ("sojourn-reload", 1), ("sojourn-serve", 1)];
    roff::pages(&mut page, pages.into_iter());
    page
}

/// What stands before and behind the table, without headings and blocks.
fn paragraphs() -> Vec<String> {
    let page = tables::CONFIGURATION.split("## Example").next().unwrap_or_default();
    let parts = page
        .split("\n\n")
        .filter(|part| !part.starts_with(['#', '|', '<']) && !part.starts_with("```"));
    parts.map(|part| tables::unmarked(part.trim())).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_on_the_page() {
        let page = text();
        let rows = tables::rows(tables::CONFIGURATION, HEADER);
        assert!(rows.len() > 50, "{}", rows.len());
        assert!(rows.iter().all(|row| row.len() == 4), "a row has another number of cells");
        assert_eq!(page.matches("\n.TP\n").count(), rows.len() + super::super::page::FILES.len());
        assert!(page.contains("\\fBcache.size\\fR\nmemory for chunks"), "{page}");
        assert!(!page.contains("](") && !page.contains('`'), "markup is left");
    }
}
