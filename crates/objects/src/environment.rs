//! The environment that credentials are looked for in, passed in so that tests have their own.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Environment variables that are text.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// That of this process.
    pub fn system() -> Self {
        let text = |(key, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((key.into_string().ok()?, value.into_string().ok()?))
        };
        Self(std::env::vars_os().filter_map(text).collect())
    }

    /// These and no others.
    pub fn of(variables: &[(&str, &str)]) -> Self {
        Self(variables.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    /// A variable that is set and not empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The variables whose names begin so and that are not empty.
    pub(crate) fn with_prefix<'a>(
        &'a self,
        prefix: &'a str,
    ) -> impl Iterator<Item = (&'a str, &'a str)> {
        let all =
            self.0.iter().filter(move |(key, value)| key.starts_with(prefix) && !value.is_empty());
        all.map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// A file that a variable names, else one below the home directory.
    pub(crate) fn file(&self, variable: &str, below_home: &str) -> Option<PathBuf> {
        match self.get(variable) {
            Some(path) => Some(path.into()),
            None => Some(PathBuf::from(self.get("HOME")?).join(below_home)),
        }
    }
}

// Variables hold secrets.
impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Environment({} variables)", self.0.len())
    }
}
