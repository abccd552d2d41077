//! What a check found.

use serde::Serialize;

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// Nothing is to be done.
    Ok,
    /// It could be better.
    Advice,
    /// Something fails, or soon will.
    Trouble,
    /// Data is lost, or others get it.
    Danger,
}

impl Level {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Advice => "advice",
            Self::Trouble => "trouble",
            Self::Danger => "danger",
        }
    }
}

/// What was found, why it matters, and what to do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Finding {
    pub(super) level: Level,
    pub(super) what: String,
    /// Null when it is ok.
    pub(super) why: Option<String>,
    /// Null when it is ok.
    pub(super) remedy: Option<String>,
}

impl Finding {
    /// What is as it should be.
    pub(super) fn ok(what: impl Into<String>) -> Self {
        Self { level: Level::Ok, what: what.into(), why: None, remedy: None }
    }

    /// What could be better.
    pub(super) fn advice(
        what: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::bad(Level::Advice, what, why, remedy)
    }

    /// What fails, or soon will.
    pub(super) fn trouble(
        what: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::bad(Level::Trouble, what, why, remedy)
    }

    /// What loses data, or gives it to others.
    pub(super) fn danger(
        what: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::bad(Level::Danger, what, why, remedy)
    }

    fn bad(
        level: Level,
        what: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self { level, what: what.into(), why: Some(why.into()), remedy: Some(remedy.into()) }
    }
}
