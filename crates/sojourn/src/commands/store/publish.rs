//! `sojourn store publish`.

use crate::output::Output;
use block::Result;
use engine::Config;
use engine::Home;
use serde::Serialize;

/// What was published.
#[derive(Serialize)]
struct Published {
    store: String,
    objects: u64,
}

pub(crate) async fn run(home: &Home, output: Output) -> Result<()> {
    let config = Config::of(home)?;
    let backend = engine::backend(home, &config, engine::StoreUse::Command)?.backend;
    let objects = objects::publish::publish(&*backend).await?;
    let done = Published { store: home.store_url(&config.store), objects };
    output.print(&done, || format!("{}: {} objects are listed", done.store, done.objects))
}
