//! Suspensions that are in this home and not in the store, and that nothing sends, and machines that are in the store and
//! whose disk nothing releases: their keeper was killed, or the host went down. Whoever looks at the machines of the home,
//! or uses one, has the others go up, and released.

use super::folder::MachineFolder;
use super::keeper;
use super::wire::{self, KeeperRequest};
use block::Result;
use engine::Home;
use std::io::Write;
use std::time::Duration;
use tokio::time::timeout;

/// How long a keeper has to say that it is there.
const PATIENCE: Duration = Duration::from_secs(2);

/// Has them go up, behind, but for that of the machine `but`, and says so on stderr. What fails is in the log: it
/// keeps nobody from what they asked for.
pub(super) async fn send(home: &Home, but: Option<&str>) {
    for name in names(home) {
        if but == Some(name.as_str()) {
            continue;
        }
        match send_one(home, &name).await {
            Ok(Some(told)) => {
                // Nobody may be reading.
                let _ = writeln!(std::io::stderr(), "{told}");
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(machine = name, %error, "what is kept here is not sent"),
        }
    }
}

/// The machines of the home, by name.
fn names(home: &Home) -> Vec<String> {
    let entries = std::fs::read_dir(home.vms()).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Has the suspension of one machine go up, or its disk released; says what is done, if there is something to do that
/// nothing does.
async fn send_one(home: &Home, name: &str) -> Result<Option<String>> {
    let folder = MachineFolder::of(home, name)?;
    let told = match (folder.pending()?, folder.unreleased()) {
        // One that was given up for good goes up no better, and who went on from one has something newer to say.
        (Some(pending), _) if folder.not_sent().is_some() || pending.was_resumed(folder.path()) => {
            return Ok(None);
        }
        (Some(pending), _) => {
            let parcel = pending.parcel();
            format!("{parcel} was suspended here and nothing sent it: it goes up now")
        }
        (None, Some(parcel)) => {
            format!("{parcel} is in the store and nothing released its disk: that is done now")
        }
        (None, None) => return Ok(None),
    };
    let asked = timeout(PATIENCE, wire::call(&folder, &KeeperRequest::Status)).await;
    if !matches!(asked, Ok(Ok(None))) {
        return Ok(None);
    }
    keeper::send_behind(home, &folder).await?;
    Ok(Some(told))
}
