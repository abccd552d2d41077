//! What a ref keeps in the store, beside the manifest that it points at.

use crate::{ManifestId, RefBody};
use block::Result;

impl RefBody {
    /// The label of a disk that names the manifest of the image version that it is reset to.
    pub const ORIGIN: &str = "origin";
    /// The label of a disk that names more manifests which it may need, separated by spaces.
    pub const ALSO: &str = "also";

    /// Every manifest that is kept because of this ref, that of a boot copy among them.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when a label that should name manifests does not: then
    /// nobody can tell what may be removed.
    pub fn roots(&self) -> Result<Vec<ManifestId>> {
        let labels = [Self::ORIGIN, Self::ALSO].into_iter();
        let named =
            labels.filter_map(|label| self.labels.get(label)).flat_map(|ids| ids.split(' '));
        let mut roots: Vec<ManifestId> = self.manifest.into_iter().collect();
        for id in named {
            roots.push(id.parse()?);
        }
        roots.extend(self.boot_copy()?);
        Ok(roots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn body(labels: &[(&str, String)]) -> RefBody {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), value.clone()));
        RefBody {
            manifest: Some(ManifestId([1; 32])),
            size: 512,
            created: 0,
            labels: labels.collect::<BTreeMap<_, _>>(),
        }
    }

    #[test]
    fn everything_that_a_disk_may_return_to_is_kept() {
        let id = |n: u8| ManifestId([n; 32]);
        let found = body(&[
            ("image", "debian:1".into()),
            (RefBody::ORIGIN, id(2).to_string()),
            (RefBody::ALSO, format!("{} {}", id(3), id(4))),
        ]);
        assert_eq!(found.roots().unwrap(), [1, 2, 3, 4].map(id));
        assert_eq!(body(&[]).roots().unwrap(), [id(1)]);
        let copied = body(&[(RefBody::BOOT_COPY, id(5).to_string())]);
        assert_eq!(copied.roots().unwrap(), [1, 5].map(id), "and what its boots are read from");
        let two = body(&[(RefBody::BOOT_COPY, format!("{} {}", id(5), id(6)))]);
        assert!(two.roots().is_err() && two.boot_copy().is_err(), "there is one at most");
    }

    #[test]
    fn a_label_that_names_no_manifest_stops_whoever_wants_to_collect() {
        assert!(body(&[(RefBody::ALSO, "debian".into())]).roots().is_err());
    }
}
