//! S3 and what speaks its language: `s3://BUCKET/PREFIX`.
//!
//! Credentials and settings come from where every tool looks for them: `AWS_*` in the
//! environment, then the profile (`AWS_PROFILE`, else `default`) in `~/.aws/credentials` and
//! `~/.aws/config`, then the roles that machines and containers have.

use super::super::attempts::once;
use super::{Environment, RemoteKind, client_options, no_layer};
use block::{Error, Result};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// The longest file that is read, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// What a profile may say, and the variable that says the same.
const KEYS: [(&str, &str, AmazonS3ConfigKey); 5] = [
    ("aws_access_key_id", "AWS_ACCESS_KEY_ID", AmazonS3ConfigKey::AccessKeyId),
    ("aws_secret_access_key", "AWS_SECRET_ACCESS_KEY", AmazonS3ConfigKey::SecretAccessKey),
    ("aws_session_token", "AWS_SESSION_TOKEN", AmazonS3ConfigKey::Token),
    ("region", "AWS_REGION", AmazonS3ConfigKey::Region),
    ("endpoint_url", "AWS_ENDPOINT_URL", AmazonS3ConfigKey::Endpoint),
];

pub(super) const KIND: RemoteKind = RemoteKind {
    schemes: &["s3", "s3a"],
    has_buckets: true,
    open: |url, environment| {
        let builder = builder(environment)?.with_bucket_name(url.bucket).with_retry(once());
        Ok(Arc::new(builder.build().map_err(|e| url.refused(e))?))
    },
    layer: no_layer,
};

/// A builder that lacks nothing but the bucket.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) for a profile that was asked for and is in no file.
fn builder(environment: &Environment) -> Result<AmazonS3Builder> {
    let mut builder = AmazonS3Builder::new().with_client_options(client_options());
    for (key, value) in environment.with_prefix("AWS_") {
        if let Ok(key) = key.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    let profile = profile(environment)?;
    // Keys in the environment are not mixed with those of a profile.
    let keyed = environment.get("AWS_ACCESS_KEY_ID").is_some();
    let mut endpoint =
        environment.get("AWS_ENDPOINT_URL_S3").or(environment.get("AWS_ENDPOINT_URL"));
    for (name, variable, key) in KEYS {
        let Some(value) = profile.get(name) else { continue };
        let secret = !matches!(key, AmazonS3ConfigKey::Region | AmazonS3ConfigKey::Endpoint);
        let region = environment.get("AWS_DEFAULT_REGION").is_some();
        let said = match key {
            AmazonS3ConfigKey::Region => region || environment.get(variable).is_some(),
            AmazonS3ConfigKey::Endpoint => endpoint.is_some(),
            _ => keyed,
        };
        if said || (secret && keyed) {
            continue;
        }
        if key == AmazonS3ConfigKey::Endpoint {
            endpoint = Some(value);
        }
        builder = builder.with_config(key, value);
    }
    if let Some(endpoint) = endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    Ok(builder)
}

/// What the profile says; empty when there is none and none was asked for.
fn profile(environment: &Environment) -> Result<BTreeMap<String, String>> {
    let asked = environment.get("AWS_PROFILE");
    let name = asked.unwrap_or("default");
    let mut values = BTreeMap::new();
    let mut found = false;
    let files = [
        (environment.file("AWS_CONFIG_FILE", ".aws/config"), format!("profile {name}")),
        (environment.file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials"), name.to_owned()),
    ];
    for (path, section) in files {
        let Some(path) = path else { continue };
        for section in [section.as_str(), name] {
            if let Some(more) = read(&path).and_then(|text| section_of(&text, section)) {
                found = true;
                values.extend(more);
                break;
            }
        }
    }
    match asked {
        Some(name) if !found => Err(Error::not_found(format!(
            "AWS_PROFILE is {name:?}, but ~/.aws/credentials and ~/.aws/config have no such \
             profile; correct it, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ))),
        _ => Ok(values),
    }
}

fn read(path: &Path) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MAX_FILE).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The values of a section of an INI file; `None` when there is no such section.
fn section_of(text: &str, section: &str) -> Option<BTreeMap<String, String>> {
    let mut values = None;
    let mut inside = false;
    for line in text.lines() {
        let line = line.trim();
        if let Some(title) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            inside = title.trim() == section;
            if inside {
                values.get_or_insert_with(BTreeMap::new);
            }
        } else if let Some((key, value)) = line.split_once('=')
            && inside
            && !line.starts_with(['#', ';'])
            && let Some(values) = &mut values
        {
            values.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "
# a comment
[default]
aws_access_key_id = DEFAULT
aws_secret_access_key = first

[lab]
aws_access_key_id=LAB
aws_secret_access_key = with = signs
";
    const CONFIG: &str = "
[default]
region = eu-west-1
[profile lab]
region = eu-central-1
endpoint_url = http://127.0.0.1:7070
";

    fn said(variables: &[(&str, &str)]) -> Vec<Option<String>> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(".aws")).unwrap();
        std::fs::write(dir.path().join(".aws/credentials"), CREDENTIALS).unwrap();
        std::fs::write(dir.path().join(".aws/config"), CONFIG).unwrap();
        let mut all = variables.to_vec();
        let home = dir.path().to_str().unwrap().to_owned();
        all.push(("HOME", &home));
        let builder = builder(&Environment::of(&all)).unwrap();
        KEYS.iter().map(|(.., key)| builder.get_config_value(key)).collect()
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn the_default_profile_is_used_when_nothing_is_said() {
        assert_eq!(said(&[]), [some("DEFAULT"), some("first"), None, some("eu-west-1"), None]);
    }

    #[test]
    fn a_named_profile_has_its_own_keys_region_and_endpoint() {
        let expected = [
            some("LAB"),
            some("with = signs"),
            None,
            some("eu-central-1"),
            some("http://127.0.0.1:7070"),
        ];
        assert_eq!(said(&[("AWS_PROFILE", "lab")]), expected);
    }

    #[test]
    fn the_environment_comes_first_and_keys_are_not_mixed() {
        let found = said(&[
            ("AWS_ACCESS_KEY_ID", "ENV"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "us-west-2"),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:1"),
            ("AWS_PROFILE", "lab"),
        ]);
        let expected =
            [some("ENV"), some("secret"), None, some("us-west-2"), some("http://127.0.0.1:1")];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_profile_that_does_not_exist_is_named() {
        let error = builder(&Environment::of(&[("AWS_PROFILE", "nobody")])).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::NotFound);
        assert!(error.message().contains("nobody"));
    }
}
