//! The configuration file. It is part of the program, not of a library: the target takes in its
//! source, with what it needs of its neighbours.
#![no_main]
#![allow(dead_code)]

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/sojourn/src/config.rs"]
mod config;

#[path = "../../crates/sojourn/src/place.rs"]
mod place;

#[path = "../../crates/sojourn/src/serve/throttle/rule.rs"]
mod rule;

mod home {
    use std::path::PathBuf;

    pub(crate) struct Home;

    impl Home {
        pub(crate) fn must_exist(&self) -> block::Result<()> {
            Ok(())
        }
        pub(crate) fn must_be_ours(&self) -> block::Result<()> {
            Ok(())
        }
        pub(crate) fn config(&self) -> PathBuf {
            PathBuf::from("sojourn.toml")
        }
    }
}

mod serve {
    pub(crate) mod disk_io {
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Deserialize)]
        #[serde(rename_all = "lowercase")]
        pub(crate) enum DiskIo {
            #[default]
            Portable,
            Ring,
        }
    }

    pub(crate) mod throttle {
        pub(crate) use crate::rule::Rule;
    }
}

mod logging {
    #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
    #[serde(rename_all = "lowercase")]
    pub(crate) enum LogFormat {
        Human,
        Json,
    }

    pub(crate) fn check_level(_: &str) -> block::Result<()> {
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    if let Ok(text) = std::str::from_utf8(data)
        && let Err(error) = config::Config::parse(text)
    {
        assert!(error.message().len() < 4096 + 2 * text.len());
    }
});
