//! Media that a server on another machine has among its sources.

use super::{PATH, RemoteServer, encoded};
use crate::media_verbs::MediaRequest;
use block::Result;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

/// What a medium holds, as the server sends it.
#[derive(Deserialize)]
struct MediumView<T> {
    holds: Vec<T>,
}

impl RemoteServer {
    /// What is on a medium that the server's configuration names.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) when the token does not allow it;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot be reached or goes away; else that of the
    /// server.
    pub async fn medium<T: DeserializeOwned>(&self, name: &str) -> Result<Vec<T>> {
        let view: MediumView<T> = self.get(&format!("{PATH}/media/{}", encoded(name))).await?;
        Ok(view.holds)
    }

    /// Has a verb on such a medium carried out; gives what the command prints as JSON there.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) when the token does not allow it;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot be reached or goes away; else that of the
    /// verb.
    pub async fn change_medium<T: DeserializeOwned>(&self, request: &MediaRequest) -> Result<T> {
        let medium = format!("/media/{}", encoded(request.name()));
        match request {
            MediaRequest::Write { holds, refresh, size, make, .. } => {
                let body =
                    json!({ "names": holds, "refresh": refresh, "size": size, "make": make });
                self.post(&format!("{medium}/write"), body).await
            }
            MediaRequest::Verify { drop_damaged, .. } => {
                let body = json!({ "drop_damaged": drop_damaged });
                self.post(&format!("{medium}/verify"), body).await
            }
            MediaRequest::Index { .. } => self.post(&format!("{medium}/index"), json!({})).await,
            MediaRequest::Remove { held, .. } => {
                self.delete(&format!("{medium}/held/{}", encoded(held))).await
            }
        }
    }
}
