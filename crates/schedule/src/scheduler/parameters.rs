//! Parameters of a scheduler, as text.

use crate::{Nanos, request::from_ms};
use block::{Error, Result};

/// A time that never comes.
pub(crate) const NEVER: Nanos = Nanos::MAX / 4;

/// Parameters that are taken one by one; what nobody took is an error.
#[derive(Clone, Debug)]
pub struct Parameters {
    scheduler: String,
    given: Vec<(String, String)>,
    known: Vec<&'static str>,
}

impl Parameters {
    /// Reads `name=value:name=value`.
    pub(crate) fn parse(scheduler: &str, text: &str) -> Result<Self> {
        let mut given = Vec::new();
        for part in text.split(':').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').ok_or_else(|| {
                Error::invalid(format!("{scheduler}: {part:?} is no parameter; write NAME=VALUE"))
            })?;
            given.push((name.to_owned(), value.to_owned()));
        }
        Ok(Self { scheduler: scheduler.to_owned(), given, known: Vec::new() })
    }

    fn take(&mut self, name: &'static str) -> Option<String> {
        self.known.push(name);
        let at = self.given.iter().position(|(given, _)| given == name)?;
        Some(self.given.swap_remove(at).1)
    }

    /// A number from `least` to `most`.
    pub(crate) fn number(
        &mut self,
        name: &'static str,
        default: f64,
        least: f64,
        most: f64,
    ) -> Result<f64> {
        let Some(text) = self.take(name) else { return Ok(default) };
        match text.parse::<f64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(number),
            _ => Err(Error::invalid(format!(
                "{}: {name} is {text:?}; give {least} to {most}",
                self.scheduler
            ))),
        }
    }

    /// A time in milliseconds, or `never`.
    pub(crate) fn time(&mut self, name: &'static str, default_ms: f64) -> Result<Nanos> {
        let at = self.given.iter().position(|(given, value)| given == name && value == "never");
        if let Some(at) = at {
            self.known.push(name);
            self.given.swap_remove(at);
            return Ok(NEVER);
        }
        Ok(from_ms(self.number(name, default_ms, 0.0, 1e9)?))
    }

    /// Whether something is on.
    pub(crate) fn switch(&mut self, name: &'static str, default: bool) -> Result<bool> {
        match self.take(name).as_deref() {
            None => Ok(default),
            Some("on") => Ok(true),
            Some("off") => Ok(false),
            Some(text) => {
                let scheduler = &self.scheduler;
                Err(Error::invalid(format!("{scheduler}: {name} is {text:?}; give on or off")))
            }
        }
    }

    /// Fails when something was given that nobody took.
    pub(crate) fn finish(self) -> Result<()> {
        let Some((name, _)) = self.given.first() else { return Ok(()) };
        let known = match self.known.is_empty() {
            true => "it has none".to_owned(),
            false => format!("it has {}", self.known.join(", ")),
        };
        Err(Error::invalid(format!("{}: no parameter {name:?}; {known}", self.scheduler)))
    }
}
